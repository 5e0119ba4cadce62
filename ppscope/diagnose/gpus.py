"""What power, utilisation and throttle reasons say of the GPUs while the server serves."""

from __future__ import annotations

from ppscope.diagnose import say
from ppscope.diagnose.crowding import crowding
from ppscope.diagnose.evidence import Evidence, GpuEvidence, StageEvidence
from ppscope.diagnose.pipeline import is_serial
from ppscope.sources.gpu_reasons import THROTTLE_REASONS
from ppscope.views import Finding

LOW_POWER = 0.25
SPIN_POWER = 0.4
SPIN_UTIL = 90.0
THROTTLED = 0.2
LEAST_SAMPLES = 10
_EVERYDAY = ("sw_power_cap", "app_clocks")
"""Reasons under which a board at work may run at nearly full clocks."""
SLOW_CLOCK = 0.9
BUSY = 0.4
"""Forward passes over all stages, as a share of the window, below which the server idles most of the time."""
_FORWARD = ("replay", "eager", "graph_input", "prepare", "sample", "wait_gpu")
_RECEIVING = ("recv_activations", "recv_outputs", "wait_requests")
_MEANING = {name: meaning for _, name, meaning in THROTTLE_REASONS}


def _gpus(stage: StageEvidence) -> list[GpuEvidence]:
    found = {rank.gpu.index: rank.gpu for rank in stage.ranks if rank.gpu is not None}
    return [gpu for gpu in found.values() if gpu.samples >= LEAST_SAMPLES]


def _power(stage: StageEvidence) -> list[tuple[float, float]]:
    """(mean power, limit) of each GPU of a stage that tells both."""
    return [
        (gpu.power_w, gpu.power_limit_w)
        for gpu in _gpus(stage)
        if gpu.power_w is not None and gpu.power_limit_w is not None and gpu.power_limit_w > 0
    ]


def _draws(stage: StageEvidence) -> bool:
    """Whether a GPU of a stage has drawn more in the last seconds than the mean of the window tells: before it nobody asked for work."""
    return any(
        gpu.recent_power_w is not None
        and gpu.power_limit_w is not None
        and gpu.recent_power_w > LOW_POWER * gpu.power_limit_w
        for gpu in _gpus(stage)
    )


def _slow(gpu: GpuEvidence) -> bool:
    return bool(gpu.sm_clock_mhz and gpu.sm_clock_max_mhz and gpu.sm_clock_mhz < SLOW_CLOCK * gpu.sm_clock_max_mhz)


def _at_work(evidence: Evidence) -> float:
    """Share of the window with a forward pass on some stage, at most: a request now and then leaves GPUs idle, rightly."""
    return sum(stage.phases.get(name, 0.0) for stage in evidence.stages for name in _FORWARD)


def _here(evidence: Evidence) -> float:
    """Share of all stages that are on this node."""
    return min(len(evidence.stages) / (evidence.server.pp_size * max(evidence.server.dp_size, 1)), 1.0)


def idle_while_serving(evidence: Evidence) -> Finding | None:
    """Every stage's GPUs draw little more than nothing while requests run."""
    powers = [_power(stage) for stage in evidence.stages]
    if evidence.active is not True or not powers or not all(powers) or _at_work(evidence) < BUSY * _here(evidence):
        return None
    flat = [pair for stage in powers for pair in stage]
    if any(power > LOW_POWER * limit for power, limit in flat) or any(map(_draws, evidence.stages)):
        return None
    running = evidence.load.running
    while_what = f"{say.plural(running, 'request')} run" if running else "requests run"
    utils = [gpu.util_percent for stage in evidence.stages for gpu in _gpus(stage) if gpu.util_percent is not None]
    lines = [
        f"mean power {say.span((p for p, _ in flat), 'W')} of {say.span((x for _, x in flat), 'W')} over"
        f" {say.window(evidence)} ({say.gpu_source(evidence)})"
    ]
    if utils:
        lines.append(f"utilisation {say.span(utils, '%')} ({say.gpu_source(evidence)})")
    if evidence.load.tokens_per_s:
        lines.append(f"{evidence.load.tokens_per_s:.1f} tokens/s ({evidence.load.source})")
    first = (
        "pipeline.serial" if is_serial(evidence) else "the findings above" if evidence.decode.observed == "off" else ""
    )
    remedy = (
        f"The GPUs are not the limit. First mend {first}."
        if first
        else "The GPUs are not the limit: see in the stacks where the schedulers wait, and send more requests at once."
    )
    return Finding(
        id="gpu.idle_while_serving",
        severity="medium",
        stage=None,
        summary=f"every GPU is near idle power while {while_what}: {say.span((p for p, _ in flat), 'W')}",
        evidence=(*lines, *crowding(evidence)),
        remedy=remedy,
        provenance="sampled",
    )


def spinning(evidence: Evidence) -> Finding | None:
    """Utilisation is high, power is low, and the scheduler sits in a receive: a communication kernel spins."""
    if evidence.active is not True or evidence.server.device == "cpu":
        return None
    hit = []
    for stage in evidence.stages:
        power, gpus = _power(stage), _gpus(stage)
        receiving = sum(stage.phases.get(name, 0.0) for name in _RECEIVING)
        if not power or receiving < 0.4 or not all((gpu.util_percent or 0.0) >= SPIN_UTIL for gpu in gpus):
            continue
        if all(watts <= SPIN_POWER * limit for watts, limit in power):
            hit.append((stage, receiving))
    if not hit:
        return None
    numbers = {stage.pp for stage, _ in hit}
    watts = [power for stage, _ in hit for power, _ in _power(stage)]
    return Finding(
        id="gpu.spinning",
        severity="info",
        stage=None if len(numbers) > 1 else next(iter(numbers)),
        summary=f"{say.stages(numbers)}: GPUs show full utilisation at {say.span(watts, 'W')}: they wait in a receive",
        evidence=(
            f"utilisation at least {SPIN_UTIL:.0f} %, mean power {say.span(watts, 'W')} "
            f"over {say.window(evidence)} ({say.gpu_source(evidence)})",
            f"schedulers in a receive {say.span((share * 100 for _, share in hit), '%')} of the time (sampled)",
        ),
        remedy="Do not read utilisation as work here: a waiting NCCL receive counts as 100 %. Power and busy time tell more.",
        provenance="sampled",
    )


def throttled(evidence: Evidence) -> Finding | None:
    """A GPU's clocks are held down for more than idleness."""
    hit: list[tuple[int, GpuEvidence, tuple[tuple[str, float], ...]]] = []
    for stage in evidence.stages:
        for gpu in _gpus(stage):
            reasons = tuple(
                (name, share) for name, share in gpu.throttled
                if name != "gpu_idle" and share >= THROTTLED and (name not in _EVERYDAY or _slow(gpu))
            )  # fmt: skip
            if reasons:
                hit.append((stage.pp, gpu, reasons))
    if not hit or evidence.active is not True:
        return None
    numbers = {pp for pp, _, _ in hit}
    lines = []
    for pp, gpu, reasons in hit[:4]:
        what = ", ".join(f"{name} {say.share(share)}" for name, share in reasons)
        clock = "" if gpu.sm_clock_mhz is None else f", SM clock {gpu.sm_clock_mhz:.0f} MHz"
        top = "" if gpu.sm_clock_max_mhz is None else f" of {gpu.sm_clock_max_mhz}"
        lines.append(
            f"GPU {gpu.index} (stage {pp}): {what} of {gpu.samples} readings{clock}{top} ({say.gpu_source(evidence)})"
        )
    if len(hit) > 4:
        lines.append(f"and {len(hit) - 4} more GPUs")
    names = list(dict.fromkeys(name for _, _, reasons in hit for name, _ in reasons))
    lines += [f"{name}: {_MEANING[name]}" for name in names if name in _MEANING][:3]
    heat = any("thermal" in name or name == "hw_slowdown" for name in names)
    who = f"GPU {hit[0][1].index}" if len(hit) == 1 else f"{len(hit)} GPUs"
    return Finding(
        id="gpu.throttled",
        severity="medium",
        stage=next(iter(numbers)) if len(numbers) == 1 else None,
        summary=f"{who} of {say.stages(numbers)} run{'s' if len(hit) == 1 else ''} below full clocks: {', '.join(names[:3])}",
        evidence=tuple(lines),
        remedy="Check cooling and airflow (nvidia-smi -q -d PERFORMANCE,TEMPERATURE)."
        if heat
        else "See nvidia-smi -q -d PERFORMANCE,POWER: raise the power limit if it may be, or accept it as this board's pace.",
        provenance="sampled",
    )

"""Evidence for the findings: what a session holds about the last seconds, summed up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from ppscope.diagnose.evidence import ACTIVE_S, Evidence, GpuEvidence, RankEvidence, StageEvidence
from ppscope.diagnose.graph_state import captured_sizes
from ppscope.diagnose.layers import stage_layers
from ppscope.diagnose.running import most_running
from ppscope.phase_sums import PhaseTimes
from ppscope.records import BatchLog, GpuSample
from ppscope.session.draft import draft_times
from ppscope.session.gpus import Gpus
from ppscope.session.interned import Interned
from ppscope.session.ranks import RankState
from ppscope.session.stages import FORWARD
from ppscope.sources.gpu_reasons import GPU_IDLE, throttle_names
from ppscope.views import PhaseStyle

if TYPE_CHECKING:
    from ppscope.session.session import Session

WINDOW_NS = 30_000_000_000
JUDGED_NS = 60_000_000_000
"""The longest window of which there is evidence: readings of a minute are kept."""
ACTIVE_NS = int(ACTIVE_S * 1e9)
_HELD = 0.1
"""Share of a rank's time: a stack that was misread says nothing."""
_LEAST_PASSES = 4
_LEAST_LINES = 2


def gather(session: Session, now_ns: int, window_ns: int = WINDOW_NS) -> Evidence | None:
    """The evidence of the window that ends now; None while no server is known."""
    server = session.server
    if server is None:
        return None
    since = max(now_ns - window_ns, session.started_ns)
    working = active(session.states.values(), session.phases(), now_ns)
    stages = _stages(session, since, now_ns, working)
    settings = session.settings
    batches = [line for line in session.load.recent_batches(now_ns) if line.at_ns >= since]
    decode, prefill = settings.graphs(batches, now_ns)
    occupied = session.occupancy(now_ns)
    everywhere = session.occupied(occupied)
    load = session.load.view(
        now_ns, settings.integer("decode_log_interval"), everywhere, settings.batch_interval, working
    )
    micro_batch, in_flight = session.load.micro_batch(now_ns, settings.batch_interval), session.load.in_flight(now_ns)
    running = session.load.estimate(now_ns, everywhere, settings.batch_interval)
    at_least = load.running if load.running_provenance == "exact" else running.at_least
    queued_since = session.load.queued_since(now_ns)
    draft = draft_times(session.states.values(), session.interned, since) if settings.speculates else None
    passes = session.load.passes_since(since)
    share, source = _replays(passes, batches)
    rule = session.rules.answer(server, settings.requested, settings.resolved)
    model = settings.model or {}
    layers = stage_layers(server.pp_size, model.get("num_hidden_layers"), settings.requested, server.version)
    per_stage = dict(enumerate(layers)) if layers else {}
    return Evidence(
        seconds=max(now_ns - since, 0) / 1e9,
        server=server,
        stages=tuple(_with_layers(stage, per_stage.get(stage.pp)) for stage in stages),
        load=load,
        occupancy=occupied,
        decode=decode,
        prefill=prefill,
        requested=settings.requested,
        resolved=settings.resolved,
        batches=tuple(batches),
        log_notes=tuple(settings.notes),
        micro_batch=micro_batch,
        in_flight=in_flight,
        in_flight_peak=session.load.in_flight_peak(now_ns),
        active=working,
        with_batch=working is False and with_batch(session.states.values(), session.interned, now_ns),
        slot_samples=tuple(Counter(slot for _, slot in session.slots_seen(now_ns)).most_common()),
        running_at_least=at_least,
        running_at_most=most_running(occupied, micro_batch, session.load.in_flight_most(now_ns), server.dp_size),
        queued_s=(now_ns - queued_since) / 1e9 if queued_since is not None else 0.0,
        decodes=_decodes(passes, batches),
        replay_share=share,
        replay_source=source,
        draft_eager=draft.eager if draft is not None else None,
        draft_replayed=draft.replayed if draft is not None else None,
        rule=rule,
        rules_problem=session.rules.problem,
        captured=captured_sizes(settings.resolved, settings.notes),
        layers=sum(layers) if layers else None,
        labels={style.name: style.label for style in session.phases()},
    )


def active(states: Iterable[RankState], styles: Sequence[PhaseStyle], now_ns: int) -> bool | None:
    """Whether any rank was seen in a forward pass in the last seconds; None where no stacks were seen then."""
    forward = {index for index, style in enumerate(styles) if style.name in FORWARD}
    seen = False
    for state in states:
        newest = state.seen_ns()
        if newest is None or now_ns - newest > ACTIVE_NS:
            continue
        times = _times(state, newest - ACTIVE_NS, newest)
        if any(times.get(phase) for phase in forward):
            return True
        seen = seen or bool(times)
    return False if seen else None


def with_batch(states: Iterable[RankState], interned: Interned, now_ns: int) -> bool:
    """Whether any rank was seen with a batch in the last seconds, be it that it only waits with it."""
    for state in states:
        newest = state.newest_ns
        if newest is not None and now_ns - newest <= ACTIVE_NS:
            share = state.batch_share(newest - ACTIVE_NS, interned)
            if share is not None and share >= _HELD:
                return True
    return False


def _times(state: RankState, start_ns: int, end_ns: int) -> PhaseTimes:
    """Phase times of a rank, exact where the probe is in it; sampled ones to the whole second, which is cheap."""
    return state.long_times(start_ns, end_ns)


def _with_layers(stage: StageEvidence, layers: int | None) -> StageEvidence:
    return msgspec.structs.replace(stage, layers=layers)


def _stages(session: Session, since_ns: int, now_ns: int, working: bool | None) -> list[StageEvidence]:
    names = [style.name for style in session.phases()]
    device = session.server.device if session.server else None
    found = []
    ordered = sorted(session.states.values(), key=lambda state: state.rank.key)
    for (dp, pp), group in groupby(ordered, key=lambda state: (state.rank.key.dp, state.rank.key.pp)):
        members = list(group)
        total: PhaseTimes = {}
        for state in members:
            for phase, took in _times(state, since_ns, now_ns).items():
                total[phase] = total.get(phase, 0) + took
        phases = _named(total, names)
        forward = sum(phases.get(name, 0.0) for name in FORWARD) if phases else None
        busy, source = session.stage_busy(dp, pp, forward, device, now_ns, working)
        ranks = tuple(_rank(state, session.gpus, names, since_ns, now_ns) for state in members)
        # On a GPU the loop over requests would only launch, and the kernels' time is not known.
        by_request = (
            _mean(state.by_request(since_ns, session.interned) for state in members) if device == "cpu" else None
        )
        found.append(StageEvidence(dp, pp, ranks, phases, busy, source, by_request=by_request))
    return found


def _named(times: PhaseTimes, names: Sequence[str]) -> dict[str, float]:
    seen = sum(times.values())
    return {names[phase]: took / seen for phase, took in times.items()} if seen else {}


def _rank(state: RankState, gpus: Gpus, names: Sequence[str], since_ns: int, now_ns: int) -> RankEvidence:
    times = _times(state, since_ns, now_ns)
    gpu = state.rank.gpu
    return RankEvidence(
        key=state.rank.key,
        pid=state.rank.pid,
        alive=state.alive,
        seen_s=sum(times.values()) / 1e9,
        phases=_named(times, names),
        host_cpu=state.host_cpu(since_ns),
        wait_share=state.host_wait(since_ns),
        gpu=_gpu(gpus, gpu.index if gpu else None, since_ns, now_ns),
        cores=state.cores(since_ns),
        process_cpu=state.process_cpu(since_ns),
    )


def _gpu(gpus: Gpus, index: int | None, since_ns: int, now_ns: int) -> GpuEvidence | None:
    samples = gpus.since(index, since_ns)
    if index is None or not samples:
        return None
    newest, device = samples[-1], gpus.devices.get(index)
    return GpuEvidence(
        index=index,
        samples=len(samples),
        power_w=_mean(sample.power_w for sample in samples),
        power_limit_w=_first(newest.power_limit_w, device.power_limit_w if device else None),
        util_percent=_mean(sample.util_percent for sample in samples),
        throttled=_throttled(samples),
        sm_clock_mhz=_clock(samples),
        sm_clock_max_mhz=device.sm_clock_max_mhz if device else None,
        pcie_gen=newest.pcie_gen,
        pcie_width=newest.pcie_width,
        device=device,
        recent_power_w=_recent_power(samples, now_ns),
    )


def _recent_power(samples: Sequence[GpuSample], now_ns: int) -> float | None:
    means = [
        _mean(sample.power_w for sample in samples if until - ACTIVE_NS < sample.at_ns <= until)
        for until in (now_ns, now_ns - ACTIVE_NS)
    ]
    return max((mean for mean in means if mean is not None), default=None)


def _clock(samples: Sequence[GpuSample]) -> float | None:
    """Mean SM clock at work: an idle GPU's is low and says nothing of what holds it down."""
    at_work = [sample for sample in samples if not (sample.throttle_reasons or 0) & GPU_IDLE]
    return _mean(sample.sm_clock_mhz for sample in at_work or samples)


def _throttled(samples: Sequence[GpuSample]) -> tuple[tuple[str, float], ...]:
    told = [sample.throttle_reasons for sample in samples if sample.throttle_reasons is not None]
    counts: dict[str, int] = {}
    for mask in told:
        for name in throttle_names(mask):
            counts[name] = counts.get(name, 0) + 1
    return tuple(sorted(((name, count / len(told)) for name, count in counts.items()), key=lambda pair: -pair[1]))


def _replays(passes: Mapping[str, float], batches: Sequence[BatchLog]) -> tuple[float | None, str | None]:
    """The share with its source; a few passes, or one line, may be those of a moment."""
    replayed, eager = passes.get("decode_cuda_graph", 0.0), passes.get("decode_none", 0.0)
    if replayed + eager >= _LEAST_PASSES:
        return replayed / (replayed + eager), "metrics"
    lines = [line for line in batches if line.mode == "decode" and line.graph is not None]
    share = sum(line.graph is True for line in lines) / len(lines) if lines else None
    # Every stage logs the same pass.
    return (
        (share, "log")
        if len(lines) >= _LEAST_LINES * len({(line.dp, line.pp, line.tp) for line in lines})
        else (None, None)
    )


def _decodes(passes: Mapping[str, float], batches: Sequence[BatchLog]) -> bool | None:
    """By lines alone never no: a decode line comes every so many passes, one of prefill at each."""
    counted = {mode: count for mode, count in passes.items() if count > 0}
    if any(mode.startswith("decode") for mode in counted) or any(line.mode == "decode" for line in batches):
        return True
    return False if counted else None


def _mean(values: Iterable[float | int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)

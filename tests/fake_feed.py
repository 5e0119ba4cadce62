"""A deterministic Feed: every situation the screen must show, with time that moves only when told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec

from ppscope.records import AnyCommand, GpuDevice, GpuSample, RankKey
from ppscope.views import (
    BurstOffer,
    Cell,
    Finding,
    GpuPanelRow,
    GraphState,
    Header,
    Lane,
    Load,
    Occupancy,
    PhaseStyle,
    RankRow,
    Screen,
    SettingRow,
    SourceNote,
    Span,
    StackNode,
    StageRow,
    ThreadStacks,
)

SECOND = 1_000_000_000
MS = 1_000_000

PHASES = (
    PhaseStyle("replay", "graph replay", "work", "█", "#", "#009e73", "green"),
    PhaseStyle("eager", "eager launches", "work", "▓", "E", "#d55e00", "red"),
    PhaseStyle("prepare", "prepare forward", "work", "▞", "p", "#c9a227", "yellow"),
    PhaseStyle("schedule", "schedule", "work", "▚", "c", "#cc79a7", "magenta"),
    PhaseStyle("postprocess", "post-process", "work", "▖", "o", "#b05a9a", "bright_magenta"),
    PhaseStyle("wait_gpu", "wait: GPU", "wait", "▒", "%", "#56b4e9", "bright_cyan"),
    PhaseStyle("recv_activations", "wait: activations", "wait", "░", "-", "#3a82c4", "blue"),
    PhaseStyle("idle", "idle", "idle", "·", ".", "#7f7f7f", "bright_black"),
    PhaseStyle("other", "other", "other", "¿", "?", "#999999", "white"),
    PhaseStyle("frozen", "frozen by profiler", "frozen", "╳", "X", "#cc3311", "bright_red"),
)
REPLAY, EAGER, PREPARE, SCHEDULE, POST, WAIT_GPU, WAIT_STAGE, IDLE = range(8)

HOSTILE = "[red]evil[/] \x1b[2J\u202egnp.exe\u202c 模型 " + "long-" * 40

SERIAL = Finding(
    id="pipeline.serial",
    severity="high",
    stage=None,
    summary="8 requests sit in 1 of 8 micro-batch slots: the stages take turns",
    evidence=(
        "occupied slots 1.0 of 8 over 10 s, 64 samples (sampled)",
        "never more than one stage in a forward pass at once",
        "pp_max_micro_batch_size resolved to 512 (server_info): one slot takes every request",
    ),
    remedy="--pp-max-micro-batch-size 1   then 8 slots hold one request each",
    provenance="sampled",
    source=(("sglang/srt/managers/scheduler.py", 1237),),
)
GRAPHS = Finding(
    id="graphs.disabled_by_flag",
    severity="high",
    stage=None,
    summary="decode runs eager: --disable-cuda-graph",
    evidence=(
        "requested: disable_cuda_graph = true (command line)",
        "observed: 96 % of decode batches logged cuda graph: False",
    ),
    remedy="remove --disable-cuda-graph from the command line",
    provenance="exact",
    source=(("sglang/srt/server_args.py", 3310),),
)
POWER = Finding(
    id="gpu.idle_while_serving",
    severity="medium",
    stage=None,
    summary="every GPU is near idle power while 8 requests run: 85 of 600 W",
    evidence=("mean power 84–88 W of 600 W over 10 s on 8 GPUs",),
    remedy="first make the stages work at once: see pipeline.serial",
    provenance="sampled",
)


def _tree(phase: int) -> StackNode:
    """A stack tree of a scheduler's main thread that mostly waits for its GPU."""

    def node(
        function: str, file: str, line: int, total: float, own: float, kind: int | None, *kids: StackNode
    ) -> StackNode:
        return StackNode(function, file, line, total, own, kind, kids)

    mixin = "sglang/srt/managers/scheduler_pp_mixin.py"
    forward = node(
        "_pp_launch_batch", mixin, 1650, 0.21, 0.0, phase,
        node(
            "run_batch", "sglang/srt/managers/scheduler.py", 4733, 0.21, 0.01, phase,
            node(
                "forward_decode", "sglang/srt/model_executor/model_runner.py", 2284, 0.18, 0.02, phase,
                node("_call_impl", "torch/nn/modules/module.py", 1784, 0.12, 0.0, phase,
                     node("forward", "sglang/srt/models/deepseek_v2.py", 1866, 0.12, 0.12, phase)),
                node("forward", "sglang/srt/layers/moe/fused_moe_triton/layer.py", 913, 0.04, 0.04, phase),
            ),
        ),
    )  # fmt: skip
    loop = node(
        "event_loop_pp", mixin, 192, 1.0, 0.0, None,
        node("synchronize", "torch/cuda/streams.py", 231, 0.52, 0.52, WAIT_GPU),
        forward,
        node("recv_requests", "sglang/srt/managers/scheduler.py", 1217, 0.15, 0.0, WAIT_STAGE,
             node("point_to_point_pyobj", "sglang/srt/utils/common.py", 2744, 0.15, 0.15, WAIT_STAGE)),
        node("process_batch_result_decode", "sglang/srt/managers/scheduler_output_processor_mixin.py", 417, 0.08, 0.08, POST),
        node("get_next_batch_to_run", "sglang/srt/managers/scheduler.py", 3894, 0.04, 0.04, SCHEDULE),
    )  # fmt: skip
    for function, file, line in (
        ("dispatch_event_loop", "sglang/srt/managers/scheduler.py", 6209),
        ("run_event_loop", "sglang/srt/managers/scheduler.py", 1975),
        ("run_scheduler_process", "sglang/srt/managers/scheduler.py", 6390),
        ("run", "multiprocessing/process.py", 108),
        ("_bootstrap", "multiprocessing/process.py", 314),
        ("_main", "multiprocessing/spawn.py", 135),
        ("spawn_main", "multiprocessing/spawn.py", 122),
        ("<module>", "<string>", 1),
    ):
        loop = node(function, file, line, 1.0, 0.0, None, loop)
    return loop


class FakeFeed:
    """A server of `pp` stages and `tp` ranks each. `serial` lets one stage work at a time, otherwise all overlap.

    `clock` replaces the frozen time; `windows` makes data arrive in staggered windows of 1.8 s as the sampler's does.
    """

    live = True

    def __init__(
        self,
        *,
        pp: int = 8,
        tp: int = 1,
        serial: bool = True,
        gpu_lanes: bool = False,
        clock: Callable[[], int] | None = None,
        windows: bool = False,
        seconds: int = 30,
    ) -> None:
        self.pp, self.tp, self.serial, self.gpu_lanes, self.windows = pp, tp, serial, gpu_lanes, windows
        self.clock = clock
        self.start_ns = 1_000 * SECOND
        self.at_ns = self.start_ns + seconds * SECOND + 240 * MS
        self.sent: list[AnyCommand] = []
        self.closed = False
        self.polls = 0
        self.end: str | None = None
        self.offer: BurstOffer | None = None
        self.base = self._screen()
        self.later: Screen | None = None

    # The Feed protocol.

    def poll(self) -> bool:
        self.polls += 1
        return True

    def now_ns(self) -> int:
        return self.clock() if self.clock else self.at_ns

    def look_at(self, start_ns: int, end_ns: int) -> None:
        pass

    def extent(self) -> tuple[int, int]:
        return self.start_ns, self.now_ns()

    def phases(self) -> tuple[PhaseStyle, ...]:
        return PHASES

    def screen(self) -> Screen:
        if self.clock is None:
            return self.base
        return msgspec.structs.replace(self._screen(), now_ns=self.now_ns())

    def lanes(self, start_ns: int, end_ns: int, columns: int, ranks: Sequence[RankKey] | None = None) -> list[Lane]:
        keys = ranks if ranks is not None else [RankKey(0, pp, 0) for pp in range(self.pp)]
        width = (end_ns - start_ns) // columns
        out = []
        for key in keys:
            names = ("host", "gpu") if self.gpu_lanes else ("host",)
            for name in names:
                cells = tuple(self._cell(key, start_ns + i * width, width, name) for i in range(columns))
                out.append(Lane(key, name, "exact" if name == "gpu" else "sampled", cells))
        return out

    def spans(self, rank: RankKey, start_ns: int, end_ns: int) -> list[Span]:
        out: list[Span] = []
        step = 5 * MS
        at = start_ns // step * step
        while at < min(end_ns, self.now_ns()):
            phase, mb = self._phase(rank, at)
            if (
                phase is not None
                and out
                and out[-1].phase == phase
                and out[-1].micro_batch == mb
                and out[-1].end_ns == at
            ):
                out[-1] = msgspec.structs.replace(out[-1], end_ns=at + step)
            elif phase is not None:
                out.append(Span(at, at + step, phase, 100 + phase, mb, "sampled"))
            at += step
        return out

    def stacks(self, rank: RankKey, seconds: float, until_ns: int | None = None) -> list[ThreadStacks]:
        other = StackNode("<module>", "<string>", 1, 1.0, 0.0, None, (
            StackNode("_watchdog_thread", "sglang/srt/utils/watchdog.py", 88, 1.0, 1.0, None, ()),
        ))  # fmt: skip
        return [
            ThreadStacks(rank, 4200 + rank.pp, "MainThread", seconds, _tree(EAGER if self.serial else REPLAY)),
            ThreadStacks(rank, 4300 + rank.pp, "watchdog", seconds, other),
        ]

    def stack_text(self, stack: int) -> list[tuple[str, str, int | None]]:
        phase = stack - 100
        frames: list[tuple[str, str, int | None]] = [
            ("run_scheduler_process", "sglang/srt/managers/scheduler.py", 6390),
            ("event_loop_pp", "sglang/srt/managers/scheduler_pp_mixin.py", 192),
        ]
        if phase in {REPLAY, EAGER}:
            frames += [
                ("_pp_launch_batch", "sglang/srt/managers/scheduler_pp_mixin.py", 1650),
                ("forward_decode", "sglang/srt/model_executor/model_runner.py", 2284),
                ("forward", "sglang/srt/models/deepseek_v2.py", 1866),
            ]
        else:
            frames.append(("synchronize", "torch/cuda/streams.py", 231))
        return frames

    def burst(self) -> BurstOffer | None:
        return self.offer

    def send(self, command: AnyCommand) -> None:
        self.sent.append(command)

    def ended(self) -> str | None:
        return self.end

    def close(self) -> None:
        self.closed = True

    # The model behind it.

    def _phase(self, rank: RankKey, at_ns: int) -> tuple[int | None, int | None]:
        """The phase and micro-batch of a rank at an instant: a stage of 40 ms (serial) or 22 of every 30 ms (healthy)."""
        if at_ns < self.start_ns or at_ns >= self._horizon(rank):
            return None, None
        at = at_ns - self.start_ns
        work = EAGER if self.serial else REPLAY
        if self.serial:
            stage_ns = 40 * MS if self.pp <= 8 else 10 * MS
            turn, into = divmod(at, stage_ns * self.pp)
            stage, inside = divmod(into, stage_ns)
            mb = int(turn) % 1
            if stage == rank.pp:
                return (PREPARE if inside < stage_ns // 8 else work if inside < stage_ns * 3 // 4 else WAIT_GPU), mb
            return (WAIT_STAGE if rank.pp else POST if stage == 1 and inside < stage_ns // 3 else WAIT_GPU), mb
        period = 30 * MS
        turn, inside = divmod(at + period * 8 - rank.pp * period, period)
        mb = int(turn) % self.pp
        if inside < 3 * MS:
            return SCHEDULE, mb
        return (work if inside < 25 * MS else WAIT_GPU), mb

    def _horizon(self, rank: RankKey) -> int:
        now = self.now_ns()
        if not self.windows:
            return now
        length = 1_800 * MS
        offset = (rank.pp * 225 + rank.tp * 60) * MS
        return self.start_ns + (now - self.start_ns - offset) // length * length + offset

    def _cell(self, rank: RankKey, start_ns: int, width_ns: int, lane: str) -> Cell:
        return _bucket(self, rank, start_ns, width_ns, lane, self._horizon(rank))

    def _screen(self) -> Screen:
        tick = 0 if self.clock is None else self.clock() // SECOND
        stages = tuple(self._stage(pp, int(tick)) for pp in range(self.pp))
        header = Header(
            model="Kimi-K2",
            version="0.5.23",
            layout=f"PP{self.pp}×TP{self.tp}",
            host="gpu01",
            launcher_pid=4242,
            state="serving",
            load=Load(24.7 if self.serial else 181.3, 8, 0, 0.96, "log"),
            decode_graph=GraphState("off", "off", "off", "log") if self.serial else GraphState(None, "on", "on", "log"),
            prefill_graph=GraphState(None, None, None),
            stack_rate_hz=50.0,
            cost_cores=0.41,
            other_share=0.012,
            notes=(),
        )
        return Screen(
            now_ns=self.at_ns,
            header=header,
            stages=stages,
            occupancy=Occupancy(self.pp, 1.0 if self.serial else float(self.pp) - 0.3, 64, "sampled"),
            findings=(SERIAL, GRAPHS, POWER) if self.serial else (),
            gpus=tuple(self._gpu(index, int(tick)) for index in range(self.pp * self.tp)),
            settings=(
                SettingRow("disable_cuda_graph", "true", "true", "eager", False),
                SettingRow("cuda_graph_max_bs", None, "32", None, False),
                SettingRow("pp_max_micro_batch_size", None, "512", "8 in one slot", True),
                SettingRow("chunked_prefill_size", "4096", "4096", None, False),
                SettingRow("attention_backend", None, "fa3", None, False),
                SettingRow("max_running_requests", "4096", "4096", "8", False),
                SettingRow("pp_async_batch_depth", None, "0", None, False),
            ),
        )

    def _power(self, index: int, tick: int) -> float:
        return (84.0 if self.serial else 512.0) + (index * 7 + tick * 3) % 5

    def _stage(self, pp: int, tick: int) -> StageRow:
        ranks = tuple(self._rank(pp, tp, tick) for tp in range(self.tp))
        power = sum(self._power(pp * self.tp + tp, tick) for tp in range(self.tp)) / self.tp
        return StageRow(
            dp=0,
            pp=pp,
            ranks=ranks,
            alive=True,
            gpus=tuple(range(pp * self.tp, (pp + 1) * self.tp)),
            power_w=power,
            power_limit_w=600.0,
            util_percent=3.0 + (pp + tick) % 3 if self.serial else 88.0 + pp % 4,
            host_work=0.12 if self.serial else 0.78,
            busy=None if self.serial else 0.74,
            busy_source=None if self.serial else "metric",
            phases=((WAIT_STAGE, 0.66), (EAGER if self.serial else REPLAY, 0.21), (WAIT_GPU, 0.13)),
        )

    def _rank(self, pp: int, tp: int, tick: int) -> RankRow:
        index = pp * self.tp + tp
        return RankRow(
            key=RankKey(0, pp, tp),
            pid=4300 + index,
            alive=True,
            exit_reason=None,
            gpu_index=index,
            gpu_source="nvml_pid",
            power_w=self._power(index, tick),
            power_limit_w=600.0,
            util_percent=3 + (pp + tick) % 3 if self.serial else 88 + pp % 4,
            host_cpu=0.31,
            phases=((WAIT_STAGE, 0.66), (EAGER if self.serial else REPLAY, 0.21), (WAIT_GPU, 0.13)),
            threads=38,
        )

    def _gpu(self, index: int, tick: int) -> GpuPanelRow:
        history = tuple(self._power(index, tick + back) for back in range(60))
        sample = GpuSample(
            index, self.at_ns, power_w=history[-1], power_limit_w=600.0, util_percent=3, memory_used_bytes=121 * 2**30,
            memory_util_percent=1, sm_clock_mhz=1980, memory_clock_mhz=3201, temperature_c=41 + index % 3,
            pcie_tx_kb_s=2_100, pcie_rx_kb_s=950, pcie_gen=5, pcie_width=16, throttle_reasons=1, pids=(4300 + index,),
        )  # fmt: skip
        device = GpuDevice(
            index, f"GPU-{index:04x}", "NVIDIA H200", 600.0, 141 * 2**30, pcie_gen_max=5, pcie_width_max=16
        )
        util = tuple(float((index + back) % 5) for back in range(60))
        rank = RankKey(0, index // self.tp, index % self.tp)
        return GpuPanelRow(device, sample, history, util, (), (rank,))


@lru_cache(100_000)
def _bucket(feed: FakeFeed, rank: RankKey, start_ns: int, width_ns: int, lane: str, horizon: int) -> Cell:
    counts: dict[tuple[int | None, int | None], int] = {}
    parts = 8
    for part in range(parts):
        at = start_ns + width_ns * part // parts
        phase, mb = feed._phase(rank, at)
        if lane == "gpu" and phase is not None:
            phase = phase if PHASES[phase].kind == "work" and phase < PREPARE else IDLE
        counts[(phase, mb)] = counts.get((phase, mb), 0) + 1
    known = {key: n for key, n in counts.items() if key[0] is not None}
    if not known:
        return Cell(None, None)
    phase, mb = max(known, key=lambda key: known[key])
    work = sum(n for (p, _), n in known.items() if p is not None and PHASES[p].kind == "work") / sum(known.values())
    return Cell(phase, work, mb)


def healthy() -> FakeFeed:
    """PP8, every stage overlapping, nothing to report."""
    return FakeFeed(serial=False)


def serial() -> FakeFeed:
    """PP8, one stage at a time: the story of 85 W of 600 W."""
    return FakeFeed()


def tensor_parallel() -> FakeFeed:
    """PP4 × TP2, serial, with GPU lanes."""
    return FakeFeed(pp=4, tp=2, gpu_lanes=True)


def big() -> FakeFeed:
    """64 ranks: PP16 × TP4."""
    return FakeFeed(pp=16, tp=4)


def recording() -> FakeFeed:
    """A recording: nothing more comes."""
    feed = FakeFeed()
    feed.live = False
    feed.base = _with_header(feed.base, state="recording")
    return feed


def sources_dead() -> FakeFeed:
    """NVML stalled and /server_info silent."""
    feed = FakeFeed()
    notes = (
        SourceNote("gpu", "stalled", "NVML has not answered", "", feed.at_ns - 12 * SECOND),
        SourceNote(
            "http",
            "dead",
            "/server_info: connection refused on port 30000",
            "is the port in another namespace?",
            feed.at_ns,
        ),
    )
    feed.base = _with_header(feed.base, notes=notes)
    return feed


def rank_dead() -> FakeFeed:
    """PP3's scheduler has exited."""
    feed = FakeFeed()
    stages = list(feed.base.stages)
    rank = msgspec.structs.replace(stages[3].ranks[0], alive=False, exit_reason="gone", power_w=None, host_cpu=None)
    stages[3] = msgspec.structs.replace(
        stages[3], ranks=(rank,), alive=False, power_w=None, util_percent=None, host_work=None
    )
    feed.base = msgspec.structs.replace(feed.base, stages=tuple(stages))
    return feed


def server_gone() -> FakeFeed:
    """The launcher is gone; two other servers are there."""
    feed = FakeFeed()
    feed.base = _with_header(feed.base, state="gone", candidates=((5151, "Kimi-K2"), (6161, HOSTILE)))
    return feed


def unknown() -> FakeFeed:
    """Nothing is known but that there are stages."""
    feed = FakeFeed(seconds=0)
    none = GraphState(None, None, None)
    stages = tuple(
        msgspec.structs.replace(
            stage, gpus=(), power_w=None, power_limit_w=None, util_percent=None, host_work=None, busy=None, phases=(),
            ranks=tuple(
                msgspec.structs.replace(rank, gpu_index=None, gpu_source=None, power_w=None, power_limit_w=None,
                                        util_percent=None, host_cpu=None, phases=(), threads=None)
                for rank in stage.ranks
            ),
        )
        for stage in feed.base.stages
    )  # fmt: skip
    header = msgspec.structs.replace(
        feed.base.header, model=None, version=None, load=Load(None, None, None, None, None), decode_graph=none,
        stack_rate_hz=None, cost_cores=None, other_share=None,
    )  # fmt: skip
    feed.base = Screen(feed.at_ns, header, stages, Occupancy(None, None, 0, None), ())
    feed.start_ns = feed.at_ns
    return feed


def hostile() -> FakeFeed:
    """Titles and names that want to be markup, escape sequences or right-to-left overrides."""
    feed = FakeFeed()
    finding = msgspec.structs.replace(SERIAL, id="[bold]x[/]", summary=HOSTILE, evidence=(HOSTILE,), remedy=HOSTILE)
    feed.base = msgspec.structs.replace(
        _with_header(feed.base, model=HOSTILE, host=HOSTILE), findings=(finding,),
        settings=(SettingRow(HOSTILE, HOSTILE, HOSTILE, HOSTILE, True),),
    )  # fmt: skip
    return feed


def _with_header(screen: Screen, **changes: object) -> Screen:
    return msgspec.structs.replace(screen, header=msgspec.structs.replace(screen.header, **changes))


SITUATIONS: dict[str, Callable[[], FakeFeed]] = {
    "healthy": healthy,
    "serial": serial,
    "tensor_parallel": tensor_parallel,
    "big": big,
    "recording": recording,
    "sources_dead": sources_dead,
    "rank_dead": rank_dead,
    "server_gone": server_gone,
    "unknown": unknown,
    "hostile": hostile,
}

"""A pipeline server as a collector tells of it, for minutes of virtual time, with the noise that real readings have."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ppscope.records import (
    AnyCommand,
    AnyRecord,
    BatchLog,
    Clock,
    DumpNow,
    FrameDef,
    GpuDevice,
    GpuRef,
    GpuSample,
    Hello,
    HostSamples,
    LoadSample,
    LoopSample,
    Metric,
    Rank,
    RankKey,
    Server,
    Settings,
    StackDef,
    StackSpans,
)

SECOND = 1_000_000_000
START = 1_000 * SECOND
STAGES = 4
WINDOW = 90
"""Samples of a window of stacks: 1.8 s at 50 Hz."""
_SCHEDULER, _MIXIN, _RUNNER = (
    "sglang/srt/managers/scheduler.py",
    "sglang/srt/managers/scheduler_pp_mixin.py",
    "sglang/srt/model_executor/runner/eager_runner.py",
)
_PATHS: dict[str, tuple[tuple[str, str], ...]] = {
    "replay": (("run_batch", _SCHEDULER), ("replay", "torch/cuda/graphs.py")),
    "eager": (("run_batch", _SCHEDULER), ("execute", _RUNNER)),
    "schedule": (("get_next_batch_to_run", _SCHEDULER),),
    "recv_activations": (("_pp_recv_proxy_tensors", _MIXIN),),
    "recv_outputs": (("_pp_recv_dict_from_prev_stage", _MIXIN),),
    "wait_gpu": (("synchronize", "torch/cuda/streams.py"),),
    "wait_requests": (("recv_requests", _SCHEDULER), ("point_to_point_pyobj", "sglang/srt/utils/common.py")),
    "postprocess": (("process_batch_result_decode", _SCHEDULER),),
    "idle": (("on_idle", _SCHEDULER),),
}
_NEXT = ("recv_outputs", "wait_gpu", "postprocess")
_COUNTS = ("replay", "eager", "recv_activations", "recv_outputs", "wait_gpu", "postprocess")
PHASES = {"wait_gpu": 0.75, "replay": 0.1, "postprocess": 0.05, "schedule": 0.02, "wait_requests": 0.08}


@dataclass(frozen=True)
class Story:
    """What the server is like. Shares are means; every reading swings about them."""

    sizes: tuple[int, ...] = (8, 8, 8, 8)
    """Requests of each slot, 0 for an empty one."""
    phases: Mapping[str, float] = field(default_factory=lambda: dict(PHASES))
    last_phases: Mapping[str, float] | None = None
    """Those of the last stage where they differ."""
    graphs: bool = True
    replays: float = 1.0
    captured: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    power_w: float = 450.0
    util: int = 90
    throttled: float = 0.0
    busy: tuple[float, ...] = ()
    """The forward occupancy of each stage; empty without the device timer."""
    cpu: float = 0.12
    """What the first stage's main thread uses of a core; the others use a tenth."""
    queued: int = 0
    tokens_per_s: float = 300.0
    metrics: bool = True
    gaps: bool = True
    """Clients ask anew as soon as they are answered: in some readings one is missing."""
    settings: Mapping[str, object] = field(default_factory=dict)
    requested: Mapping[str, object] = field(default_factory=dict)

    @property
    def running(self) -> int:
        """Requests that run."""
        return sum(self.sizes)


class Pipeline:
    """The stream of one server; each call of `second` tells of one more second, as the story of that second has it."""

    live = True

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._due = dict.fromkeys(range(STAGES), 0)
        self._dumps: deque[RankKey] = deque()
        self._passes = {"decode_cuda_graph": 0.0, "decode_none": 0.0}
        self._run_ns = [0] * STAGES
        self.at_ns = START
        self.waiting: list[AnyRecord] = [Hello(1, "0", "box", START, 0, 7), *self._definitions()]
        self._told: Story | None = None

    def drain(self) -> list[AnyRecord]:
        records, self.waiting = self.waiting, []
        return records

    def wait(self, timeout_s: float) -> bool:
        return bool(self.waiting)

    def send(self, command: AnyCommand) -> None:
        if isinstance(command, DumpNow) and command.rank is not None:
            self._dumps.append(command.rank)

    def close(self) -> None:
        pass

    def second(self, story: Story) -> None:
        """One more second."""
        if self._told is None or (story.settings, story.requested, story.graphs) != (
            self._told.settings,
            self._told.requested,
            self._told.graphs,
        ):
            self.waiting += self._start(story)
        self._told = story
        self.at_ns += SECOND
        at, second = self.at_ns, (self.at_ns - START) // SECOND
        for pp in range(STAGES):
            if second * SECOND >= self._due[pp]:
                self._due[pp] += 18 * SECOND // 10
                self.waiting.append(self._window(story, pp))
        self.waiting += self._loops(story, second)
        if story.metrics:
            self.waiting += self._metrics(story)
        if story.running and second % 3 == 0:
            self.waiting += [self._line(story, pp) for pp in range(STAGES)]
        for pp in range(STAGES):
            self.waiting += [self._gpu(story, pp, at - half) for half in (SECOND // 2, 0)]
            used = story.cpu if pp == 0 else story.cpu / 10
            self._run_ns[pp] += int(SECOND * min(self._swing(used, 0.02), 1.0))
            self.waiting.append(HostSamples(RankKey(0, pp, 0), 100 + pp, [at], [self._run_ns[pp]], [0], "R"))
        self.waiting.append(Clock(at, at))

    def _swing(self, value: float, by: float) -> float:
        return value * (1 + self._random.uniform(-by, by))

    def _definitions(self) -> Iterator[AnyRecord]:
        names = {("run_scheduler_process", _SCHEDULER): 1, ("event_loop_pp", _MIXIN): 2}
        for number, path in enumerate(_PATHS.values()):
            for name in path:
                names.setdefault(name, len(names) + 1)
            yield StackDef(number, (1, 2, *(names[name] for name in path)))
        yield from (FrameDef(number, function, file, 1) for (function, file), number in names.items())

    def _start(self, story: Story) -> Iterator[AnyRecord]:
        ranks = tuple(
            Rank(RankKey(0, pp, 0), 100 + pp, 1, f"sglang::scheduler_PP{pp}", main_tid=100 + pp, gpu=GpuRef(pp, None, pp, "emulated"))
            for pp in range(STAGES)
        )  # fmt: skip
        yield Server(
            self.at_ns,
            50,
            1,
            "launch_server",
            "serving",
            ranks,
            STAGES,
            1,
            1,
            version="0.5.23",
            device="cuda",
            port=30000,
        )
        backend = "full" if story.graphs else "disabled"
        values: dict[str, object] = {
            "pp_size": STAGES,
            "pp_async_batch_depth": 0,
            "pp_max_micro_batch_size": 256,
            "max_running_requests": 1024,
            "decode_log_interval": 40,
            "cuda_graph_config": {"decode": {"backend": backend}, "prefill": {"backend": "disabled"}},
            "internal_states": [{"decode_cuda_graph_bs": list(story.captured) if story.graphs else []}],
            **story.settings,
        }
        yield Settings(self.at_ns, "resolved", values)
        yield Settings(self.at_ns, "requested", {"pp_size": STAGES, **story.requested})
        for pp in range(STAGES):
            yield GpuDevice(pp, f"GPU-{pp}", "NVIDIA B200", 600.0)

    def _phase(self, story: Story, pp: int) -> str:
        last = pp == STAGES - 1 and story.last_phases is not None
        shares = story.last_phases if last and story.last_phases is not None else story.phases
        return self._random.choices(list(shares), list(shares.values()))[0]

    def _window(self, story: Story, pp: int) -> StackSpans:
        step = SECOND // 50
        began = self.at_ns - WINDOW * step
        starts: list[int] = []
        ends: list[int] = []
        stacks: list[int] = []
        for at in range(WINDOW):
            stack = list(_PATHS).index(self._phase(story, pp))
            if stacks and stacks[-1] == stack:
                ends[-1] += step
            else:
                starts.append(began + at * step)
                ends.append(began + (at + 1) * step)
                stacks.append(stack)
        return StackSpans(
            RankKey(0, pp, 0), 100 + pp, "MainThread", began, self.at_ns, step, starts, ends, stacks, samples=WINDOW
        )

    def _loops(self, story: Story, second: int) -> Iterator[LoopSample]:
        keys = [RankKey(0, second % STAGES, 0)]
        keys += [self._dumps.popleft() for _ in range(min(len(self._dumps), self._random.randint(5, 9)))]
        used = [slot for slot, size in enumerate(story.sizes) if size]
        for number, key in enumerate(keys):
            phase = self._phase(story, key.pp)
            slot = self._random.choice(used) if used and phase in _COUNTS else self._random.randrange(STAGES)
            mb_id = (slot - 1) % STAGES if phase in _NEXT else slot
            at = self.at_ns - SECOND + (number + 1) * SECOND // (len(keys) + 1)
            stack = list(_PATHS).index(phase)
            yield LoopSample(key, at, SECOND // 50, stack, "event_loop_pp", mb_id, (mb_id + 1) % STAGES)

    def _metrics(self, story: Story) -> Iterator[AnyRecord]:
        at, sizes = self.at_ns, [size for size in story.sizes if size]
        open_now = story.running + story.queued
        if story.gaps and open_now and self._random.random() < 0.3:
            open_now -= 1
        size = sum(sizes) / len(sizes) if sizes else None
        yield LoadSample(
            at, "metrics", queued=story.queued, tokens_per_s=self._swing(story.tokens_per_s, 0.2) if sizes else 0.0,
            micro_batch=None if size is None else max(self._swing(size, 0.03), 1.0), in_flight=open_now,
        )  # fmt: skip
        for mode, share in (("decode_cuda_graph", story.replays), ("decode_none", 1 - story.replays)):
            self._passes[mode] += round(self._swing(20.0, 0.2) * share) if sizes else 0
            yield Metric(at, "sglang:cuda_graph_passes_total", (("mode", mode), ("pp_rank", "0")), self._passes[mode])
        for pp, busy in enumerate(story.busy):
            yield Metric(at, "sglang:fwd_occupancy", (("pp_rank", str(pp)),), 100 * min(self._swing(busy, 0.04), 0.99))

    def _line(self, story: Story, pp: int) -> BatchLog:
        sizes = [size for size in story.sizes if size]
        size = self._random.choice(sizes)
        # A line every forty passes and three seconds.
        rate = 40 / 3 * sum(sizes) / len(sizes)
        return BatchLog(
            self.at_ns, self.at_ns, "decode", None, pp, None, running=size, queued=story.queued,
            tokens_per_s=self._swing(rate, 0.1), graph=self._random.random() < story.replays,
        )  # fmt: skip

    def _gpu(self, story: Story, pp: int, at_ns: int) -> GpuSample:
        throttled = pp == 1 and self._random.random() < story.throttled
        return GpuSample(
            pp, at_ns, power_w=self._swing(story.power_w, 0.05), power_limit_w=600.0, sm_clock_mhz=1290 if throttled else 1965,
            util_percent=min(round(self._swing(story.util, 0.08)), 100), throttle_reasons=0x40 if throttled else 0,
        )  # fmt: skip


ONE_SLOT = {"recv_outputs": 0.8, "eager": 0.15, "postprocess": 0.05}
STARVED = {"recv_activations": 0.85, "replay": 0.1, "postprocess": 0.05}
SERIAL = Story(
    sizes=(8, 0, 0, 0), phases=ONE_SLOT, graphs=False, replays=0.0, power_w=86.0, util=3, tokens_per_s=24.0,
    requested={"disable_cuda_graph": True},
)  # fmt: skip
HEALTHY = Story()
IDLE = Story(sizes=(0, 0, 0, 0), phases={"idle": 0.95, "wait_requests": 0.05}, power_w=84.0, util=0, tokens_per_s=0.0)
IN_ONE_SLOT = {"pipeline.serial", "graphs.disabled_by_flag", "gpu.idle_while_serving"}
ONE = replace(HEALTHY, sizes=(1, 0, 0, 0), phases=STARVED, power_w=200.0, util=40, tokens_per_s=20.0)
STORIES: dict[str, tuple[Story, set[str]]] = {
    "healthy": (HEALTHY, set()),
    "healthy, by the log alone": (replace(HEALTHY, metrics=False), set()),
    "one request a slot": (replace(HEALTHY, sizes=(1, 1, 1, 1)), set()),
    "one request a slot, by the log alone": (replace(HEALTHY, sizes=(1, 1, 1, 1), metrics=False), set()),
    "serial": (SERIAL, IN_ONE_SLOT),
    "serial, just enough requests": (replace(SERIAL, sizes=(4, 0, 0, 0)), IN_ONE_SLOT),
    "serial, by the log alone": (replace(SERIAL, metrics=False), IN_ONE_SLOT),
    "eager": (replace(HEALTHY, sizes=(64,) * 4, replays=0.0), {"graphs.batch_over_captured"}),
    "unpadded": (
        replace(HEALTHY, sizes=(11,) * 4, replays=0.02, settings={"disable_cuda_graph_padding": True}), {"graphs.eager_decode"},
    ),
    "imbalanced": (replace(HEALTHY, busy=(0.45, 0.45, 0.92, 0.45)), {"pipeline.imbalance"}),
    "spinning": (
        replace(HEALTHY, sizes=(1, 0, 1, 0), phases=STARVED, power_w=170.0, util=100), {"gpu.spinning", "load.too_few_requests"},
    ),
    "throttled": (replace(HEALTHY, throttled=0.6), {"gpu.throttled"}),
    "slow links": (replace(HEALTHY, busy=(0.45,) * 4), {"pipeline.bubbles"}),
    "slow links, by the log alone": (replace(HEALTHY, busy=(0.45,) * 4, gaps=False), {"pipeline.bubbles"}),
    "late sync": (
        replace(
            HEALTHY, busy=(0.68, 0.68, 0.68, 0.78),
            last_phases={"wait_gpu": 0.72, "replay": 0.16, "postprocess": 0.08, "wait_requests": 0.04},
        ),
        {"pipeline.last_stage_sync"},
    ),
    "busy host": (
        replace(HEALTHY, phases={"postprocess": 0.9, "replay": 0.05, "schedule": 0.05}, cpu=0.96, util=45, power_w=280.0),
        {"host.cpu_bound"},
    ),
    "blocked": (replace(IDLE, queued=3), {"server.queue_blocked"}),
    "one client": (ONE, {"load.too_few_requests"}),
    "one client, by the log alone": (replace(ONE, metrics=False), {"load.too_few_requests"}),
    "idle": (IDLE, set()),
}  # fmt: skip
"""Each with its findings, and no others of any severity."""

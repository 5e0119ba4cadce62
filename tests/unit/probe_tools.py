"""A ring of this test's own: a folder instead of /dev/shm, a recorder, a rank, and a loop like SGLang's to be wrapped."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from ppscope.probe import layout, targets
from ppscope.probe.hook import Hook
from ppscope.probe.recorder import Recorder
from ppscope.probe.ring import started_ticks
from ppscope.records import ProbeSpans, Rank, RankKey
from ppscope.sources.probe_folder import open_file, open_folder
from ppscope.sources.probe_ring import RingReader

KEY = RankKey(0, 0, 0)
Row = dict[str, Any]


def this_rank(pid: int | None = None) -> Rank:
    pid = pid or os.getpid()
    return Rank(KEY, pid, started_ticks(pid) or 0, "sglang::scheduler_PP0")


def reader(base: Path, rank: Rank | None = None) -> RingReader:
    rank = rank or this_rank()
    folder = open_folder(rank, (), str(base))
    try:
        fd = open_file(folder, layout.RING, rank, os.O_RDONLY)
    finally:
        os.close(folder)
    assert fd is not None, "no ring"
    return RingReader(fd)


def rows(spans: ProbeSpans | None) -> list[Row]:
    """A record by rows, codes as names."""
    if spans is None:
        return []
    names = {value: name for name, value in vars(layout).items() if name in KINDS}
    return [
        {
            "kind": names[kind], "start": start, "end": end, "depth": depth, "mb": slot, "mode": layout.MODES[mode],
            "bs": size, "tokens": tokens, "graph": layout.GRAPHS[graph], "turn": turn,
        }
        for kind, start, end, depth, slot, mode, size, tokens, graph, turn in zip(
            spans.kinds, spans.starts_ns, spans.ends_ns, spans.depths, spans.micro_batches, spans.modes, spans.batch_sizes,
            spans.tokens, spans.graphs, spans.turns, strict=True,
        )
    ]  # fmt: skip


KINDS = {
    "WAKE", "INTAKE", "WAIT_REQUESTS", "WAIT_PEERS", "SCHEDULE", "RECV_ACTIVATIONS", "RECV_OUTPUTS", "WAIT_DISAGG", "WAIT_SEND",
    "SEND", "LAUNCH", "EAGER", "REPLAY", "GRAPH_INPUT", "SAMPLE", "EXCHANGE", "PROCESS", "WAIT_GPU", "IDLE", "FROZEN", "GPU_FORWARD",
}  # fmt: skip


def batch(mode: str, requests: int, tokens: int | None = None) -> SimpleNamespace:
    return SimpleNamespace(forward_mode=SimpleNamespace(name=mode), reqs=[None] * requests, extend_num_tokens=tokens)


class GraphRunner:
    """A decode graph runner that captured up to a size."""

    def __init__(self, max_bs: int) -> None:
        self.max_bs = max_bs

    def can_run(self, forward_batch: Any) -> bool:
        return bool(forward_batch.batch_size <= self.max_bs)

    def replay(self, forward_batch: Any) -> str:
        return "replayed"


class Mixin:
    """Half of the scheduler, as in SGLang: what is wrapped is not all defined in one class."""

    pp_loop_size = 3
    run_batch: Callable[[Any], str]

    def init_pp_loop_state(self) -> None:
        self.mbs: list[Any] = [None] * self.pp_loop_size

    def _pp_launch_batch(self, mb_id: int, cur_batch: Any) -> str:
        return self.run_batch(cur_batch)


class Scheduler(Mixin):
    """A loop with SGLang's names and nothing behind them. `plan(turn, mb_id)` says what to launch."""

    def __init__(self, plan: Callable[[int], Any], runner: GraphRunner | None = None) -> None:
        self.plan, self.runner, self.turns, self.results = plan, runner, 0, []  # type: ignore[var-annotated]
        self.pp_rank, self.tp_rank, self.dp_rank = 1, 0, None

    def recv_requests(self) -> list[Any]:
        return []

    def process_input_requests(self, requests: list[Any]) -> None:
        pass

    def get_next_batch_to_run(self) -> Any:
        return self.plan(self.turns)

    def run_batch(self, batch: Any) -> str:
        asked = SimpleNamespace(batch_size=len(batch.reqs))
        if self.runner is not None and self.runner.can_run(asked):
            return self.runner.replay(asked)
        return self.forward()

    def forward(self) -> str:
        return "eager"

    def process_batch_result(self, batch: Any) -> None:
        if batch is None:
            raise ValueError("the server's own")

    def event_loop_pp(self, turns: int) -> None:
        self.init_pp_loop_state()
        for turn in range(turns):
            mb_id = turn % self.pp_loop_size
            self.process_input_requests(self.recv_requests())
            self.turns = turn
            self.mbs[mb_id] = self.get_next_batch_to_run()
            if self.mbs[mb_id] is not None:
                self.results.append(self._pp_launch_batch(mb_id, self.mbs[mb_id]))
            following = self.mbs[(mb_id + 1) % self.pp_loop_size]
            if following is not None:
                self.process_batch_result(following)


def fresh(
    base: Path, *, always: bool = True, gpu_timing: bool = False
) -> tuple[type[Scheduler], type[GraphRunner], Recorder]:
    """Copies of the classes with the probe in them, under SGLang's module names for as long as it takes to wrap them."""
    mixin = type("SchedulerPPMixin", (), dict(vars(Mixin)))
    scheduler = type(
        "Scheduler", (mixin,), {k: v for k, v in vars(Scheduler).items() if k not in ("__dict__", "__weakref__")}
    )
    runner = type(
        "CudaGraphRunner", (), {k: v for k, v in vars(GraphRunner).items() if k not in ("__dict__", "__weakref__")}
    )
    recorder = Recorder(always=always, gpu_timing=gpu_timing, base=str(base))
    modules = {
        targets.SCHEDULER_MODULE: {"Scheduler": scheduler},
        "sglang.srt.model_executor.cuda_graph_runner": {"CudaGraphRunner": runner},
    }
    hook = Hook(recorder)
    hook.wrap_modules({name: _module(name, values) for name, values in modules.items()})
    return scheduler, runner, recorder


def _module(name: str, values: dict[str, Any]) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(values)
    return module

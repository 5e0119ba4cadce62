"""The records of a collector that watches many ranks, made up, in time with a clock."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from ppscope.records import (
    AnyCommand,
    AnyRecord,
    Cost,
    FrameDef,
    GpuDevice,
    GpuRef,
    GpuSample,
    Hello,
    HostSamples,
    LoadSample,
    LoopSample,
    Rank,
    RankKey,
    Server,
    StackDef,
    StackSpans,
)

SECOND = 1_000_000_000
START = 10_000 * SECOND
WINDOW_S = 2
_SRT = "/srv/sglang/srt/"
STACKS = (
    (
        "event_loop_pp",
        "managers/scheduler_pp_mixin.py",
        "_pp_recv_pyobj_from_prev_stage",
        "managers/scheduler_pp_mixin.py",
    ),
    ("event_loop_pp", "managers/scheduler_pp_mixin.py", "run_batch", "managers/scheduler.py"),
    ("event_loop_pp", "managers/scheduler_pp_mixin.py", "replay", "model_executor/cuda_graph_runner.py"),
    ("event_loop_pp", "managers/scheduler_pp_mixin.py", "process_batch_result", "managers/scheduler.py"),
)


class Stream:
    """A collector's records, as far as the stream's own clock has come."""

    live = True

    def __init__(self, ranks: int, speed: float) -> None:
        self.speed = speed
        self._began = time.monotonic_ns()
        self.keys = [RankKey(0, pp, tp) for pp in range(8) for tp in range(max(ranks // 8, 1))][:ranks]
        self._to_come = self._records()
        self._next = next(self._to_come)
        self.sent = 0

    def clock(self) -> int:
        """The node's present."""
        return START + int((time.monotonic_ns() - self._began) * self.speed)

    def _records(self) -> Iterator[tuple[int, AnyRecord]]:
        rng = random.Random(1)
        gpu = [GpuRef(i, f"GPU-{i}", i, "nvml_pid") for i in range(len(self.keys))]
        ranks = tuple(
            Rank(key, 1000 + i, 1, f"sglang::scheduler_PP{key.pp}_TP{key.tp}", gpu[i], main_tid=1000 + i)
            for i, key in enumerate(self.keys)
        )
        yield START, Hello(1, "0.1.0", "bench", START, START, 1)
        yield START, Server(START, 999, 1, "launch_server", "serving", ranks, 8, len(ranks) // 8 or 1, 1, device="cuda")
        for i, (outer, outer_file, inner, inner_file) in enumerate(STACKS):
            yield START, FrameDef(2 * i, outer, _SRT + outer_file, 100 + i)
            yield START, FrameDef(2 * i + 1, inner, _SRT + inner_file, 200 + i)
            yield START, StackDef(i, (2 * i, 2 * i + 1))
        for i in range(len(ranks)):
            yield START, GpuDevice(i, f"GPU-{i}", "H200", 700.0, 141 << 30)
        tick = 0
        while True:
            now = START + tick * SECOND // 10
            for i, key in enumerate(self.keys):
                if tick % 20 == i % 20:
                    yield now, self._window(rng, i, key, now)
                if tick % 5 == i % 5:
                    rows = [now - (24 - row) * SECOND // 50 for row in range(25)]
                    yield now, HostSamples(key, 1000 + i, rows, rows, rows, "S" * 25, now, 1 << 34, 40)
                if tick % 2 == i % 2:
                    yield (
                        now,
                        GpuSample(
                            i,
                            now,
                            400.0 + i,
                            700.0,
                            80,
                            40,
                            100 << 30,
                            1980,
                            3200,
                            60,
                            throttle_reasons=0,
                            pids=(1000 + i,),
                        ),
                    )
            if tick % 10 == 0:
                key = self.keys[tick // 10 % len(self.keys)]
                yield (
                    now,
                    LoopSample(key, now, 1_000_000, 1, "event_loop_pp", tick // 10 % 8, (tick // 10 + 1) % 8, True),
                )
                yield now, LoadSample(now, "metrics", None, 0, 900.0, micro_batch=4.0)
                yield now, Cost(now, 0.1, 0.4, 50.0)
            tick += 1

    def _window(self, rng: random.Random, i: int, key: RankKey, now: int) -> StackSpans:
        """Two seconds of spans of 20 to 60 ms, as a decoding pipeline at 50 Hz has them."""
        start = at = now - WINDOW_S * SECOND
        starts, ends, stacks = [], [], []
        while at < now:
            length = rng.randrange(20, 61, 20) * 1_000_000
            starts.append(at)
            ends.append(min(at + length, now))
            stacks.append(rng.randrange(len(STACKS)))
            at += length
        return StackSpans(key, 1000 + i, "MainThread", start, now, SECOND // 50, starts, ends, stacks)

    def drain(self) -> list[AnyRecord]:
        """What is due."""
        due, now = [], self.clock()
        while self._next[0] <= now:
            due.append(self._next[1])
            self._next = next(self._to_come)
        self.sent += len(due)
        return due

    def wait(self, timeout_s: float) -> bool:
        """Something always comes."""
        return True

    def send(self, command: AnyCommand) -> None:
        """Nobody listens."""

    def close(self) -> None:
        """Nothing to end."""

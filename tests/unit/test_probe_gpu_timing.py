"""Forwards on the GPU's clock, with a made-up GPU whose clock starts elsewhere and runs at its own pace."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.probe import layout, wrappers
from ppscope.probe.gpu_timing import GpuTimer
from tests.unit.probe_tools import KEY, batch, fresh, reader, rows

FACTS = (1, 8, 8, 0, 2, 1)


class Gpu:
    """One stream: work queues up, an event happens when all before it is done. Times in ns; host and device clock differ by `shift`."""

    def __init__(self, shift: int = -(10**15)) -> None:
        self.host_ns = 10**12
        self.shift = shift
        self.free_ns = 0

    def now(self) -> int:
        return self.host_ns

    def compute(self, took_ns: int) -> tuple[int, int]:
        start = max(self.host_ns, self.free_ns)
        self.free_ns = start + took_ns
        return start, self.free_ns

    def event(self, *, enable_timing: bool) -> Event:
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.at_ns: int | None = None

    def record(self) -> None:
        self.at_ns = max(self.gpu.host_ns, self.gpu.free_ns)

    def query(self) -> bool:
        return self.at_ns is not None and self.at_ns <= self.gpu.host_ns

    def elapsed_time(self, other: Event) -> float:
        assert self.query(), "reading an event that has not happened raises in CUDA"
        assert other.query(), "reading an event that has not happened raises in CUDA"
        assert self.at_ns is not None
        assert other.at_ns is not None
        return (other.at_ns - self.at_ns) / 1e6

    def synchronize(self) -> None:
        raise AssertionError("the probe never waits")


@given(
    st.lists(
        st.tuples(st.integers(1_000, 3_000_000), st.integers(10_000, 9_000_000), st.integers(0, 20_000_000)),
        min_size=3,
        max_size=40,
    )
)
def test_forwards_lie_where_they_ran_to_the_error_that_is_told(steps: list[tuple[int, int, int]]) -> None:
    gpu = Gpu()
    out: list[tuple[int, int, Any]] = []
    timer = GpuTimer(gpu.event, lambda start, end, facts: out.append((start, end, facts)), gpu.now)
    truth = []
    for launch_ns, compute_ns, pause_ns in steps:
        timer.poll()
        ticket = timer.before()
        assert ticket is not None
        gpu.host_ns += launch_ns
        truth.append(gpu.compute(compute_ns))
        timer.after(ticket, FACTS)
        gpu.host_ns += pause_ns
    gpu.host_ns += 10**9
    timer.poll()
    assert len(out) == len(truth)
    starts = [start for start, _, _ in out]
    assert starts == sorted(starts)
    _, end, facts = out[-1]
    assert facts == FACTS
    assert truth[-1][1] - timer.error_ns - 1000 <= end <= truth[-1][1] + 1000
    assert timer.error_ns >= 0


def test_an_idle_gpu_makes_the_placement_good_to_microseconds() -> None:
    gpu = Gpu()
    out: list[tuple[int, int]] = []
    timer = GpuTimer(gpu.event, lambda start, end, _: out.append((start, end)), gpu.now)
    truth = []
    for _ in range(50):
        ticket = timer.before()
        assert ticket is not None
        truth.append(gpu.compute(5_000_000))
        gpu.host_ns += 200_000
        timer.after(ticket, FACTS)
        gpu.host_ns += 10_000_000
        timer.poll()
    assert all(abs(a[0] - b[0]) < 2_000 and abs(a[1] - b[1]) < 2_000 for a, b in zip(out, truth, strict=True))


def test_a_stuck_gpu_costs_no_more_than_a_bounded_number_of_events() -> None:
    gpu = Gpu()
    made: list[Event] = []

    def make(*, enable_timing: bool) -> Event:
        made.append(gpu.event(enable_timing=enable_timing))
        return made[-1]

    timer = GpuTimer(make, lambda *_: pytest.fail("nothing is done"), gpu.now)
    gpu.compute(10**15)
    for _ in range(500):
        timer.poll()
        ticket = timer.before()
        if ticket is not None:
            timer.after(ticket, FACTS)
    assert len(made) <= 128
    assert timer.skipped == 500 - 64


def test_events_are_used_again_and_the_anchor_is_renewed() -> None:
    gpu = Gpu()
    made = 0

    def make(*, enable_timing: bool) -> Event:
        nonlocal made
        made += 1
        return gpu.event(enable_timing=enable_timing)

    out: list[int] = []
    timer = GpuTimer(make, lambda start, *_: out.append(start), gpu.now)
    for _ in range(3000):
        ticket = timer.before()
        assert ticket is not None
        gpu.compute(1_000_000)
        timer.after(ticket, FACTS)
        gpu.host_ns += 20_000_000
        timer.poll()
    assert made <= 6
    assert len(out) == 3000
    assert out == sorted(out)


def test_without_cuda_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    timer, why = GpuTimer.if_possible(lambda *_: None)
    assert timer is None
    assert "no CUDA" in why


def test_a_forward_that_ended_before_a_long_sleep_is_no_anchor_after_it(tmp_path: Path) -> None:
    """A view that comes back after hours: what was on its way when the last one left is never read as new."""
    gpu = Gpu()
    scheduler, _, recorder = fresh(tmp_path)
    scheduler(lambda turn: batch("DECODE", 1)).event_loop_pp(1)
    told: list[tuple[int, int]] = []
    recorder.gpu = timer = GpuTimer(gpu.event, lambda start, end, _: told.append((start, end)), gpu.now)

    def forward() -> tuple[int, int]:
        ticket = timer.before()
        assert ticket is not None
        ran = gpu.compute(3_000_000)
        timer.after(ticket, FACTS)
        return ran

    for _ in range(3):
        forward()
        gpu.host_ns += 20_000_000
        timer.poll()
    forward()
    recorder.sleep()
    told.clear()
    gpu.host_ns += 5 * 3600 * 10**9
    recorder.wake()
    timer.poll()
    assert not told
    assert timer.error_ns == -1
    ran = forward()
    gpu.host_ns += 4_000_000
    timer.poll()
    assert told == [ran]
    assert timer.error_ns <= 4_000_000


@pytest.mark.parametrize("broken", [False, True])
def test_the_wait_for_the_stage_before_is_no_part_of_a_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    """0.5.6 receives its activations inside run_batch."""
    gpu = Gpu(shift=0)
    scheduler, _, recorder = fresh(tmp_path)

    def wait_for_stage_before() -> str:
        gpu.host_ns += 50_000_000  # for what the tensors are like, on the host
        gpu.compute(30_000_000)  # for the tensors, on the stream
        return "tensors"

    receive = wrappers.receiving(recorder, wait_for_stage_before)

    def forward(self: object) -> str:
        assert receive() == "tensors"
        gpu.compute(3_000_000)
        return "eager"

    monkeypatch.setattr(scheduler, "forward", forward)
    loop = scheduler(lambda turn: batch("DECODE", 2))
    recorder.slots, recorder.turn = 1, 0
    recorder.begin(loop)
    told: list[int] = []
    recorder.gpu = timer = GpuTimer(gpu.event, lambda start, end, _: told.append(end - start), gpu.now)
    if broken:
        monkeypatch.setattr(Event, "record", _fails_the_second_time(Event.record))
    for _ in range(3):
        assert loop.run_batch(batch("DECODE", 2)) == "eager"
        gpu.host_ns = gpu.free_ns + 1_000_000
        timer.poll()
    assert recorder.errors == (1 if broken else 0)
    assert told[1:] == [3_000_000] * 2
    assert receive() == "tensors", "the outputs, outside of a forward"
    assert recorder.ticket is None


def _fails_the_second_time(record: Callable[[Event], None]) -> Callable[[Event], None]:
    calls = 0

    def broken(event: Event) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("CUDA error")
        record(event)

    return broken


def test_asked_for_it_runs_in_a_loop_with_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(shift=0)
    cuda = SimpleNamespace(is_available=lambda: True, Event=gpu.event)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    scheduler, _, recorder = fresh(tmp_path, gpu_timing=True)

    def forward(self: object) -> str:
        gpu.compute(3_000_000)
        gpu.host_ns += 1_000_000
        return "eager"

    def schedule(self: Any) -> Any:
        gpu.host_ns = max(gpu.host_ns, gpu.free_ns) + 1_000_000
        return self.plan(self.turns)

    monkeypatch.setattr(scheduler, "forward", forward)
    monkeypatch.setattr(scheduler, "get_next_batch_to_run", schedule)
    scheduler(lambda turn: batch("DECODE", 2)).event_loop_pp(12)
    assert recorder.errors == 0
    ring = reader(tmp_path)
    assert ring.head().flags & layout.GPU_TIMING
    assert ring.head().gpu_timing == ""
    forwards = [row for row in rows(ring.read(KEY, 1 << 62)) if row["kind"] == "GPU_FORWARD"]
    assert len(forwards) >= 10
    assert {(row["end"] - row["start"], row["mode"], row["bs"]) for row in forwards} == {(3_000_000, "DECODE", 2)}
    assert [row["mb"] for row in forwards] == [turn % 3 for turn in range(len(forwards))]

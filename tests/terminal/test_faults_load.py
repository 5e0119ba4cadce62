"""Too much of everything: native threads, exact spans, a view that is suspended and reads nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from ppscope import emulator
from ppscope.probe import layout
from ppscope.probe.ring import started_ticks
from ppscope.records import AnyRecord, Hello, ProbeSpans, Rank, RankKey, Server, SourceStatus, StackSpans
from ppscope.session import Session
from ppscope.sources import stacks
from ppscope.sources.probe import ProbeSource
from ppscope.sources.stacks import StackSource
from ppscope.sources.stacks_plan import BUDGET_CORES, MIN_HZ, RankLoad, Slot, plan
from tests.fed_stream import FedStream
from tests.terminal.faults_tools import BARS, STAGES, collector_of, drawn, leave, live, ranks_of, stage_lines
from tests.terminal.terminal import PPSCOPE, Terminal, all_gone

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
THREADS = 512
SPANS_PER_S = 10_000


def until(true: Callable[[], object]) -> None:
    """Wait for something that must come; the test fails when it never does."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def server_of(*pids: int) -> Server:
    ranks = tuple(
        Rank(RankKey(0, pp, 0), pid, started_ticks(pid) or 0, f"sglang::scheduler_PP{pp}")
        for pp, pid in enumerate(pids)
    )
    return Server(0, pids[0], 1, "launch_server", "serving", ranks, len(pids), 1, 1)


@contextmanager
def running(script: str, count: int = 1) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Python processes of a script that says `up` once it is ready; skips where it says anything else."""
    command = [sys.executable, "-c", textwrap.dedent(script)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) for _ in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            said = process.stdout.readline().decode().strip()
            if said != "up":
                pytest.skip(said or "the process could not be started")
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_sixty_four_ranks_are_all_seen_at_a_lower_rate_and_keys_are_answered() -> None:
    """More rows than lines: the cursor brings every stage to the screen, each with its bars; then all of it goes."""
    with (
        emulator.start("serial", 32, extra=("--tp", "2")) as server,
        Terminal([str(PPSCOPE), "attach", str(server.pid)]) as terminal,
    ):
        terminal.wait_for(lambda text: re.search(r"PP1\b.*\d+/600 W", text) is not None, PATIENCE_S)
        terminal.send("\x1b[6~" * 16)  # page down, to the last stage
        terminal.wait_for(lambda text: re.search(r"^[▸> ] +PP31\b", text, re.MULTILINE) is not None, PATIENCE_S)
        terminal.wait_for(lambda text: all(BARS.search(row[60:]) for row in stage_lines(text)), PATIENCE_S)
        rate = re.search(r"(\d+) Hz", terminal.wait_for(lambda text: re.search(r"\d+ Hz", text) is not None))
        assert rate is not None
        assert int(rate[1]) < 50, "the rate falls, the budget holds"
        terminal.send("?")
        terminal.wait_for("command palette")
        terminal.send("\x1b")
        terminal.wait_for(lambda text: "command palette" not in text)
        leave(terminal)


THREADED = f"""
    import ctypes, sys, time
    libc = ctypes.CDLL(None)
    libc.prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)  # anyone may trace
    thread = ctypes.c_ulong()
    for _ in range({THREADS}):
        if libc.pthread_create(ctypes.byref(thread), None, libc.pause, None):
            sys.exit(print("this machine gives no process so many threads"))
    def run_batch():
        time.sleep(0.02)
    def event_loop_pp():
        while True:
            run_batch()
    print("up", flush=True)
    event_loop_pp()
"""


def test_hundreds_of_native_threads_lower_the_rate_and_not_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ranks of 512 threads each, sampled by the real py-spy; threads that have no Python are not drawn."""
    plans: list[tuple[list[RankLoad], dict[RankKey, Slot]]] = []

    def planned(
        ranks: Sequence[RankLoad], requested_hz: float, budget_cores: float, turn: int, lengths_s: Sequence[float]
    ) -> dict[RankKey, Slot]:
        slots = plan(ranks, requested_hz, budget_cores, turn, lengths_s)
        plans.append((list(ranks), slots))
        return slots

    monkeypatch.setattr(stacks, "plan", planned)
    heard: list[AnyRecord] = []
    with running(THREADED, 8) as targets:
        pids = [target.pid for target in targets]
        source = StackSource(heard.append)
        source.start(server_of(*pids))
        try:
            seen: Callable[[int], int] = lambda pid: sum(  # noqa: E731
                isinstance(record, StackSpans) and record.tid == pid for record in list(heard)
            )
            until(lambda: all(seen(pid) >= 3 for pid in pids))
            before = len(plans)
            until(lambda: len(plans) > before)
            chosen = source.rate_hz
        finally:
            source.stop()
    assert chosen is not None
    for loads, slots in plans:
        assert all(load.threads > THREADS for load in loads)
        assert all(MIN_HZ <= slot.rate_hz < 50 for slot in slots.values())
        assert sum(load.cores(slots[load.key].rate_hz, slots[load.key].window_s) for load in loads if load.key in slots) <= (
            BUDGET_CORES * 1.0001
        )  # fmt: skip
    assert chosen < 50
    drawn_threads = {record.tid for record in heard if isinstance(record, StackSpans)}
    assert drawn_threads == set(pids), "512 parked threads are not 512 lanes"


# Writes spans as the probe does: at 10,000 a second until a line comes, then five rings full as fast as it can.
PROBED = """
    import select, sys, time
    from types import SimpleNamespace
    from ppscope.probe import layout
    from ppscope.probe.recorder import Recorder
    recorder = Recorder(always=True, base={base!r})
    recorder.slots, recorder.turn = 2, 0
    recorder.begin(SimpleNamespace(pp_rank=0, tp_rank=0, dp_rank=None))
    assert recorder.on, recorder.facts
    print("up", flush=True)
    def some(count, width_ns):
        for _ in range(count):
            end = time.monotonic_ns()
            recorder.write(layout.SEND, end - width_ns, end, 0, 0)
        recorder.live()
    due, last = time.monotonic(), time.monotonic_ns()
    while not select.select([sys.stdin], [], [], 0)[0]:
        some({rate} // 100, 50)
        due += 0.01
        time.sleep(max(due - time.monotonic(), 0))
    sys.stdin.readline()
    print(recorder.seq, flush=True)
    sys.stdin.readline()
    for _ in range(5 * layout.CAPACITY // 1000):
        some(1000, 0)
    print(recorder.seq, flush=True)
    sys.stdin.readline()
"""


def test_ten_thousand_spans_a_second_are_read_and_an_overrun_is_counted(tmp_path: Path) -> None:
    """A reader that keeps up loses none; one that was frozen while the ring came round says how many, and goes on."""
    with running(PROBED.format(base=str(tmp_path), rate=SPANS_PER_S)) as (process,):
        server = server_of(process.pid)
        stream, heard = FedStream(), list[AnyRecord]()

        def hear(record: AnyRecord) -> None:
            heard.append(record)
            stream.add(record)

        def told(word: str) -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{word}\n".encode())
            process.stdin.flush()
            return int(process.stdout.readline())

        def read() -> list[ProbeSpans]:
            return [record for record in list(heard) if isinstance(record, ProbeSpans)]

        hear(Hello(1, "", "here", time.monotonic_ns(), time.time_ns(), 1, "", ""))
        hear(server)
        session = Session(stream)
        source = ProbeSource(hear, (), str(tmp_path))
        source.start(server)
        try:
            until(lambda: sum(len(spans.starts_ns) for spans in read()) > 2 * SPANS_PER_S)
            written = told("stop")
            until(lambda: read()[-1].sequence + len(read()[-1].starts_ns) - 1 == written)
            assert [spans.lost for spans in read()] == [0] * len(read())
            session.poll()
            lane = session.spans(RankKey(0, 0, 0), 0, time.monotonic_ns())
            assert lane[-1].end_ns == read()[-1].ends_ns[-1], "the view is at the last span"
            source.stop()  # frozen: nothing reads the ring, and the next view comes late
            first = len(heard)
            frozen = ProbeSource(hear, (), str(tmp_path))
            frozen.update(server)
            frozen._look()
            written = told("flood")
            frozen._look()
            time.sleep(0.01)  # the newest record is left alone while it is younger than a millisecond
            frozen.update(server)  # the state is told at once
            frozen._look()
            late = [record for record in heard[first:] if isinstance(record, ProbeSpans)]
            got = sum(len(spans.starts_ns) for spans in late)
            assert sum(spans.lost for spans in late) > 3 * layout.CAPACITY
            assert late[-1].sequence + len(late[-1].starts_ns) - 1 == written
            assert got <= 2 * layout.CAPACITY, "no more than the ring at the attach and the ring at the end"
            assert sum(spans.lost for spans in late) + got == written - late[0].sequence + 1
            assert any(isinstance(r, SourceStatus) and "overwritten" in r.message for r in heard[first:])
            session.poll()
            exact = session.states[RankKey(0, 0, 0)].exact
            assert exact is not None
            assert exact.lost == sum(spans.lost for spans in late)
            frozen.stop()
        finally:
            source.stop()


SMALL_BUFFER = """
    import sys
    if "ppscope.collect.collector" in sys.orig_argv:
        from ppscope.collect import stream
        class Small(stream.FrameWriter):
            def __init__(self, fd):
                super().__init__(fd, limit_bytes=64 * 1024)
            def put(self, record):
                super().put(record)
                if self._dropped[0]:
                    open({marker!r}, "w").close()
        stream.FrameWriter = Small
"""


@pytest.fixture(scope="module")
def server() -> Iterator[emulator.EmulatedServer]:
    with emulator.start("serial", STAGES) as running_server:
        yield running_server


def test_a_suspended_view_is_told_what_was_dropped(server: emulator.EmulatedServer, tmp_path: Path) -> None:
    """Really suspended by the shell, until the collector's buffer, small here, is full; then `fg`."""
    marker = tmp_path / "dropped"
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(SMALL_BUFFER.format(marker=str(marker))))
    shell = [shutil.which("bash") or "sh", "--norc", "-i"]
    with Terminal(shell, env={"PS1": "$ ", "PYTHONPATH": str(tmp_path)}) as terminal:
        terminal.wait_for("$ ")
        terminal.send(f"{PPSCOPE} attach {server.pid} --rate 200\r")
        terminal.wait_for(live())
        everything = terminal.descendants()
        collector = collector_of(terminal)
        assert not marker.exists()
        terminal.send("\x1a")
        terminal.wait_for("Stopped")
        until(marker.exists)
        held = collector.memory_info().rss
        time.sleep(2.0)
        assert collector.memory_info().rss < held + (8 << 20), "what is dropped is not kept"
        assert {p.status() for p in ranks_of(server.pid)}.isdisjoint({psutil.STATUS_STOPPED})
        terminal.send("fg\r")
        terminal.wait_for("records were dropped while nothing was read here")
        filled = drawn(terminal.wait_for(live()))
        terminal.wait_for(lambda text: drawn(text) > filled + STAGES)
        terminal.send("q")
        assert all_gone(everything) == []
        terminal.send("\rexit\r")
        terminal.wait()

"""The stack and dump sources with a py-spy that behaves as told, and with the real one on a small Python process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from ppscope.probe.ring import started_ticks
from ppscope.records import (
    AnyRecord,
    DumpNow,
    FrameDef,
    LoopSample,
    Rank,
    RankKey,
    Server,
    SetRate,
    SourceStatus,
    StackDef,
    StackSpans,
)
from ppscope.sources import stacks, stacks_dumps, stacks_plan, stacks_windows
from ppscope.sources.base import Source
from ppscope.sources.stacks import StackSource, split_main
from ppscope.sources.stacks_dump_run import run_dump
from ppscope.sources.stacks_dumps import DumpSource
from ppscope.sources.stacks_intern import StackTable
from ppscope.sources.stacks_plan import BUDGET_CORES, LONG_WINDOW_S
from ppscope.sources.stacks_pyspy import find_pyspy
from ppscope.sources.stacks_room import LEAST_CORES, Room
from ppscope.sources.stacks_windows import ThreadSpans, Window, catches_interrupts

PATIENCE_S = 20.0
KEY = RankKey(0, 0, 0)
R = TypeVar("R", bound=AnyRecord)


class Heard:
    """Records as they arrive."""

    def __init__(self) -> None:
        self.records: list[AnyRecord] = []

    def __call__(self, record: AnyRecord) -> None:
        self.records.append(record)

    def all(self, kind: type[R]) -> list[R]:
        return [record for record in list(self.records) if isinstance(record, kind)]

    def status(self, state: str) -> SourceStatus | None:
        return next((record for record in self.all(SourceStatus) if record.state == state), None)


def until(true: Callable[[], object]) -> None:
    """Wait for something that must come; the test fails when it never does."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def server_of(*pids: int, ticks: int | None = None) -> Server:
    ranks = tuple(
        Rank(
            RankKey(0, pp, 0), pid, ticks if ticks is not None else started_ticks(pid) or 0, f"sglang::scheduler_PP{pp}"
        )
        for pp, pid in enumerate(pids)
    )
    return Server(0, pids[0], 1, "launch_server", "serving", ranks, len(pids), 1, 1)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def run() -> Iterator[Callable[[Source, Server], Source]]:
    started: list[Source] = []

    def start(source: Source, server: Server) -> Source:
        started.append(source)
        source.start(server)
        return source

    yield start
    for source in started:
        source.stop()
        assert source.children() == ()
    assert not [thread for thread in threading.enumerate() if thread.name in ("ppscope-stacks", "ppscope-dumps")]


TARGET = """
    import ctypes, threading, time
    ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)  # anyone may trace
    threading.Thread(target=time.sleep, args=(1000,), daemon=True, name="sleeper").start()
    def run_batch():
        end = time.time() + 0.03
        while time.time() < end:
            pass
    def event_loop_pp():
        mb_id, prompt = 1, "a secret"
        while True:
            next_mb_id = (mb_id + 1) % 4
            run_batch()
            time.sleep(0.03)
    def run_scheduler_process(gpu_id, pp_rank):
        print("up", flush=True)
        event_loop_pp()
    run_scheduler_process(5, 0)
"""


@pytest.fixture
def target() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(TARGET)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    yield process.pid
    process.kill()
    process.communicate()


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Put a shell script in py-spy's place; `$out` is the file it is asked to write."""

    def install(body: str) -> str:
        script = tmp_path / "py-spy"
        script.write_text(f"#!/bin/sh\nfor out; do :; done\n{body}\n")
        script.chmod(0o700)
        monkeypatch.setattr(stacks, "find_pyspy", lambda: str(script))
        monkeypatch.setattr(stacks_dumps, "find_pyspy", lambda: str(script))
        return str(script)

    monkeypatch.setattr(stacks, "BACKOFF_S", (0.05,))
    monkeypatch.setattr(stacks, "FIRST_WINDOW_S", 0.1)
    return install


needs_pyspy = pytest.mark.skipif(find_pyspy() is None, reason="py-spy is not installed")
GOOD = '[{"name":"f","ph":"B","tid":1,"ts":10},{"name":"f","ph":"E","tid":1,"ts":99999}]'
SAMPLED = json.dumps(
    [
        {"name": name, "ph": phase, "tid": 1, "ts": at_us, "args": {"filename": file, "line": 1}}
        for phase, at_us, order in (("B", 10, 1), ("E", 99999, -1))
        for name, file in (("thread (1): MainThread", ""), ("<module>", "s.py"), ("loop", "s.py"))[::order]
    ]
)
LOOPING = "while :; do sleep 0.02; done"


@needs_pyspy
def test_windows_of_a_real_process_follow_each_other(
    target: int, heard: Heard, run: Callable[[Source, Server], Source]
) -> None:
    source = StackSource(heard)
    run(source, server_of(target))
    main: Callable[[], list[StackSpans]] = lambda: [spans for spans in heard.all(StackSpans) if spans.tid == target]  # noqa: E731
    until(lambda: len(main()) >= 2)
    frames = {frame.id: frame.function for frame in heard.all(FrameDef)}
    stacks_seen = {stack.id: [frames[i] for i in stack.frames] for stack in heard.all(StackDef)}
    edge = 0
    for spans in main():
        assert edge <= spans.start_ns < spans.end_ns <= time.monotonic_ns()
        edge = spans.start_ns
        for start, end, stack in zip(spans.starts_ns, spans.ends_ns, spans.stacks, strict=True):
            assert edge <= start < end <= spans.end_ns
            assert stacks_seen[stack][0] == "<module>"
            edge = end
        assert spans.thread == "MainThread"
    assert any(names[-1].endswith("run_batch") for names in stacks_seen.values())
    assert len([spans for spans in heard.all(StackSpans) if spans.thread == "sleeper"]) == 1, (
        "a constant stack goes out once"
    )
    assert source.rate_hz == 50.0
    source.obey(SetRate(10.0))
    until(lambda: source.rate_hz == 10.0)


@needs_pyspy
def test_dumps_of_a_real_process_tell_rank_and_micro_batch_only(
    target: int, heard: Heard, run: Callable[[Source, Server], Source]
) -> None:
    learned: list[tuple[RankKey, dict[str, int]]] = []
    source = DumpSource(heard, on_facts=lambda key, facts: learned.append((key, facts)))
    run(source, server_of(target))
    source.obey(DumpNow(5, KEY))
    until(lambda: len(heard.all(LoopSample)) >= 6)
    sample = heard.all(LoopSample)[-1]
    assert (sample.loop, sample.mb_id, sample.next_mb_id, sample.batch, sample.occupied) == (
        "event_loop_pp",
        1,
        2,
        None,
        None,
    )
    assert learned == [(KEY, {"gpu_id": 5, "pp_rank": 0})]
    assert source.rank_facts[KEY]["gpu_id"] == 5
    assert "secret" not in repr(heard.records)


@needs_pyspy
def test_nothing_is_left_when_the_collector_is_killed(target: int) -> None:
    code = f"""
        import time
        from ppscope.sources.stacks import StackSource
        from tests.unit.test_stacks_source import server_of
        source = StackSource(lambda record: None)
        source.start(server_of({target}))
        while not source.children():
            time.sleep(0.01)
        print(*source.children(), flush=True)
        time.sleep(1000)
    """
    collector = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert collector.stdout is not None
    children = [int(pid) for pid in collector.stdout.readline().split()]
    assert children
    assert all(b"py-spy" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children)
    collector.kill()
    collector.communicate()
    until(lambda: not any(_running(pid) for pid in children))


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def test_a_missing_pyspy_is_said_with_its_remedy(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, source in ((stacks, StackSource(heard)), (stacks_dumps, DumpSource(heard))):
        monkeypatch.setattr(module, "find_pyspy", lambda: None)
        source.start(server_of(os.getpid()))
        source.stop()
    assert [(s.name, s.state, s.remedy) for s in heard.all(SourceStatus)] == [
        ("stacks", "dead", "pip install py-spy"),
        ("dumps", "dead", "pip install py-spy"),
    ]


@pytest.mark.parametrize("make", [StackSource, DumpSource])
@pytest.mark.parametrize(
    ("body", "state", "said"),
    [
        ("echo 'Permission Denied: Try running again' >&2; exit 1", "dead", "process"),
        (
            "echo 'Error: Failed to find python version from target process' >&2; echo; exit 1",
            "dead",
            "does not run Python",
        ),
        ("exit 3", "dead", "ended with 3"),
        ("kill -9 $$", "dead", "killed by SIGKILL"),
    ],
)
def test_a_failure_is_said_and_tried_again(
    make: type[StackSource] | type[DumpSource], body: str, state: str, said: str, heard: Heard,
    pretend: Callable[[str], str], run: Callable[[Source, Server], Source], tmp_path: Path,
) -> None:  # fmt: skip
    pretend(f"echo x >> {tmp_path}/calls; {body}")
    run(make(heard), server_of(os.getpid()))
    until(lambda: heard.status(state))
    status = heard.status(state)
    assert status is not None
    assert said in status.message
    assert status.rank == KEY
    if make is StackSource:
        until(lambda: len((tmp_path / "calls").read_text().split()) >= 3)
    assert len(heard.all(SourceStatus)) == 1, "said once, not at every attempt"


def test_a_rank_that_fails_does_not_stop_the_others(
    heard: Heard, pretend: Callable[[str], str], run: Callable[[Source, Server], Source], target: int
) -> None:
    pretend(
        f'case "$*" in *"-p {target} "*) echo bad >&2; exit 1;; esac\n'
        f"finish() {{ cat > $out <<'END'\n{GOOD}\nEND\nexit 0; }}\ntrap finish INT\n{LOOPING}"
    )
    run(StackSource(heard), server_of(target, os.getpid()))
    until(lambda: heard.status("dead") and heard.status("ok"))
    ok, dead = heard.status("ok"), heard.status("dead")
    assert ok is not None
    assert dead is not None
    assert (dead.rank, ok.rank) == (RankKey(0, 0, 0), RankKey(0, 1, 0))


def test_a_pyspy_that_starts_slowly_is_given_time(
    heard: Heard, pretend: Callable[[str], str], run: Callable[[Source, Server], Source]
) -> None:
    pretend(f"sleep 0.8; finish() {{ cat > $out <<'END'\n{GOOD}\nEND\nexit 0; }}\ntrap finish INT\n{LOOPING}")
    run(StackSource(heard), server_of(os.getpid()))
    until(lambda: heard.all(SourceStatus))
    assert [status.state for status in heard.all(SourceStatus)] == ["ok"]


@pytest.mark.parametrize("window_s", [0.2, 0.4])
def test_ranks_that_do_not_fit_the_budget_are_all_seen_in_turn(
    heard: Heard,
    pretend: Callable[[str], str],
    run: Callable[[Source, Server], Source],
    monkeypatch: pytest.MonkeyPatch,
    window_s: float,
) -> None:
    """Also where not even one rank fits: sampling goes on, one after the other, again and again, however long windows outlast a turn."""
    monkeypatch.setattr(stacks, "REPLAN_S", 0.1)
    monkeypatch.setattr(stacks, "LONG_WINDOW_S", window_s)
    monkeypatch.setattr(stacks_plan, "LONG_WINDOW_S", window_s)
    pretend(f"finish() {{ cat > $out <<'END'\n{SAMPLED}\nEND\nexit 0; }}\ntrap finish INT\n{LOOPING}")
    source = StackSource(heard, budget_cores=0.0001)
    run(source, server_of(*[os.getpid()] * 3))
    # The first window of each is not held to the budget.
    everyone = [RankKey(0, pp, 0) for pp in range(3)]

    def seen() -> list[int]:
        return [sum(spans.rank == key for spans in heard.all(StackSpans)) for key in everyone]

    until(lambda: max(seen()) >= 5)
    assert min(seen()) >= 3, "nobody's turn goes by"


def test_what_a_window_holds_when_all_ends_is_told(
    heard: Heard,
    pretend: Callable[[str], str],
    run: Callable[[Source, Server], Source],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A recording of a few seconds would else lack its last ones, with long windows nearly all."""
    monkeypatch.setattr(stacks, "FIRST_WINDOW_S", 60.0)
    pretend(f"finish() {{ cat > $out <<'END'\n{SAMPLED}\nEND\nexit 0; }}\ntrap finish INT\n{LOOPING}")
    source = run(StackSource(heard), server_of(os.getpid(), os.getpid()))
    until(lambda: len(source.children()) == 2 and all(catches_interrupts(pid) for pid in source.children()))
    assert not heard.all(StackSpans)
    source.stop()
    assert {spans.rank for spans in heard.all(StackSpans)} == {RankKey(0, 0, 0), RankKey(0, 1, 0)}
    assert not source.children()


@pytest.mark.parametrize(("asked", "rates_hz"), [(None, range(10, 40)), (50.0, [50]), (7.0, [7])])
def test_where_few_cores_are_idle_ranks_are_sampled_less_unless_a_rate_was_asked_for(
    asked: float | None, rates_hz: Sequence[int], heard: Heard, pretend: Callable[[str], str],
    run: Callable[[Source, Server], Source], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    lengths: list[float] = []
    begun = Window.__init__

    def noted(window: Window, binary: str, pid: int, hz: int, length_s: float) -> None:
        lengths.append(length_s)
        begun(window, binary, pid, hz, length_s)

    monkeypatch.setattr(Window, "__init__", noted)
    monkeypatch.setattr(stacks, "FIRST_WINDOW_S", 0.1)
    pretend(f"finish() {{ cat > $out <<'END'\n{GOOD}\nEND\nexit 0; }}\ntrap finish INT\n{LOOPING}")
    # What was asked for is still held to the budget, which a busy machine's py-spy may exceed.
    budget = BUDGET_CORES if asked is None else 20 * BUDGET_CORES
    source = StackSource(heard, rate_hz=asked, budget_cores=budget, room=Room(lambda _now_ns: 0.5))
    run(source, server_of(*[os.getpid()] * 8))
    until(lambda: any(length > LONG_WINDOW_S for length in lengths))
    assert source.rate_hz in rates_hz
    assert source.idle_cores == (0.5 if asked is None else None), "only what is less than asked for is explained"


def test_dumps_that_wait_do_not_pile_up_and_a_new_process_comes_first() -> None:
    """A recording asks for forty every twenty seconds, and a busy node takes longer over them."""
    source = DumpSource(lambda record: None, room=Room(lambda _now_ns: 0.0))
    source.update(server_of(os.getpid()))
    for _ in range(100):
        for _ in range(40):
            source.obey(DumpNow(1, KEY))
    assert len(source._queue) <= stacks_dumps.MAX_WAITING
    source.update(server_of(os.getpid(), os.getppid()))
    firsts = [source._next() for _ in range(3)]
    assert [rank.key.pp for rank, _ in firsts if rank is not None] == [1, 0, 0]
    assert firsts[0][1] == firsts[1][1] == stacks_dumps.FIRST_CORES, "two processes, before what waits"
    assert firsts[2][1] == pytest.approx(stacks_dumps.BURST_CORES * LEAST_CORES / BUDGET_CORES)


def test_a_new_process_does_not_wait_for_the_pace_of_a_burst() -> None:
    source = DumpSource(lambda record: None)
    waiting = threading.Thread(target=source._wait_s, args=(stacks_dumps.LONGEST_S,), daemon=True)
    waiting.start()
    source.update(server_of(os.getpid()))
    waiting.join(stacks_dumps.LONGEST_S / 2)
    assert not waiting.is_alive()


def test_dumps_give_way_as_windows_do() -> None:
    crowded = DumpSource(lambda record: None, room=Room(lambda _now_ns: 0.0))
    free = DumpSource(lambda record: None, room=Room(lambda _now_ns: 64.0))
    for source in (crowded, free):
        source.update(server_of(os.getpid()))
        source._next()
        source.obey(DumpNow(1, KEY))
        source.obey(DumpNow(1, KEY, cores=0.5))
    paces = [[source._next()[1] for _ in range(2)] for source in (free, crowded)]
    assert paces[0] == [stacks_dumps.BURST_CORES, 0.5]
    assert paces[1] == [pytest.approx(stacks_dumps.BURST_CORES * LEAST_CORES / BUDGET_CORES), 0.5]


def test_a_hanging_pyspy_is_killed_and_said(
    heard: Heard,
    pretend: Callable[[str], str],
    run: Callable[[Source, Server], Source],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stacks_windows, "WATCHDOG_S", 0.2)
    monkeypatch.setattr(stacks_dumps, "TIMEOUT_S", 0.3)
    pretend(f"trap '' INT TERM\n{LOOPING}")
    run(StackSource(heard), server_of(os.getpid()))
    run(DumpSource(heard), server_of(os.getpid()))
    until(lambda: {s.name for s in heard.all(SourceStatus)} == {"stacks", "dumps"})
    assert all(s.state == "degraded" and "was killed" in s.message for s in heard.all(SourceStatus))


def test_an_empty_or_damaged_window_is_degraded_not_drawn(
    heard: Heard, pretend: Callable[[str], str], run: Callable[[Source, Server], Source]
) -> None:
    pretend(f"trap 'echo \"[]\" > $out; exit 0' INT\n{LOOPING}")
    run(StackSource(heard), server_of(os.getpid()))
    until(lambda: heard.status("degraded"))
    assert not heard.all(StackSpans)


def test_a_pid_that_belongs_to_another_process_now_is_never_sampled(
    heard: Heard, pretend: Callable[[str], str], run: Callable[[Source, Server], Source], tmp_path: Path
) -> None:
    pretend(f"echo x >> {tmp_path}/calls")
    for source in (StackSource(heard), DumpSource(heard)):
        run(source, server_of(os.getpid(), ticks=1))
    until(lambda: len(heard.all(SourceStatus)) == 2)
    assert all("is gone" in status.message for status in heard.all(SourceStatus))
    assert not (tmp_path / "calls").exists()


def test_a_restarted_rank_is_sampled_again(
    heard: Heard, pretend: Callable[[str], str], run: Callable[[Source, Server], Source]
) -> None:
    pretend("echo broken >&2; exit 1")
    source = run(StackSource(heard), server_of(os.getpid(), ticks=1))
    until(lambda: any("gone" in s.message for s in heard.all(SourceStatus)))
    source.update(server_of(os.getpid()))
    until(lambda: any("broken" in s.message for s in heard.all(SourceStatus)))


def test_no_descriptor_is_left_open(pretend: Callable[[str], str]) -> None:
    binary = pretend("exit 1")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        window = Window(binary, os.getpid(), 50, 0.1)
        until(window.drain)
        window.finish()
        run_dump(binary, os.getpid(), 5.0, threading.Event())
        run_dump("/nonexistent/py-spy", os.getpid(), 5.0, threading.Event())
        with pytest.raises(OSError, match="nonexistent"):
            Window("/nonexistent/py-spy", os.getpid(), 50, 0.1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_stopping_twice_and_before_starting_is_harmless(heard: Heard) -> None:
    for source in (StackSource(heard), DumpSource(heard)):
        source.stop()
        source.stop()


@pytest.mark.parametrize(
    ("ns_pid", "tids", "main"),
    [(None, (1, 77), 77), (1, (1, 5), 1), (None, (3, 4), None)],
)
def test_the_main_thread_in_any_pid_namespace(ns_pid: int | None, tids: tuple[int, ...], main: int | None) -> None:
    threads = [ThreadSpans(tid, "", [], [], []) for tid in tids]
    found, others = split_main(threads, Rank(KEY, 77, 0, "", ns_pid=ns_pid))
    assert (found.tid if found else None) == main
    assert len(others) == len(tids) - (found is not None)
    named = ThreadSpans(None, "MainThread", [], [], [])
    assert split_main([*threads[:0], named], Rank(KEY, 77, 0, ""))[0] is named


def test_both_sources_share_numbers(heard: Heard) -> None:
    table = StackTable(heard)
    assert StackSource(heard, table).table is DumpSource(heard, table).table


def test_signals_go_to_pyspy_alone(pretend: Callable[[str], str]) -> None:
    window = Window(pretend(LOOPING), os.getpid(), 50, 0.1)
    try:
        assert os.getsid(window.pyspy_pid) == window.pyspy_pid, (
            "a session of its own: Ctrl-C in the terminal does not reach it"
        )
        assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    finally:
        window.kill()
        until(window.drain)
        window.finish()

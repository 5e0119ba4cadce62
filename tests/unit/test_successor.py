"""What the collector says as time goes by: the clocks, and once a server is gone which of the others is the likeliest to be next."""

from __future__ import annotations

import itertools
import queue
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ppscope.collect import collector as collector_module
from ppscope.collect.collector import Collector
from ppscope.records import AnyRecord, Clock, Note, RankExit, RankKey, Server, ServerGone, SourceStatus
from ppscope.sources.base import Emit, Source
from ppscope.target.found import Found
from ppscope.target.processes import find_servers
from tests.unit.fake_proc import FakeProc


class Writer:
    """Keeps what the collector says."""

    def __init__(self) -> None:
        self.said: list[AnyRecord] = []

    def put(self, record: AnyRecord) -> None:
        self.said.append(record)


@pytest.fixture
def old(tmp_path: Path) -> Found:
    fake = FakeProc(tmp_path)
    command = ("python3", "-m", "sglang.launch_server", "--model-path", "m", "--port", "31000", "--pp-size", "1")
    fake.add(100, command, env={}, exe="/usr/bin/python3")
    fake.add(101, "sglang::scheduler", 100, env={}, exe="/usr/bin/python3")
    (found,) = find_servers(fake.root)
    return replace(found, model="m", port=31000)


def test_both_clocks_are_told_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a step of the wall clock is seen within half a minute."""
    writer = Writer()
    collector = Collector(writer, queue.Queue(), 50.0)  # type: ignore[arg-type]
    for second in range(1, 91):
        wall_ns = 10**18 + second * 10**9 - (3600 * 10**9 if second > 45 else 0)
        monkeypatch.setattr(time, "monotonic_ns", lambda second=second: second * 10**9)
        monkeypatch.setattr(time, "time_ns", lambda wall_ns=wall_ns: wall_ns)
        collector._tick(second)
    told = [record for record in writer.said if isinstance(record, Clock)]
    assert len(told) >= 3
    steps = [now.wall_ns - now.mono_ns - (before.wall_ns - before.mono_ns) for before, now in itertools.pairwise(told)]
    assert [step for step in steps if step] == [-3600 * 10**9]


def test_the_likeliest_successor_comes_first_however_they_are_found(
    old: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command line, else its port, else its model, else the youngest; the one that is gone is none."""
    base = replace(old, launch_command=("other",), port=1, model="other", launcher_started_ticks=10)
    wanted = [
        replace(base, launcher_pid=201, launch_command=old.launch_command),
        replace(base, launcher_pid=202, port=31000, model="m"),
        replace(base, launcher_pid=203, port=31000, launcher_started_ticks=5000),
        replace(base, launcher_pid=204, model="m"),
        replace(base, launcher_pid=205, launcher_started_ticks=99),
        replace(base, launcher_pid=206),
    ]
    for order in itertools.islice(itertools.permutations([*wanted, old]), 0, 5040, 97):
        writer = Writer()
        collector = Collector(writer, queue.Queue(), 50.0)  # type: ignore[arg-type]
        collector._found = old
        monkeypatch.setattr(collector_module, "find_servers", lambda order=order: list(order))
        collector._look_for_successor(7)
        collector._look_for_successor(8)
        (gone,) = writer.said
        assert isinstance(gone, ServerGone)
        assert gone.launcher_pid == old.launcher_pid
        assert [pid for pid, _ in gone.candidates] == [found.launcher_pid for found in wanted]


class Straggler(Source):
    """Has something to say after it was told to stop."""

    name = "straggler"

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self.states: list[str] = []

    def update(self, server: Server) -> None:
        self.states.append(server.state)

    def start(self, server: Server) -> None:
        self.emit(Clock(server.launcher_pid, 1))

    def stop(self) -> None:
        self.stopping.set()

    def speak_late(self) -> None:
        self.status("degraded", "cut off")
        self.emit(Clock(0, 1))


def test_the_end_of_a_server_is_told_at_once_to_the_view_and_to_every_source(
    old: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its port may be somebody else's a moment later."""
    writer, made = Writer(), []
    ended: list[bool] = [False]

    def sources(emit: Emit, *_: object) -> list[Source]:
        made.append(Straggler(emit))
        return [made[-1]]

    monkeypatch.setattr(collector_module, "_sources", sources)
    monkeypatch.setattr(collector_module, "resolve", lambda pid: old)
    monkeypatch.setattr(collector_module, "find_servers", list)
    monkeypatch.setattr(collector_module, "has_ended", lambda pid, ticks: ended[0])
    collector = Collector(writer, queue.Queue(), 50.0)  # type: ignore[arg-type]
    collector.attach(100)
    collector._tick(1)
    ended[0] = True
    writer.said.clear()
    for tick in range(3, 9):
        collector._tick(tick)
    (told,) = [record for record in writer.said if isinstance(record, Server)]
    (gone,) = [record for record in writer.said if isinstance(record, ServerGone)]
    assert (told.launcher_pid, told.state) == (100, "gone") == (gone.launcher_pid, made[0].states[-1])
    assert made[0].states.count("gone") == 1


@pytest.mark.parametrize("gone", [False, True])
def test_a_long_process_table_is_looked_through_seldom(gone: bool, old: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tens of thousands of processes take a second to read; a server that loads is looked at every second else."""
    second = [0.0]
    looks: list[float] = []

    def look(*_: object) -> None:
        looks.append(second[0])
        second[0] += 0.5

    def resolve(pid: int | None) -> Found:
        look()
        return replace(old, state="loading")

    def others() -> list[Found]:
        look()
        return []

    monkeypatch.setattr(time, "monotonic_ns", lambda: round(second[0] * 1e9))
    monkeypatch.setattr(collector_module, "_sources", lambda *_: [])
    monkeypatch.setattr(collector_module, "resolve", resolve)
    monkeypatch.setattr(collector_module, "find_servers", others)
    monkeypatch.setattr(collector_module, "has_ended", lambda pid, ticks: gone)
    collector = Collector(Writer(), queue.Queue(), 50.0)  # type: ignore[arg-type]
    collector.attach(100)
    for tick in range(1, 61):
        second[0] = max(second[0], float(tick))
        collector._tick(tick)
    assert 3 <= len(looks) <= 6
    if not gone:
        before = len(looks)
        collector.emit(RankExit(RankKey(0, 0, 0), 101, 0, "gone"))
        collector._tick(61)
        assert len(looks) == before + 1, "but at once when a rank has ended"


def test_schedulers_of_a_second_engine_are_told_of(old: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two Engines in one program have the same ranks; only one's are shown."""
    writer = Writer()
    others = ((7, "sglang::detokenizer"), (8, "sglang::scheduler_TP0"), (9, "sglang::scheduler_TP1"))
    monkeypatch.setattr(collector_module, "_sources", lambda *_: [])
    for found, notes in ((old, 0), (replace(old, others=others), 1)):
        monkeypatch.setattr(collector_module, "resolve", lambda pid, found=found: found)
        Collector(writer, queue.Queue(), 50.0).attach(100)  # type: ignore[arg-type]
        said = [record.text for record in writer.said if isinstance(record, Note)]
        assert len(said) == notes
    assert said[0].startswith("2 more schedulers of the same ranks")


def test_what_the_sources_of_a_server_that_was_left_say_late_is_not_the_next_servers(
    old: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, made = Writer(), []

    def sources(emit: Emit, *_: object) -> list[Source]:
        made.append(Straggler(emit))
        return [made[-1]]

    monkeypatch.setattr(collector_module, "_sources", sources)
    monkeypatch.setattr(collector_module, "resolve", lambda pid: replace(old, launcher_pid=pid))
    collector = Collector(writer, queue.Queue(), 50.0)  # type: ignore[arg-type]
    collector.attach(100)
    collector.attach(200)
    made[0].speak_late()
    made[1].emit(Clock(300, 1))
    assert [record.mono_ns for record in writer.said if isinstance(record, Clock)] == [100, 200, 300]
    assert not [record for record in writer.said if isinstance(record, SourceStatus)]

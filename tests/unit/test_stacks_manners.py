"""How py-spy is let loose on a target: never so that it stops it, and the dearer a dump is the more seldom."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ppscope.records import AnyRecord, DumpNow
from ppscope.sources import stacks, stacks_dumps
from ppscope.sources.base import Source
from ppscope.sources.stacks import StackSource
from ppscope.sources.stacks_dump_run import DumpOutput
from ppscope.sources.stacks_dumps import DumpSource
from tests.unit.test_stacks_source import server_of
from tests.unit.tiny_http import eventually


def ignore(record: AnyRecord) -> None:
    """What the sources say is of no interest here."""


@pytest.fixture
def run() -> Iterator[Callable[[Source], Source]]:
    running: list[Source] = []

    def start(source: Source) -> Source:
        running.append(source)
        source.start(server_of(os.getpid()))
        return source

    yield start
    for source in running:
        source.stop()


def test_pyspy_never_stops_its_target(
    run: Callable[[Source], Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is started, for windows, dumps and bursts of them: each is told not to stop the threads that it reads."""
    log, script = tmp_path / "started", tmp_path / "py-spy"
    script.write_text(f'#!/bin/sh\necho "$*" >> {log}\nexit 1\n')
    script.chmod(0o700)
    monkeypatch.setenv("PPSCOPE_PYSPY", str(script))
    monkeypatch.setattr(stacks, "BACKOFF_S", (0.05,))

    def started() -> list[list[str]]:
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []

    run(StackSource(ignore))
    run(DumpSource(ignore)).obey(DumpNow(count=2))
    assert eventually(lambda: [words[0] for words in started()].count("dump") >= 3)
    assert eventually(lambda: [words[0] for words in started()].count("record") >= 2)
    assert all("--nonblocking" in words for words in started())


@pytest.mark.parametrize(("cpu_s", "pause_s"), [(0.01, 1.0), (0.3, 10.0)])
def test_a_dear_dump_makes_the_next_wait_longer(
    cpu_s: float, pause_s: float, run: Callable[[Source], Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.03 core for all of them, whatever one costs: of a process with many threads it may be half a second."""
    pauses: list[float] = []

    def pause(source: DumpSource, seconds: float) -> None:
        pauses.append(seconds)
        source.stopping.wait(0.01)

    monkeypatch.setattr(stacks_dumps, "find_pyspy", lambda: "py-spy")
    monkeypatch.setattr(stacks_dumps, "run_dump", lambda *_: DumpOutput(b"", b"", 1, 0, 0, cpu_s))
    monkeypatch.setattr(DumpSource, "_pause", pause)
    monkeypatch.setattr(stacks_dumps, "UNEVEN", (1.0, 1.0))
    run(DumpSource(ignore))
    assert eventually(lambda: bool(pauses))
    assert pauses[0] == pytest.approx(pause_s)


def test_dumps_do_not_fall_in_with_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one order and at one pace they travelled with a micro-batch from stage to stage, and met its slot only."""
    source = DumpSource(ignore)
    source.update(server_of(*[os.getpid()] * 4))
    source._queue.clear()
    source.obey(DumpNow(40, cores=1.0))
    asked = [key.pp for key, _ in source._queue]
    rounds = [tuple(asked[at : at + 4]) for at in range(0, len(asked), 4)]
    assert {tuple(sorted(of)) for of in rounds} == {(0, 1, 2, 3)}, "every stage once a round"
    assert len(set(rounds)) > 5
    waits: list[float] = []

    def wait(source: DumpSource, seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 150:
            source.stopping.set()

    monkeypatch.setattr(DumpSource, "_dump", lambda _source, _rank: 0.1)
    monkeypatch.setattr(DumpSource, "_wait_s", wait)
    monkeypatch.setattr(DumpSource, "_next", lambda source: (object(), 0.5))
    source._run()
    low, high = stacks_dumps.UNEVEN
    assert all(0.1 * low <= wait_s <= 0.1 * high for wait_s in waits)
    assert len(set(waits)) > 100
    assert sum(waits) / len(waits) == pytest.approx(0.1 * (low + high) / 2, rel=0.15)

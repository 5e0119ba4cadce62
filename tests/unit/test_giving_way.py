"""Which commands give way to a busy node: those that stay, not those that look for seconds, nor the demo, which harms nobody."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner

from ppscope import emulator
from ppscope.cli import main
from ppscope.collect.collector import Collector, _sources
from ppscope.collect.observed import Observed
from ppscope.commands import check, live, record, snapshot
from ppscope.sources import stacks_dumps
from ppscope.sources.stacks import StackSource
from ppscope.sources.stacks_dumps import DumpSource
from ppscope.sources.stacks_room import FREE, Room


class Started(Exception):
    """What a collector would have been started with."""

    def __init__(self, arguments: list[str]) -> None:
        super().__init__(*arguments)


def started(arguments: list[str], *_more: object) -> NoReturn:
    raise Started(arguments)


class Emulated:
    """A demo's server that is none."""

    pid = 5

    def __enter__(self) -> Emulated:
        return self

    def __exit__(self, *_error: object) -> None:
        pass


@pytest.mark.parametrize(
    ("command", "given"),
    [
        (["attach", "5"], ["--give-way", "--pid", "5"]),
        (["attach", "5", "--rate", "30"], ["--rate", "30.0", "--give-way", "--pid", "5"]),
        (["record", "5", "-o", "r.pps"], ["--give-way", "--pid", "5"]),
        (["record", "-o", "r.pps", "--rate", "7"], ["--rate", "7.0", "--give-way"]),
        (["check", "5"], ["--rate", "50.0", "--pid", "5"]),
        (["snapshot", "5", "--rate", "20"], ["--rate", "20.0", "--pid", "5"]),
        (["demo"], ["--rate", "50.0", "--pid", "5"]),
    ],
)
def test_what_the_collector_is_told(
    command: list[str], given: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for module in (live, check, record):
        monkeypatch.setattr(module, "CollectorProcess", started)
    monkeypatch.setattr(snapshot, "_Watched", started)
    monkeypatch.setattr(live, "not_a_terminal", lambda: None)
    monkeypatch.setattr("ppscope.commands.demo.not_a_terminal", lambda: None)
    monkeypatch.setattr(emulator, "start", lambda *_how, **_more: Emulated())
    done = CliRunner().invoke(main, command)
    assert isinstance(done.exception, Started), done.output
    assert list(done.exception.args) == given


def test_both_sources_that_run_py_spy_share_one_view_of_the_node() -> None:
    told: list[object] = []
    giving = Collector(told, told, None, gives_way=True)  # type: ignore[arg-type]
    staying = Collector(told, told, 50.0)  # type: ignore[arg-type]
    assert giving._room is not FREE
    assert staying._room is FREE
    for collector in (giving, staying):
        sources = _sources(told.append, None, collector._room, Observed(), None)  # type: ignore[arg-type]
        rooms = [source._room for source in sources if isinstance(source, StackSource | DumpSource)]
        assert rooms == [collector._room] * 2


def test_a_share_of_the_budget_slows_the_round_of_dumps(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    plenty, nothing = Room(lambda _now_ns: 100.0), Room(lambda _now_ns: 0.0)
    for room in (plenty, nothing):
        source = DumpSource(lambda record: None, room=room)
        monkeypatch.setattr(source, "_next", lambda: (object(), None))
        monkeypatch.setattr(source, "_dump", lambda _rank: 0.03)

        def paused(seconds: float, source: DumpSource = source) -> None:
            pauses.append(seconds)
            source.stopping.set()

        monkeypatch.setattr(source, "_pause", paused)
        monkeypatch.setattr(source._chance, "uniform", lambda low, high: (low + high) / 2)
        source._run()
    assert pauses[0] == pytest.approx(0.03 / stacks_dumps.BUDGET_CORES)
    assert pauses[1] > 5 * pauses[0]

"""How long `check` looks: until the evidence is enough, within a bound."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from ppscope import exits
from ppscope.commands import check as check_module
from ppscope.commands.check import look, missing, most_s
from ppscope.records import LoadSample
from ppscope.session import Session
from tests.unit.pipeline_story import HEALTHY, IDLE, ONE, SERIAL, START, Pipeline, Story


@pytest.mark.parametrize(("seconds", "most"), [(0.5, 1.5), (2, 6), (5, 15), (30, 40), (600, 610)])
def test_the_bound(seconds: float, most: float) -> None:
    assert most_s(seconds) == most


BLOCKED = replace(IDLE, queued=3)


@pytest.mark.parametrize(
    ("name", "story", "seconds", "lacks"),
    [
        ("serial", SERIAL, 3, {"load"}),
        ("serial, later", SERIAL, 7, set()),
        ("healthy, too early for slots", HEALTHY, 2, {"load", "slots"}),
        ("healthy", HEALTHY, 8, set()),
        ("idle", IDLE, 4, set()),
        ("blocked", BLOCKED, 4, {"load"}),
        ("blocked, later", BLOCKED, 8, set()),
        ("one client", ONE, 8, set()),
        ("no metrics", replace(SERIAL, metrics=False), 8, set()),
    ],
)
def test_what_is_missing_after_some_seconds(name: str, story: Story, seconds: int, lacks: set[str]) -> None:
    stream = Pipeline(name)
    session = Session(stream, clock=lambda: stream.at_ns, dump_cores=0.5)
    for _ in range(seconds):
        stream.second(story)
        session.poll()
    assert missing(session) - {"rules"} == lacks, "this server's source was never read"


def test_a_dear_page_that_told_of_a_queue_is_worth_waiting_for_the_next() -> None:
    stream = Pipeline("dear pages")
    session = Session(stream, clock=lambda: stream.at_ns)
    for _ in range(8):
        stream.second(replace(IDLE, metrics=False))
        session.poll()
    for queued, age_s in ((0, 36), (3, 6)):
        assert missing(session) - {"rules"} == set()
        session.load.add(LoadSample(stream.at_ns - age_s * 1_000_000_000, "metrics", queued=queued, tokens_per_s=0.0))
    assert missing(session) - {"rules"} == {"load"}
    assert "server.queue_blocked" not in {finding.id for finding in session.screen().findings}


def test_a_server_that_ended_in_the_last_second_of_the_look_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector says so a second later; until then nothing was found, and that would pass a gate."""

    class Ending(Pipeline):
        turns = 0

        def wait(self, timeout_s: float) -> bool:
            self.turns += 1
            if self.turns < 4:
                self.second(HEALTHY)
            else:
                assert session.server is not None
                self.waiting.append(msgspec.structs.replace(session.server, state="gone"))
            return True

    stream = Ending("ends")
    session = Session(stream, clock=lambda: stream.at_ns)
    stream.second(HEALTHY)
    session.poll()
    monkeypatch.setattr(check_module, "has_ended", lambda pid, ticks: True)
    end = look(session, stream, 0.0)  # type: ignore[arg-type]
    assert end is not None
    assert end.exit_code == exits.TARGET_ENDED


def test_dumps_of_a_look_are_bounded_as_it_asks() -> None:
    asked: list[float | None] = []

    class Asked(Pipeline):
        def send(self, command: object) -> None:
            asked.append(getattr(command, "cores", None))

    for cores in (0.5, None):
        stream = Asked("cores")
        stream.second(HEALTHY)
        Session(stream, clock=lambda: START, dump_cores=cores).poll()
    assert set(asked) == {0.5, None}

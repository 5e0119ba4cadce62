"""How long `check` looks: until the evidence is enough, within a bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ppscope.commands.check import missing, most_s
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

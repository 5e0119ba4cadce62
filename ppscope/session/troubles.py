"""What is wrong beside the findings: sources that are not well, stages that somebody stopped, a collector that fell silent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ppscope.records import RankKey, SourceStatus
from ppscope.session.ranks import RankState
from ppscope.target.errors import printable
from ppscope.views import SourceNote

if TYPE_CHECKING:
    from ppscope.session.session import Session

_UNWELL = ("degraded", "dead", "stalled")
_SILENT_NS = 5_000_000_000
"""The collector tells its cost every second."""
_PASSING_NS = 60_000_000_000
"""How long something that happened once stays on the screen."""
_STEP_NS = 500_000_000
"""NTP slews slower than this between two readings of the clocks."""


def troubles(session: Session) -> tuple[SourceNote, ...]:
    """Notes for the strip, the most telling first."""
    if session.end is not None:
        return ()
    notes = [*_collector(session)]
    if session.gone is None:
        notes += _stopped(session.states.values())
        notes += _sources(session.sources.values(), _alive(session))
    return (*notes, *_passing(session), *_own(session))


def _collector(session: Session) -> Iterable[SourceNote]:
    silent_ns = session.silent_ns()
    if silent_ns is not None and silent_ns >= _SILENT_NS:
        said = "nothing has come from it: it is stopped, or the machine is overloaded"
        yield SourceNote("collector", "stalled", said, "q ends it all the same", session.present_ns() - silent_ns)


def _stopped(states: Iterable[RankState]) -> Iterable[SourceNote]:
    stopped = sorted((state for state in states if state.stopped and state.alive), key=lambda state: state.rank.key)
    if not stopped:
        return
    stages = sorted({state.rank.key.pp for state in stopped})
    name = f"PP{stages[0]}" if len(stages) == 1 else f"{len(stages)} stages"
    pids = " ".join(str(state.rank.pid) for state in stopped[:8]) + (" …" if len(stopped) > 8 else "")
    said = f"a signal or a debugger holds pid {pids}; ppscope sends its target no signals"
    yield SourceNote(name, "stopped", said, f"kill -CONT {pids}", min(state.stopped_ns for state in stopped))


def blind(session: Session) -> SourceStatus | None:
    """Why no rank's stacks can be read and nothing else tells what the ranks do; None while any can, or none was tried."""
    alive, probe = _alive(session), session.sources.get(("probe", None))
    dead = {key: session.sources.get(("stacks", key)) for key in alive}
    if not alive or (probe is not None and probe.state == "ok") or session.active(session.present_ns()) is not None:
        return None
    reasons = [status for status in dead.values() if status is not None and status.state == "dead" and status.remedy]
    return reasons[0] if len(reasons) == len(alive) else None


def _alive(session: Session) -> frozenset[RankKey]:
    return frozenset(state.rank.key for state in session.states.values() if state.alive)


def _sources(statuses: Iterable[SourceStatus], alive: frozenset[RankKey]) -> Iterable[SourceNote]:
    """One note a cause: what ails several ranks or sources alike, or is mended alike, is said once."""
    merged: dict[tuple[str, ...], list[SourceStatus]] = {}
    for status in statuses:
        if status.state in _UNWELL:
            cause = ("mend", status.remedy) if status.remedy and status.rank else (status.name, status.message)
            merged.setdefault((status.state, *cause), []).append(status)
    for alike in merged.values():
        first = alike[0]
        names, ranks = dict.fromkeys(status.name for status in alike), {status.rank for status in alike}
        more = len(ranks) - 1
        also = f" (and {more} more rank{'s' if more > 1 else ''})" if more > 0 else ""
        if "stacks" in names and more > 0 and alive and ranks >= alive:
            also = f" (all {more + 1} ranks: no stacks are seen)"
        yield SourceNote(
            ", ".join(names),
            first.state,
            first.message + also,
            first.remedy,
            first.at_ns,
        )


def _passing(session: Session) -> Iterable[SourceNote]:
    now = session.present_ns()
    if session.dropped and now - session.dropped_ns < _PASSING_NS:
        said = f"{session.dropped} records were dropped while nothing was read here: the Gantt has holes"
        yield SourceNote("view", "behind", said, "", session.dropped_ns)
    if session.clock_step_ns and now - session.clock_stepped_ns < _PASSING_NS:
        said = f"the node's wall clock was set by {session.clock_step_ns / 1e9:+.1f} s; times here do not depend on it"
        yield SourceNote("clock", "stepped", said, "", session.clock_stepped_ns)
    for note in session.notes[-2:]:
        if note.level != "info" and now - note.at_ns < _PASSING_NS:
            text, _, remedy = note.text.partition("\n")
            yield SourceNote("collector", note.level, text, remedy, note.at_ns)


def _own(session: Session) -> Iterable[SourceNote]:
    if session.damaged:
        said = f"{session.damaged} records make no sense and were left out, the last {printable(session.damage)}"
        yield SourceNote("stream", "damaged", said, "", 0)
    problem = session.interned.table.problem
    if problem is not None:
        yield SourceNote("phases", "degraded", problem, "mend or remove that file", 0)


def clock_step_ns(offset_before_ns: int, mono_ns: int, wall_ns: int) -> int | None:
    """How far the wall clock jumped against CLOCK_MONOTONIC since an earlier offset; None when it did not."""
    step = wall_ns - mono_ns - offset_before_ns
    return step if abs(step) >= _STEP_NS else None

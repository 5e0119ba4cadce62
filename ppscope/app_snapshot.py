"""The app's side of a snapshot: ask for it, say what is in it, and say when it failed after all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ppscope.snapshot.window import KEEP_NS

if TYPE_CHECKING:
    from ppscope.app_canvas import Canvas


class Saves(Protocol):
    """What writes snapshots; see ppscope.snapshot.save.Saver."""

    def __call__(self) -> str:
        """Write one and say where it is, or raise OSError."""

    def late_problem(self) -> str | None:
        """Why one that was being written has failed since; told once."""

    def finish(self, say: Callable[[str], None]) -> str | None:
        """Wait for what is being written; the same."""


def save(app: Canvas) -> None:
    """Write a snapshot, where there is something to write."""
    if app.save_snapshot is None:
        return
    try:
        where = app.save_snapshot()
    except OSError as error:
        app.say(f"no snapshot: {error}", "bad")
        return
    if not app.feed.live:
        app.say(f"snapshot: {where}")
        return
    state = app.state
    oldest_kept = app.feed.now_ns() - KEEP_NS
    start, end = max(state.window.start_ns, state.extent[0]), min(state.window.end_ns, state.now_ns)
    # What matters first: the line may be cut.
    if start >= oldest_kept:
        app.say(f"the last minute as a snapshot: {where}")
    elif end > oldest_kept:
        app.say(f"the last minute, not all that is shown, as a snapshot: {where}", "warn")
    else:
        app.say(f"the last minute, nothing of what is shown, as a snapshot: {where}", "warn")


def follow(app: Canvas) -> None:
    """Say what became of one that took its time."""
    problem = app.save_snapshot.late_problem() if app.save_snapshot is not None else None
    if problem is not None:
        app.say(f"no snapshot: {problem}", "bad")

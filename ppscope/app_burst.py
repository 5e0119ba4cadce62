"""The app's side of a profile burst: ask, send, follow, and turn to the result when it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppscope.app_window import ZOOM_NS
from ppscope.records import Burst, CancelBurst
from ppscope.widgets.burst_dialog import BurstChoice, BurstDialog
from ppscope.widgets.header import begin_anew

if TYPE_CHECKING:
    from ppscope.app_canvas import Canvas

LAUNCHES_PANEL = 2


def ask(app: Canvas) -> None:
    """Open the dialog and do what the user chooses there; not below a line that says nothing of such a key."""
    offer = app.feed.burst()
    if offer is None or app.is_too_small:
        return

    def chosen(choice: BurstChoice | None) -> None:
        if choice is None:
            return
        app.state.refresh()  # nothing was painted while the dialog was open
        if app.state.gone:
            why = begin_anew(app.state.present.header) if app.state.collector_ended else "the server is gone"
            app.say(f"no profile: {why}", "bad")
            return
        if choice.cancel:
            app.feed.send(CancelBurst())
            app.say("stopping the profile")
            return
        resolved = app.state.present.header.decode_graph.resolved
        expected = {"on": True, "off": False}.get(resolved or "")
        app.keeps_burst = choice.keep
        app.feed.send(Burst(choice.rounds, choice.with_stack, choice.keep, expected))
        app.say("profile burst asked for: its progress is in the lines above the lanes")

    app.push_screen(BurstDialog(app.look, offer, app.state.present.burst), chosen)


def follow(app: Canvas) -> None:
    """Bring an open dialog up to date."""
    dialog = app.screen
    if isinstance(dialog, BurstDialog):
        offer = app.feed.burst()
        if offer is not None:
            dialog.update(offer, app.feed.screen().burst)


class BurstFollower:
    """Notices results: lanes are drawn anew, and the view turns to them unless the user is busy elsewhere."""

    def __init__(self) -> None:
        self._results = 0
        self._active: int | None = None
        self._looks = 0

    def look(self, app: Canvas) -> None:
        """Compare with what was known; call it with the state refreshed."""
        progress = app.state.present.burst
        if progress is None:
            return
        if progress.results != self._results:
            self._results = progress.results
            app.state.lanes.forget()
        self._looks += 1
        if not app.feed.live and self._looks == 2 and app.feed.extent()[0] >= (progress.start_ns or 0):
            # Trace files hold nothing else; by the second look the window has its size.
            self._active = progress.burst
        if progress.active:
            self._active = progress.burst
        elif self._active == progress.burst:
            self._active = None
            if app.keeps_burst and progress.folder is not None:
                app.state.kept = progress.folder
            if progress.state == "done":
                _turn_to(app)


def _turn_to(app: Canvas) -> None:
    """Hold the window on the burst and open the launches."""
    state, progress = app.state, app.state.present.burst
    if progress is None or progress.start_ns is None or progress.end_ns is None:
        return
    if state.frozen:
        app.say("the burst is read: Space ends the freeze and shows it")
        return
    elsewhere = state.in_panel and state.panel != LAUNCHES_PANEL
    if state.levels or elsewhere or not state.window.live:
        app.say("the burst is read: " + ("panel 2 has its launches" if state.screen.launches else "no launch is in it"))
        return
    window = state.window
    length_ns = progress.end_ns - progress.start_ns
    wanted = next((zoom for zoom, ns in enumerate(ZOOM_NS) if ns * window.columns >= length_ns), window.zoom)
    window.live = False
    window.zoom = wanted
    margin = (window.columns - length_ns // window.column_ns) // 2
    window.first = progress.start_ns // window.column_ns - max(margin, 0)
    if state.screen.launches:
        state.panel, state.in_panel = LAUNCHES_PANEL, True
    app.say(f"the burst, exact in {'host and GPU' if state.screen.launches else 'host'} lanes; 0 returns to now")

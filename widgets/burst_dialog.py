"""The question before a profile burst: what it does, what it costs on this server, and what is known to have gone wrong."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from textual.binding import Binding, BindingType

from ppscope.views import BurstOffer, BurstProgress
from ppscope.widgets.listing import Item, Listing
from ppscope.widgets.look import Look
from ppscope.widgets.rows import rank_name
from ppscope.widgets.text import Line, clean, flowed, wrapped
from ppscope.widgets.text_screen import TextScreen

MOST_ROUNDS = 64
LEAST_WIDTH = 24
"""Cells below which rows are cut at their right end."""


class BurstChoice(NamedTuple):
    """What the user wants: a burst of so many rounds, or (`cancel`) the end of the one that runs."""

    rounds: int
    with_stack: bool = False
    keep: bool = False
    cancel: bool = False


def burst_lines(offer: BurstOffer, progress: BurstProgress | None, choice: BurstChoice, width: int) -> list[Line]:
    """The dialog's text for a choice, in rows of `width` cells."""
    if progress is not None and progress.active:
        return _running_lines(progress, width)
    lines: list[Line] = [((" profile burst", "accent bold"),), ()]
    if offer.problem is not None:
        return [*lines, *_wrapped(f"Not now: {offer.problem}.", "warn", width), (), *_keys((("Esc", "back"),), width)]
    activities = "CPU" if offer.device == "cpu" else "CPU and GPU"
    micro_batches = choice.rounds * offer.slots
    what = (
        f"SGLang's own torch profiler records {micro_batches} micro-batches ({choice.rounds} rounds of {offer.slots} slots) on"
        f" {offer.ranks} ranks: {activities}, {'with' if choice.with_stack else 'without'} Python stacks. It ends by itself."
    )
    lines += _wrapped(what, "", width)
    files = (
        "The trace files stay in a new folder under /tmp on the server's side."
        if choice.keep
        else f"Trace files: {offer.folder}."
    )
    lines += [*_wrapped(files, "", width), ()]
    for text in offer.costs:
        lines += _wrapped(text, "warn", width, "▲ ")
    for text in (*offer.stack_risks, *offer.risks) if choice.with_stack else offer.risks:
        lines += _wrapped(text, "bad" if "kill" in text else "warn", width, "▲ ")
    keys = (
        ("Enter", "start"),
        ("+-", "rounds"),
        ("w", f"Python stacks: {'on' if choice.with_stack else 'off'}"),
        ("k", f"keep files: {'yes' if choice.keep else 'no'}"),
        ("Esc", "back"),
    )
    return [*lines, (), *_keys(keys, width)]


def _running_lines(progress: BurstProgress, width: int) -> list[Line]:
    lines: list[Line] = [
        ((" profile burst", "accent bold"), (f"   {progress.state}, {progress.seconds:.0f} s", "")),
        (),
    ]
    lines += _wrapped(progress.message, "", width)
    lines += [((f"   {rank_name(key)}  ", "dim"), (clean(state), "")) for key, state in progress.ranks[:16]]
    return [*lines, (), *_keys((("x", "stop it and throw its traces away"), ("Esc", "back, it goes on")), width)]


def _wrapped(text: str, role: str, width: int, mark: str = "") -> list[Line]:
    rows = wrapped(clean(text), max(LEAST_WIDTH - 4, width - 2 - len(mark)))
    return [((f" {mark if not place else ' ' * len(mark)}{row}", role),) for place, row in enumerate(rows)]


def _keys(keys: tuple[tuple[str, str], ...], width: int) -> list[Line]:
    parts: list[Line] = [((key, "key"), (f" {what}", "dim")) for key, what in keys]
    return [((" ", ""), *line) for line in flowed(parts, width - 1, "   ")]


class BurstDialog(TextScreen["BurstChoice | None"]):
    """Asks, and gives back the choice; None when the user goes back. It starts nothing before its text was shown to the end."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "start", show=False),
        Binding("escape,p,n", "back", show=False),
        Binding("plus,equals_sign", "rounds(1)", show=False),
        Binding("minus,underscore", "rounds(-1)", show=False),
        Binding("w", "stacks", show=False),
        Binding("k", "keep", show=False),
        Binding("x", "cancel", show=False),
    ]

    def __init__(self, look: Look, offer: BurstOffer, progress: BurstProgress | None) -> None:
        super().__init__(look)
        self._offer = offer
        self._progress = progress
        self._choice = BurstChoice(max(1, offer.rounds))

    def update(self, offer: BurstOffer, progress: BurstProgress | None) -> None:
        """Show how things stand now."""
        self._offer, self._progress = offer, progress
        self.fill()

    def fill(self) -> None:
        """Wrap the text for the width."""
        width = min(self.pane.size.width or 80, 100)
        lines = [(), *burst_lines(self._offer, self._progress, self._choice, width)]
        self.pane.show_listing(Listing(tuple(Item((line,)) for line in lines)), focused=False)
        self.tell()

    def tell(self) -> None:
        """Where in the text one is, and what is still to be read."""
        where = self.pane.where
        starts = not self._under_way and self._offer.problem is None
        more = "PgUp back up" if self.pane.at_end else f"PgDn more{', then Enter' if starts else ''}"
        self.foot.show([((f" {where}   {more}" if where else "", "dim"),)])

    @property
    def _is_read(self) -> bool:
        return self.pane.at_end and self.pane.size.width >= LEAST_WIDTH

    @property
    def _under_way(self) -> bool:
        return self._progress is not None and self._progress.active

    def action_start(self) -> None:
        """Start the burst, where it can be and the end of what it costs is shown."""
        if not self._under_way and self._offer.problem is None and self._is_read:
            self.dismiss(self._choice)

    def action_back(self) -> None:
        """Leave everything as it is."""
        self.dismiss(None)

    def action_rounds(self, by: int) -> None:
        """More or fewer rounds."""
        self._choice = self._choice._replace(rounds=max(1, min(MOST_ROUNDS, self._choice.rounds + by)))
        self.fill()

    def action_stacks(self) -> None:
        """With or without Python stacks."""
        self._choice = self._choice._replace(with_stack=not self._choice.with_stack)
        self.fill()

    def action_keep(self) -> None:
        """Keep the trace files or not."""
        self._choice = self._choice._replace(keep=not self._choice.keep)
        self.fill()

    def action_cancel(self) -> None:
        """End the burst that runs."""
        if self._under_way:
            self.dismiss(self._choice._replace(cancel=True))

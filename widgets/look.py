"""From roles to terminal styles: one palette for dark and light, one for 16 colours, one for none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.color import Color, ColorParseError, ColorSystem, blend_rgb
from rich.color_triplet import ColorTriplet
from rich.segment import Segment
from rich.style import Style

from ppscope.views import PhaseStyle
from ppscope.widgets.text import Line, to_ascii


class Palette(NamedTuple):
    """Colours of the roles as numbers of the 256-colour table; every other colour on the screen belongs to a phase.

    The table is used on truecolour terminals too: a colour is then 9 bytes on the wire instead of 17, twice a span.
    """

    background: int
    raised: int
    text: int
    dim: int
    faint: int
    accent: int
    good: int
    warn: int
    bad: int

    def hex(self, name: str) -> str:
        """A colour of the palette as `#rrggbb`."""
        return Color.from_ansi(getattr(self, name)).get_truecolor().hex


DARK = Palette(233, 236, 252, 246, 240, 111, 114, 179, 203)
LIGHT = Palette(255, 252, 235, 241, 248, 25, 28, 130, 160)
ANSI_NAMES = {
    "dim": "bright_black",
    "faint": "bright_black",
    "accent": "cyan",
    "good": "green",
    "warn": "yellow",
    "bad": "red",
}


class Look:
    """How roles are drawn on this terminal.

    `colours` is `full`, `ansi` (16 colours, the terminal's own background) or `none`; `ascii` leaves no character above 127.
    """

    def __init__(self, *, colours: str, dark: bool, ascii: bool, phases: Sequence[PhaseStyle]) -> None:
        self.colours = colours
        self.dark = dark
        self.ascii = ascii
        self.phases = tuple(phases)
        self.palette = DARK if dark else LIGHT
        self._styles: dict[str, Style] = {}

    def phase(self, index: int | None) -> PhaseStyle | None:
        """The style of a phase, None for an index that this table does not have."""
        return self.phases[index] if index is not None and 0 <= index < len(self.phases) else None

    def segments(self, line: Line, over: str = "") -> list[Segment]:
        """A line as Rich segments; `over` is a role laid over all of it."""
        if self.ascii:
            return [Segment(to_ascii(text), self.style(f"{role} {over}")) for text, role in line]
        return [Segment(text, self.style(f"{role} {over}")) for text, role in line]

    def style(self, role: str) -> Style:
        """The Rich style of a role; unknown words have no effect."""
        style = self._styles.get(role)
        if style is None:
            style = self._styles[role] = self._make(role)
        return style

    def _make(self, role: str) -> Style:
        style = self._ink("text", "background") if self.colours == "full" else Style()
        for word in role.split():
            style += self._word(word)
        return style

    def _word(self, word: str) -> Style:
        if self.colours == "none":
            return NO_COLOUR.get(word) or self._phase_without_colour(word)
        if word in {"dim", "faint", "accent", "good", "warn", "bad"}:
            return self._ink(word)
        if word == "bold":
            return Style(bold=True)
        if word == "select":
            return Style(reverse=True) if self.colours == "ansi" else self._ink(None, "raised")
        if word == "key":
            return self._ink("accent")
        if word == "tab":
            return self._ink("accent") + Style(bold=True, underline=self.colours == "ansi")
        if word[:1] in {"p", "t"} and word[1:].isdigit():
            phase = self.phase(int(word[1:]))
            recedes = self.colours == "ansi" and word[0] == "p" and phase is not None and phase.kind != "work"
            colour = self._phase_colour(int(word[1:]), recede=0.42 if word[0] == "p" else 0.15)
            return Style(color=colour, dim=recedes or None)
        return Style()

    def _colour(self, name: str) -> Color:
        if self.colours == "full":
            return Color.from_ansi(getattr(self.palette, name))
        return Color.parse(ANSI_NAMES.get(name, "default"))

    def _ink(self, name: str | None, ground: str | None = None) -> Style:
        return Style(color=self._colour(name) if name else None, bgcolor=self._colour(ground) if ground else None)

    def _phase_colour(self, index: int, recede: float) -> Color:
        phase = self.phase(index)
        if phase is None:
            return self._colour("dim")
        name = phase.colour if self.colours == "full" else phase.colour16
        try:
            colour = Color.parse(name)
        except ColorParseError:
            return self._colour("dim")
        if self.colours != "full":
            return colour
        triplet = colour.get_truecolor()
        if not self.dark:
            # Phase colours are chosen for a dark ground; on a light one they need more ink.
            triplet = blend_rgb(triplet, ColorTriplet(0, 0, 0), 0.25)
        if phase.kind != "work":
            # Waiting recedes, so that work is what the eye finds.
            triplet = blend_rgb(triplet, self._colour("background").get_truecolor(), recede)
        return Color.from_triplet(triplet).downgrade(ColorSystem.EIGHT_BIT)

    def _phase_without_colour(self, word: str) -> Style:
        if word[:1] in {"p", "t"} and word[1:].isdigit():
            phase = self.phase(int(word[1:]))
            if phase is not None and phase.kind == "work":
                return Style(bold=True)
            return Style(dim=True)
        return Style()


NO_COLOUR = {
    "dim": Style(dim=True),
    "faint": Style(dim=True),
    "bold": Style(bold=True),
    "bad": Style(bold=True),
    "select": Style(reverse=True),
    "key": Style(bold=True),
    "tab": Style(bold=True, underline=True),
}

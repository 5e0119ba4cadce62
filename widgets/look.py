"""From roles to terminal styles: one palette for dark and light, one for 16 colours, one for none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.color import Color, ColorParseError, blend_rgb
from rich.color_triplet import ColorTriplet
from rich.segment import Segment
from rich.style import Style

from ppscope.views import PhaseStyle
from ppscope.widgets.text import Line, to_ascii


class Palette(NamedTuple):
    """Colours of the roles; every other colour on the screen belongs to a phase."""

    background: str
    raised: str
    text: str
    dim: str
    faint: str
    accent: str
    good: str
    warn: str
    bad: str


DARK = Palette("#10141a", "#1d2530", "#ccd3db", "#8a94a0", "#4a5460", "#7cb7ff", "#74c69d", "#e6b450", "#f2777a")
LIGHT = Palette("#fbfbf9", "#e6ebf1", "#23292f", "#5d6770", "#b4bbc2", "#0b63c4", "#20794a", "#8f5d00", "#bf2233")
ANSI = Palette("default", "default", "default", "bright_black", "bright_black", "cyan", "green", "yellow", "red")


class Look:
    """How roles are drawn on this terminal.

    `colours` is `full`, `ansi` (16 colours, the terminal's own background) or `none`; `ascii` leaves no character above 127.
    """

    def __init__(self, *, colours: str, dark: bool, ascii: bool, phases: Sequence[PhaseStyle]) -> None:
        self.colours = colours
        self.dark = dark
        self.ascii = ascii
        self.phases = tuple(phases)
        self.palette = ANSI if colours != "full" else DARK if dark else LIGHT
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
        style = Style(color=self.palette.text) if self.colours == "full" else Style()
        for word in role.split():
            style += self._word(word)
        return style

    def _word(self, word: str) -> Style:
        if self.colours == "none":
            return NO_COLOUR.get(word) or self._phase_without_colour(word)
        if word in {"dim", "faint", "accent", "good", "warn", "bad"}:
            return Style(color=getattr(self.palette, word))
        if word == "bold":
            return Style(bold=True)
        if word == "select":
            return Style(reverse=True) if self.colours == "ansi" else Style(bgcolor=self.palette.raised)
        if word == "key":
            return Style(color=self.palette.accent)
        if word == "tab":
            return Style(color=self.palette.accent, bold=True, underline=self.colours == "ansi")
        if word[:1] == "p" and word[1:].isdigit():
            return Style(color=self._phase_colour(int(word[1:])))
        return Style()

    def _phase_colour(self, index: int) -> Color:
        phase = self.phase(index)
        if phase is None:
            return Color.parse(self.palette.dim)
        name = phase.colour if self.colours == "full" else phase.colour16
        try:
            colour = Color.parse(name)
        except ColorParseError:
            return Color.parse(self.palette.dim)
        if self.colours != "full":
            return colour
        triplet = colour.get_truecolor()
        if not self.dark:
            # Phase colours are chosen for a dark ground; on a light one they need more ink.
            triplet = blend_rgb(triplet, ColorTriplet(0, 0, 0), 0.25)
        if phase.kind != "work":
            # Waiting recedes, so that work is what the eye finds.
            triplet = blend_rgb(triplet, Color.parse(self.palette.background).get_truecolor(), 0.5)
        return Color.from_triplet(triplet)

    def _phase_without_colour(self, word: str) -> Style:
        if word[:1] == "p" and word[1:].isdigit():
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

"""Themes and layout of the app."""

from __future__ import annotations

from textual.theme import Theme

from ppscope.widgets.look import DARK, LIGHT, Palette

CSS = """
Screen { layout: vertical; overflow: hidden; background: $background; }
#main { height: 100%; }
#header, #strip, #legend, #tabs, #footer { width: 100%; height: 1; }
#header { height: 2; }
#lanes { width: 100%; }
#labels { height: 100%; width: auto; }
.tall #lanes, .tall #tabs { margin-top: 1; }
#small { height: 100%; width: 100%; display: none; }
#filter { height: 1; border: none; padding: 0 1; display: none; background: $background; }
"""
"""Heights that follow from the terminal's size and the number of rows are set by `app_paint`."""


def _theme(name: str, palette: Palette, dark: bool) -> Theme:
    return Theme(
        name=name, primary=palette.hex("accent"), foreground=palette.hex("text"), background=palette.hex("background"),
        surface=palette.hex("raised"), panel=palette.hex("raised"), success=palette.hex("good"),
        warning=palette.hex("warn"), error=palette.hex("bad"), accent=palette.hex("accent"), dark=dark,
    )  # fmt: skip


THEMES = (_theme("ppscope-dark", DARK, True), _theme("ppscope-light", LIGHT, False))

"""Shares of a whole as everything here writes them."""

from __future__ import annotations

import re

UNKNOWN = "–"
_TORN = re.compile(r"(?<=\d) %")


def share(value: float | None, digits: int = 0) -> str:
    """`85 %`, `4.2 %`; `–` where it is not known."""
    return UNKNOWN if value is None else f"{value * 100:.{digits}f} %"


def held(text: str) -> str:
    """The text with each figure tied to its percent sign, so that wrapping does not tear them apart; `loose` undoes it."""
    return _TORN.sub("\N{NO-BREAK SPACE}%", text)


def loose(text: str) -> str:
    """The text with plain spaces."""
    return text.replace("\N{NO-BREAK SPACE}", " ")

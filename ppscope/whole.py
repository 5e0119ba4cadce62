"""Whole numbers in foreign text."""

from __future__ import annotations


def whole(text: str | None, digits: int = 9, *, signed: bool = False) -> int | None:
    """The number, None where there is none: `²` is a digit to Python and no number, `--6` is neither, and 5000 digits are refused."""
    if text is None:
        return None
    figures = text[1:] if signed and text[:1] in ("+", "-") else text
    return int(text) if figures.isascii() and figures.isdigit() and len(figures) <= digits else None

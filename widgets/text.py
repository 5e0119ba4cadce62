"""Lines of text with roles: what every widget draws, made by pure functions and free of terminal styles.

A role is a space-separated list of words that `look.Look` turns into a style: `dim`, `faint`, `bold`, `accent`, `good`,
`warn`, `bad`, `work`, `select`, `pN` for a cell of phase N and `tN` for text
in its colour. Text is never parsed as markup.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

from rich.cells import cell_len, set_cell_size

from ppscope.figures import share

Span = tuple[str, str]
"""(text, role)."""

Line = tuple[Span, ...]
"""Spans of one row, left to right."""

UNKNOWN = "–"
SEPARATOR = " · "


@lru_cache(4096)
def clean(text: str) -> str:
    """Text that cannot move the cursor, change direction or pile up marks: such characters become `�` or are left out."""
    if text.isascii() and text.isprintable():
        return text
    out: list[str] = []
    for char in text:
        if unicodedata.combining(char) or "\ufe00" <= char <= "\ufe0f":
            continue
        out.append(char if char.isprintable() else " " if char.isspace() else "�")
    return "".join(out)


def width_of(line: Iterable[Span]) -> int:
    """Terminal cells a line takes."""
    return sum(len(text) if text.isascii() else cell_len(text) for text, _ in line)


def cut(text: str, width: int) -> str:
    """Text in at most `width` cells, ending in `…` where it was cut."""
    text = clean(text)
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…" if width > 1 else "…"[:width]


def cut_left(text: str, width: int) -> str:
    """Text in at most `width` cells that keeps its end: file paths."""
    text = clean(text)
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) > width - 1:
        text = text[1:]
    return "…" + text


def left(text: str, width: int) -> str:
    """Text padded or cut to exactly `width` cells, flush left."""
    text = cut(text, width)
    return text + " " * (width - cell_len(text))


def right(text: str, width: int) -> str:
    """Text padded or cut to exactly `width` cells, flush right."""
    text = cut(text, width)
    return " " * (width - cell_len(text)) + text


def crop(line: Line, width: int) -> Line:
    """A line in at most `width` cells; a span that does not fit ends in `…`."""
    used = 0
    out: list[Span] = []
    for text, role in line:
        size = cell_len(text)
        if used + size > width:
            if width > used:
                out.append((cut(text, width - used), role))
            break
        out.append((text, role))
        used += size
    return tuple(out)


def part(line: Line, start: int, width: int) -> Line:
    """The cells `start` to `start + width` of a line; half of a wide character becomes a space."""
    out: list[Span] = []
    at = 0
    for text, role in line:
        kept = ""
        for char in text:
            size = cell_len(char)
            if start <= at and at + size <= start + width:
                kept += char
            elif at < start + width and at + size > start:
                kept += " " * (min(at + size, start + width) - max(at, start))
            at += size
        if kept:
            out.append((kept, role))
    return tuple(out)


def spread(start: Line, end: Line, width: int) -> Line:
    """`start` flush left and `end` flush right in `width` cells; the end gives way where both do not fit."""
    gap = width - width_of(start) - width_of(end)
    if gap < 1:
        return crop(start, width)
    return (*start, (" " * gap, ""), *end)


def joined(parts: Sequence[Line | Span | None], separator: str = SEPARATOR) -> Line:
    """Lines or spans with a faint separator between them; None is left out."""
    out: list[Span] = []
    for part in parts:
        if not part:
            continue
        if out:
            out.append((separator, "faint"))
        if isinstance(part[0], str):
            out.append((part[0], str(part[1])))
        else:
            out.extend(part)
    return tuple(out)


def flowed(parts: Sequence[Line], width: int, separator: str = SEPARATOR) -> list[Line]:
    """The same on as many lines as it takes: a part goes to the next line whole."""
    lines: list[Line] = []
    row: list[Line] = []
    for part in parts:
        if row and width_of(joined([*row, part], separator)) > width:
            lines.append(joined(row, separator))
            row = []
        row.append(part)
    return [*lines, joined(row, separator)] if row else lines


def wrapped(text: str, width: int) -> list[str]:
    """Text broken at spaces into rows of at most `width` cells; a longer word is cut into pieces."""
    rows: list[str] = []
    row = ""
    for word in clean(text).split():
        piece = word
        while cell_len(piece) > width:
            if row:
                rows.append(row)
                row = ""
            head = set_cell_size(piece, width).rstrip()
            rows.append(head)
            piece = piece[len(head) :]
        if row and cell_len(row) + 1 + cell_len(piece) > width:
            rows.append(row)
            row = piece
        else:
            row = f"{row} {piece}" if row else piece
    if row:
        rows.append(row)
    return rows


def percent(part: float | None) -> str:
    """A share 0–1 as whole percent."""
    return share(part)


def number(value: float | None, unit: str = "", digits: int = 0) -> str:
    """A figure with its unit, `–` when it is not known."""
    if value is None:
        return UNKNOWN
    text = f"{value:.{digits}f}"
    return f"{text} {unit}" if unit else text


def gib(value: int | None) -> str:
    """Bytes as GiB without the unit."""
    return UNKNOWN if value is None else f"{value / 2**30:.1f}"


def duration(ns: int) -> str:
    """A span of time in the unit that gives three figures."""
    if ns >= 1_000_000_000:
        return f"{ns / 1e9:.2f} s"
    if ns >= 1_000_000:
        return f"{ns / 1e6:.1f} ms"
    return f"{ns / 1e3:.0f} µs"


def elapsed(ns: int, digits: int = 0) -> str:
    """Time since the attach as `m:ss`, with decimals where asked."""
    sign = "-" if ns < 0 else ""
    total = round(abs(ns) / 1e9, digits)
    minutes, seconds = divmod(total, 60)
    whole = f"{int(seconds):02d}" if digits == 0 else f"{seconds:0{digits + 3}.{digits}f}"
    return f"{sign}{int(minutes)}:{whole}"


BLOCKS = " ▁▂▃▄▅▆▇█"
ASCII_RAMP = " _.:-=+*#"


def spark(values: Sequence[float | None], top: float | None, width: int) -> str:
    """The last `width` values as block heights up to `top` (None: the largest); unknown is a gap."""
    seen = [value for value in values[-width:] if value is not None]
    highest = top or max(seen, default=0.0) or 1.0
    text = "".join(
        " " if value is None else BLOCKS[max(1, min(8, round(value / highest * 8)))] for value in values[-width:]
    )
    return text.rjust(width)


def bar(share: float | None, width: int) -> str:
    """A share 0–1 as a bar of `width` cells in eighths."""
    if share is None:
        return " " * width
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width)


ASCII = str.maketrans(
    "–—…·×●○✖▲▸▾│─❚◂■▶█▇▆▅▄▃▂▁▉▊▋▌▍▎▏←→↑↓≠≈≅µ°┊├└›«»⋯┃━╌’“”",
    '--~|x*oX!>v|-=<#>###==--_###=-- <>^v!~*u :|`><>~#=-\'""',
)


def to_ascii(text: str) -> str:
    """The same text, cell for cell, in ASCII."""
    if text.isascii():
        return text
    text = text.translate(ASCII)
    return text if text.isascii() else "".join(c if c.isascii() else "?" * cell_len(c) for c in text)

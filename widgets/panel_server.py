"""The server panel: load over time, and every setting as asked, as resolved and as seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ppscope.views import Load, SettingRow
from ppscope.widgets.listing import Item, Listing
from ppscope.widgets.text import UNKNOWN, Line, clean, left, number, right, spark


class LoadHistory(NamedTuple):
    """Load once a second, oldest first."""

    tokens_per_s: tuple[float | None, ...] = ()
    running: tuple[float | None, ...] = ()
    queued: tuple[float | None, ...] = ()


def server_listing(rows: Sequence[SettingRow], load: Load, history: LoadHistory, text: str, width: int) -> Listing:
    """Settings that differ first; `text` keeps those with it in their name."""
    cells = max(10, min(60, width // 2))
    head: list[Line] = [
        _history("tok/s", history.tokens_per_s, load.tokens_per_s, cells, 1),
        _history("running", history.running, load.running, cells, 0),
        _history("queued", history.queued, load.queued, cells, 0),
    ]
    name = max((len(row.name) for row in rows), default=10)
    name = min(name + 2, max(20, width // 3))
    column = max(8, (width - name - 6) // 3)
    head.append((
        ("   " + left("setting", name), "dim"), (left("requested", column), "dim"), (left("resolved", column), "dim"),
        (left("observed", column), "dim"),
    ))  # fmt: skip
    wanted = text.casefold()
    ordered = sorted((row for row in rows if wanted in row.name.casefold()), key=lambda row: not row.differs)
    items = [Item((_line(row, name, column),), row.name, _text(row)) for row in ordered]
    if not items:
        why = "is known: neither the command line nor /server_info was readable"
        items = [Item((((f"   no setting {f'has {clean(text)!r}' if rows else why}", "dim"),),))]
    return Listing(tuple(items), tuple(head))


def _history(name: str, values: Sequence[float | None], last: float | None, cells: int, digits: int) -> Line:
    return (
        (f"   {name:<8}", "dim"),
        (right(number(last, digits=digits), 8), "bold"),
        ("  ", ""),
        (spark(values, None, cells), "accent"),
    )


def _line(row: SettingRow, name: int, column: int) -> Line:
    role = "warn" if row.differs else ""
    cells = [(left(_said(value), column - 1) + " ", role if value is not None else "faint")
             for value in (row.requested, row.resolved, row.observed)]  # fmt: skip
    return (
        (" ≠ " if row.differs else "   ", "warn bold"),
        (left(row.name, name), "bold" if row.differs else ""),
        *cells,
    )


def _text(row: SettingRow) -> str:
    asked, resolved, observed = _said(row.requested), _said(row.resolved), _said(row.observed)
    return clean(f"{row.name}: requested {asked}, resolved {resolved}, observed {observed}")


def _said(value: str | None) -> str:
    return UNKNOWN if value is None else value

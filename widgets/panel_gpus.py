"""The GPU panel: a row per GPU with its history; emulated GPUs say so."""

from __future__ import annotations

from collections.abc import Sequence

from ppscope.views import GpuPanelRow
from ppscope.widgets.listing import Item, Listing
from ppscope.widgets.rows import short_rank_name
from ppscope.widgets.text import UNKNOWN, Line, Span, clean, gib, left, number, right, spark


def gpus_listing(rows: Sequence[GpuPanelRow], width: int) -> Listing:
    """One item per GPU, columns aligned under a fixed head; columns that do not fit are left out from the right."""
    if not rows:
        return Listing((Item(((("  no GPU is known: `ppscope doctor` says why", "dim"),),)),))
    wide = 24 if width >= 150 else 14 if width >= 116 else 8
    head: list[Span] = []
    for name, cells in _columns(wide, width):
        head.append(
            (right(name, cells) if name not in {"power W", "throttle", "ranks"} else left("  " + name, cells), "dim")
        )
    return Listing(tuple(Item((_line(row, wide, width),), row.device.uuid, _text(row)) for row in rows), (tuple(head),))


def _columns(wide: int, width: int) -> list[tuple[str, int]]:
    columns = [
        ("gpu", 5), ("power W", wide + 11), ("util", wide + 7), ("memory GiB", 13), ("temp", 6), ("throttle", 16),
        ("SM MHz", 8), ("ranks", 16), ("pcie rx/tx MB/s", 17), ("pcie gen", 10), ("mem MHz", 9),
    ]  # fmt: skip
    used = 0
    shown = []
    for name, cells in columns:
        if used + cells > width:
            break
        used += cells
        shown.append((name, cells))
    return shown


def _line(row: GpuPanelRow, wide: int, width: int) -> Line:
    last = row.last
    stale = row.stalled_s is not None
    role = "faint" if stale else ""
    limit = row.device.power_limit_w if last is None or last.power_limit_w is None else last.power_limit_w
    power = None if last is None else last.power_w
    util = None if last is None else last.util_percent
    used = gib(None if last is None else last.memory_used_bytes)
    values: dict[str, list[Span]] = {
        "gpu": [(right(str(row.device.index), 5), "bold" if not stale else role)],
        "power W": [
            (" " + spark(row.power_w, limit, wide), role or "accent"),
            (right(f"{number(power)}/{number(limit)}", 10), role),
        ],
        "util": [(" " + spark(row.util_percent, 100.0, wide), role or "good"), (right(number(util, "%"), 6), role)],
        "memory GiB": [(right(f"{used}/{gib(row.device.memory_total_bytes)}", 13), role)],
        "temp": [(right(number(None if last is None else last.temperature_c, "°C"), 6), role)],
        "SM MHz": [(right(number(None if last is None else last.sm_clock_mhz), 8), role)],
        "mem MHz": [(right(number(None if last is None else last.memory_clock_mhz), 9), role)],
        "pcie rx/tx MB/s": [(right(_pcie(row), 17), role)],
        "pcie gen": [(right(_link(row), 10), role)],
        "throttle": [_throttle(row)],
        "ranks": [(left("  " + _ranks(row), 16), role or "dim")],
    }
    return tuple(span for name, _ in _columns(wide, width) for span in values[name])


def _throttle(row: GpuPanelRow) -> Span:
    if row.stalled_s is not None:
        return left(f"  stalled {row.stalled_s:.0f} s", 16), "warn"
    return left(f"  {_reasons(row)}", 16), "warn" if row.throttle else "dim"


def _reasons(row: GpuPanelRow) -> str:
    if row.throttle:
        return ",".join(clean(name) for name in row.throttle)
    known = row.last is not None and row.last.throttle_reasons is not None
    return "none" if known else UNKNOWN


def _ranks(row: GpuPanelRow) -> str:
    names = [short_rank_name(key) for key in row.ranks]
    return (",".join(names) or UNKNOWN) + (" emulated" if row.device.emulated else "")


def _pcie(row: GpuPanelRow) -> str:
    last = row.last
    if last is None:
        return f"{UNKNOWN}/{UNKNOWN}"
    figures = [None if kb is None else kb / 1000 for kb in (last.pcie_rx_kb_s, last.pcie_tx_kb_s)]
    return "/".join(number(figure, digits=1) for figure in figures)


def _link(row: GpuPanelRow) -> str:
    last = row.last
    if last is None or last.pcie_gen is None:
        return UNKNOWN
    return f"{last.pcie_gen} ×{number(last.pcie_width)}"


def _text(row: GpuPanelRow) -> str:
    """The row as it is shown: a stalled GPU has no present figures, an unknown reason is none."""
    last = row.last
    power = None if last is None else last.power_w
    util = None if last is None else last.util_percent
    name = clean(row.device.name) + (" (emulated)" if row.device.emulated else "")
    stalled = f"stalled {row.stalled_s:.0f} s, before that " if row.stalled_s is not None else ""
    return (
        f"GPU {row.device.index} {name}: {stalled}{number(power, 'W')}, {number(util, '%')} util, throttle {_reasons(row)},"
        f" ranks {_ranks(row)}"
    )

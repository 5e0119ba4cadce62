"""The rows beside the Gantt: stages, their ranks when folded out, and a second row where a GPU lane is known."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ppscope.records import RankKey
from ppscope.views import RankRow, StageRow
from ppscope.widgets.text import UNKNOWN, Line, Span, clean, left, number, percent, right


class Row(NamedTuple):
    """One row of the Gantt. `rank` is the rank whose lane it shows; `kind` is `stage`, `rank` or `gpu`."""

    kind: str
    stage: StageRow
    rank: RankRow
    folded_out: bool = False

    @property
    def lane(self) -> str | None:
        """Which lane of the rank is drawn, None where the ranks below show theirs."""
        return None if self.folded_out else "gpu" if self.kind == "gpu" else "host"


class Column(NamedTuple):
    """A label column: its name, its width in cells, and the terminal width from which it is shown."""

    name: str
    width: int
    from_width: int


COLUMNS = (
    Column("stage", 7, 0),
    Column("gpu", 6, 0),
    Column("power", 10, 0),
    Column("load", 8, 140),
    Column("util", 6, 0),
    Column("host", 6, 0),
    Column("busy", 6, 96),
)


def stage_name(stage: StageRow, several_dp: bool) -> str:
    """`PP3`, with the data-parallel rank in front where there are several."""
    if stage.label is not None:
        return clean(stage.label)
    return f"D{stage.dp}·PP{stage.pp}" if several_dp else f"PP{stage.pp}"


def rank_name(key: RankKey) -> str:
    """`PP3 TP1`, with the data-parallel rank in front of all but the first replica's."""
    name = f"PP{key.pp} TP{key.tp}"
    return f"DP{key.dp} {name}" if key.dp else name


def short_rank_name(key: RankKey) -> str:
    """`PP3.1` for stage 3 and tensor-parallel rank 1, where many names share a cell."""
    name = f"PP{key.pp}.{key.tp}"
    return f"D{key.dp}·{name}" if key.dp else name


def stage_rows(
    stages: Sequence[StageRow], folded_out: Collection[tuple[int, int]], gpu_lanes: Collection[RankKey], text: str = ""
) -> list[Row]:
    """Rows top to bottom; `text` keeps the stages and ranks that have it in their name, pid, GPU or exit reason."""
    several_dp = len({stage.dp for stage in stages}) > 1
    wanted = text.casefold()
    rows: list[Row] = []
    for stage in stages:
        if not stage.ranks:
            continue
        ranks = [rank for rank in stage.ranks if not wanted or wanted in _haystack(stage, rank, several_dp)]
        if not ranks:
            continue
        out = (stage.dp, stage.pp) in folded_out
        first = next((rank for rank in ranks if rank.alive), ranks[0])
        rows.append(Row("stage", stage, first, out))
        shown = ranks if out else [first]
        for rank in shown:
            if out:
                rows.append(Row("rank", stage, rank))
            if rank.key in gpu_lanes:
                rows.append(Row("gpu", stage, rank))
    return rows


def _haystack(stage: StageRow, rank: RankRow, several_dp: bool) -> str:
    gpu = "" if rank.gpu_index is None else f"gpu{rank.gpu_index}"
    words = (
        stage_name(stage, several_dp),
        rank_name(rank.key),
        f"tp{rank.key.tp}",
        str(rank.pid),
        gpu,
        rank.exit_reason or "",
    )
    return " ".join(words).casefold()


def shown_columns(width: int) -> list[Column]:
    """The label columns that a terminal of this width has room for."""
    return [column for column in COLUMNS if width >= column.from_width]


def label_widths(width: int) -> list[int]:
    """Cells of the label columns: the marker with the stage, the figures, the provenance mark."""
    columns = shown_columns(width)
    return [2 + columns[0].width, *(column.width for column in columns[1:]), 3]


def head_line(width: int) -> Line:
    """The column names."""
    spans: list[Span] = [("  ", "")]
    for column in shown_columns(width):
        name = {"load": ""}.get(column.name, column.name)
        spans.append(((left if column.name == "stage" else right)(name, column.width), "dim"))
    return tuple(spans)


PROVENANCE_MARK = {"exact": "=", "sampled": "~", "inferred": "≅"}


def label_line(
    row: Row, width: int, *, cursor: bool, several_dp: bool, provenance: str | None, traced: bool = True
) -> Line:
    """The labels of one row; a dead rank is grey and says how it ended. Without `traced` a burst's busy share is not shown."""
    marker = "▸ " if cursor else "▾ " if row.folded_out else "  "
    lead: Span = (marker, "accent" if cursor else "dim")
    mark: Span = (f" {PROVENANCE_MARK.get(provenance or '', ' ')} ", "faint")
    columns = shown_columns(width)
    if row.kind == "gpu":
        return (lead, (right("gpu lane", sum(column.width for column in columns)), "faint"), mark)
    alive = row.stage.alive if row.kind == "stage" else row.rank.alive
    name = f"  TP{row.rank.key.tp}" if row.kind == "rank" else stage_name(row.stage, several_dp)
    name_role = "accent bold" if cursor else "dim" if not alive else ""
    spans: list[Span] = [lead, (left(name, columns[0].width), name_role)]
    if not alive:
        rest = sum(column.width for column in columns[1:])
        reason = clean(row.rank.exit_reason or "gone")
        return (
            *spans,
            (left(f"  ✖ {'exited' if reason in {'gone', 'zombie'} else reason}, pid {row.rank.pid}", rest), "faint"),
            mark,
        )
    if row.rank.exit_reason == "stopped":
        rest = sum(column.width for column in columns[1:])
        return (*spans, (left(f"  ▲ stopped, pid {row.rank.pid}", rest), "warn"), mark)
    figures = _figures(row, traced)
    for column in columns[1:]:
        if column.name == "load":
            spans += _power_bar(row)
            continue
        text, role = figures[column.name]
        spans.append((right(text, column.width), role))
    return (*spans, mark)


def _figures(row: Row, traced: bool) -> dict[str, Span]:
    stage, rank = row.stage, row.rank
    whole = row.kind == "stage"
    power = stage.power_w if whole else rank.power_w
    limit = stage.power_limit_w if whole else rank.power_limit_w
    util = stage.util_percent if whole else rank.util_percent
    host = stage.host_work if whole else rank.host_cpu
    busy = stage.busy if whole and (traced or stage.busy_source != "trace") else None
    gpu = _gpus(stage.gpus) if whole else number(rank.gpu_index)
    return {
        "gpu": (gpu, "dim"),
        "power": (UNKNOWN if power is None else f"{power:.0f}/{number(limit)} W", "dim" if power is None else ""),
        "util": (UNKNOWN if util is None else f"{util:.0f} %", "dim" if util is None else ""),
        "host": (percent(host), "dim" if host is None else ""),
        "busy": (percent(busy), "dim" if busy is None else ""),
    }


def _power_bar(row: Row) -> list[Span]:
    power = row.stage.power_w if row.kind == "stage" else row.rank.power_w
    limit = row.stage.power_limit_w if row.kind == "stage" else row.rank.power_limit_w
    if power is None or not limit:
        return [(" " * 8, "")]
    full = max(0, min(6, round(power / limit * 6)))
    return [(" ", ""), ("━" * full, "accent"), ("─" * (6 - full), "faint"), (" ", "")]


def _gpus(indices: Sequence[int]) -> str:
    if not indices:
        return UNKNOWN
    if len(indices) > 1 and list(indices) == list(range(indices[0], indices[-1] + 1)):
        return f"{indices[0]}-{indices[-1]}"
    return ",".join(str(index) for index in indices)

"""The settings panel: what was asked, what the server made of it, what was seen. Pure; the rows are listed in `target/settings.toml`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files

import msgspec

from ppscope.diagnose.graph_state import captured_sizes, graph_states, is_new_generation
from ppscope.records import BatchLog, LogNote, Metric
from ppscope.views import GraphState, SettingRow

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["captured_sizes", "graph_states", "resolved_value", "setting_rows"]

_Settings = Mapping[str, object]
_GRAPHS_AFTER = "cuda_graph_max_bs"
_SLOTS_AFTER = "pp_async_batch_depth"


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    requested: list[str]
    resolved: list[str] = []
    resolved_old: list[str] = []
    resolved_new: list[str] = []
    quiet: list[str] | None = None


@lru_cache(maxsize=1)
def _table() -> tuple[_Row, ...]:
    text = files("ppscope.target").joinpath("settings.toml").read_text(encoding="utf-8")
    return tuple(msgspec.convert(tomllib.loads(text)["setting"], list[_Row]))


def setting_rows(
    requested: _Settings | None,
    resolved: _Settings | None,
    observed: Mapping[str, str] | None = None,
    *,
    batches: Iterable[BatchLog] = (),
    metrics: Iterable[Metric] = (),
    notes: Iterable[LogNote] = (),
) -> tuple[SettingRow, ...]:
    """Rows in the panel's order.

    `observed` maps row names to what was seen elsewhere (`pp_size` from the processes, `micro-batch slots` from the loop);
    `batches`, `metrics` and `notes` are those of the window. A row differs where what was asked, resolved and seen is not the same.
    """
    seen = dict(observed or {})
    decode, prefill = graph_states(requested, resolved, batches, metrics)
    rows: list[SettingRow] = []
    for row in _table():
        asked = _text(_first(requested, row.requested))
        made = _text(_first_resolved(resolved, row))
        found = seen.get(row.name)
        if row.quiet is None or asked is not None or found is not None or (made is not None and made not in row.quiet):
            rows.append(_row(row.name, asked, made, found))
        if row.name == _SLOTS_AFTER:
            rows.append(_slots(resolved, seen.get("micro-batch slots")))
        if row.name == _GRAPHS_AFTER:
            rows += [_graph_row("decode graph", decode), _graph_row("prefill graph", prefill)]
            sizes = captured_sizes(resolved, notes)
            configured = requested and (requested.get("cuda_graph_bs_decode") or requested.get("cuda_graph_bs"))
            asked_sizes = _sizes(configured if isinstance(configured, list) else [configured]) if configured else None
            made_sizes = None if sizes is None else _sizes(sizes.values)
            captured = made_sizes if sizes is not None and sizes.source == "captured" else None
            if asked_sizes or made_sizes:
                rows.append(
                    SettingRow("captured sizes", asked_sizes, made_sizes if captured is None else None, captured, False)
                )
    return tuple(rows)


def resolved_value(resolved: _Settings | None, name: str) -> object:
    """The resolved value of one of the table's settings (the first data-parallel rank's); None where it is not known."""
    row = next((row for row in _table() if row.name == name), None)
    value = None if row is None else _first_resolved(resolved, row)
    return None if isinstance(value, _Unset) else value


def _slots(resolved: _Settings | None, seen: str | None) -> SettingRow:
    """`pp_size` slots, and as many more as `pp_async_batch_depth` says (0.5.9 on; 0.5.6 has no such setting)."""
    size = resolved.get("pp_size") if resolved else None
    depth = resolved.get("pp_async_batch_depth", 0) if resolved else None
    made = str(size + depth) if isinstance(size, int) and isinstance(depth, int) else None
    return _row("micro-batch slots", None, made, seen)


def _graph_row(name: str, state: GraphState) -> SettingRow:
    known = {fact for fact in (state.requested, state.resolved, state.observed) if fact is not None}
    return SettingRow(name, state.requested, state.resolved, state.observed, len(known) > 1)


def _row(name: str, asked: str | None, made: str | None, seen: str | None) -> SettingRow:
    known = {fact.lower() for fact in (asked, made, seen) if fact is not None}
    return SettingRow(name, asked, made, seen, len(known) > 1)


def _first(values: _Settings | None, names: Iterable[str]) -> object:
    return next((values[name] for name in names if values.get(name) is not None), None) if values else None


def _first_resolved(resolved: _Settings | None, row: _Row) -> object:
    if not resolved:
        return None
    paths = row.resolved + (row.resolved_new if is_new_generation(resolved) else row.resolved_old)
    known = False
    for path in paths:
        present, value = _at(resolved, path)
        known = known or present
        if value is not None:
            return _whole(value, path, resolved)
    return _UNSET if known else None


def _whole(value: object, path: str, resolved: _Settings) -> object:
    """What is counted per data-parallel rank, as the option counts it: for all of them."""
    ranks = resolved.get("dp_size")
    per_rank = path.endswith("_per_dp") and isinstance(value, int) and isinstance(ranks, int)
    return value * ranks if per_rank else value  # type: ignore[operator]


class _Unset:
    """The server answered that nothing is set."""


_UNSET = _Unset()


def _at(values: _Settings, path: str) -> tuple[bool, object]:
    head, _, rest = path.partition(".")
    if head not in values:
        return False, None
    value = values[head]
    if not rest:
        return True, value
    if isinstance(value, list):  # one per data-parallel rank: they agree but for their numbers
        return next(
            (found for item in value if isinstance(item, Mapping) and (found := _at(item, rest))[0]), (False, None)
        )
    return _at(value, rest) if isinstance(value, Mapping) else (False, None)


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, _Unset):
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return ", ".join(_text(item) or "none" for item in value)
    return str(value)


def _sizes(values: Sequence[object]) -> str:
    """A list of batch sizes, short: all of a few, else the ends and how many."""
    texts = [str(value) for value in values]
    if not texts:
        return "none"
    return " ".join(texts) if len(texts) <= 6 else f"{texts[0]} … {texts[-1]} ({len(texts)} sizes)"

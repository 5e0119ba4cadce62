"""Before and after: figures, findings and settings of two documents, and whether they can be compared at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from ppscope.snapshot.compare_text import summarize
from ppscope.snapshot.comparison import Comparison, Figure, Json
from ppscope.snapshot.measure import Measures, measure
from ppscope.snapshot.outcome import outcome

LOAD_RATIO = 1.5
"""Requests (running and queued) that differ by more are another load."""
NOISE = 0.05
"""A counted figure that changed by less is called the same: load generators swing by as much."""
SHORT_NOISE = 0.15
"""The same where a window is shorter than SHORT_S: a few batches more or less."""
SHORT_S = 20.0
SAMPLED_NOISE = 0.25
"""The same for figures from samples."""


class _Kind(NamedTuple):
    name: str
    unit: str
    more: bool | None
    """Whether more is better; None: neither."""
    noise: float
    read: Callable[[Measures], float | None]


_SLOTS = "micro-batch slots in use"
_AT_WORK = "hosts working at once"
_FIGURES = (
    _Kind("throughput", "tok/s", True, NOISE, lambda m: m.tokens_per_s),
    _Kind("step time", "ms", False, NOISE, lambda m: m.step_ms),
    _Kind(_SLOTS, "", True, SAMPLED_NOISE, lambda m: m.occupied),
    _Kind("requests in a pass", "", None, SAMPLED_NOISE, lambda m: m.pass_requests),
    _Kind("passes of a stage", "/s", None, SAMPLED_NOISE, lambda m: m.passes_per_s),
    _Kind(_AT_WORK, "", None, SAMPLED_NOISE, lambda m: m.stages_at_work),
    _Kind("bubble", "share", False, NOISE, lambda m: m.bubble),
    _Kind("eager launches per step", "", False, NOISE, lambda m: m.eager_per_step),
    _Kind("power per GPU", "W", None, NOISE, lambda m: m.power_w),
    _Kind("running requests", "", None, NOISE, lambda m: m.running),
    _Kind("queued requests", "", None, NOISE, lambda m: m.queued),
)


def compare_documents(before: Json, after: Json, names: tuple[str, str]) -> Comparison:
    """Compare two documents; `names` are what to call them."""
    one, other = measure(before), measure(after)
    refused = tuple(_refusals(before["view"], after["view"], one, other))
    short = min(document["window"]["seconds"] for document in (before, after)) < SHORT_S
    kinds = [kind._replace(noise=max(kind.noise, SHORT_NOISE)) for kind in _FIGURES] if short else _FIGURES
    wholes = {
        _SLOTS: [view["occupancy"]["slots"] for view in (before["view"], after["view"])],
        _AT_WORK: [len(view["stages"]) for view in (before["view"], after["view"])],
    }
    kinds = [_of_how_many(kind, wholes.get(kind.name, [])) for kind in kinds]
    figures = [_figure(kind, kind.read(one), kind.read(other), not refused) for kind in kinds]
    figures = [_told_apart(figure, one, other) for figure in figures]
    at = [figure.name for figure in figures].index(_AT_WORK) + 1
    figures[at:at] = _stage_figures(one, other, not refused)
    for kind in ("decode", "prefill"):
        states = [
            view["graphs"][kind]["observed"] or view["graphs"][kind]["resolved"]
            for view in (before["view"], after["view"])
        ]
        figures.append(Figure(f"{kind} graphs", "", states[0], states[1], None, None))
    settings = tuple(_settings(before["view"], after["view"]))
    became = outcome(before, after, one, other, not refused)
    comparison = Comparison(
        before=names[0],
        after=names[1],
        model=after["view"]["server"].get("model"),
        refused=refused,
        figures=tuple(figure for figure in figures if figure.before is not None or figure.after is not None),
        resolved=became.resolved,
        appeared=became.appeared,
        remaining=became.remaining,
        unknown_after=became.unknown_after,
        unknown_before=became.unknown_before,
        settings=settings,
        summary=(),
    )
    return msgspec.structs.replace(comparison, summary=tuple(summarize(comparison, one, other)))


def _of_how_many(kind: _Kind, wholes: Sequence[int | None]) -> _Kind:
    same = len(set(wholes)) == 1 and wholes[0] is not None
    return kind._replace(unit=f"of {wholes[0]}") if same else kind


def _refusals(before: Json, after: Json, one: Measures, other: Measures) -> list[str]:
    reasons = []
    models = (before["server"].get("model"), after["server"].get("model"))
    if all(models) and models[0] != models[1]:
        reasons.append(f"they serve other models: {models[0]} and {models[1]}")
    devices = (before["server"].get("device"), after["server"].get("device"))
    if all(devices) and devices[0] != devices[1]:
        reasons.append(f"they run on other devices: {devices[0]} and {devices[1]}")
    if bool(before["server"].get("emulated")) != bool(after["server"].get("emulated")):
        reasons.append("one of them is emulated")
    if one.active is False or other.active is False:
        which = "both" if one.active is other.active else "the first" if one.active is False else "the second"
        reasons.append(f"no forward pass was seen in {which}: there is no load to compare under")
    elif one.requests is not None and other.requests is not None:
        low, high = sorted((one.requests, other.requests))
        if high > LOAD_RATIO * max(low, 1):
            reasons.append(f"the load is another: {one.requests:.0f} requests before, {other.requests:.0f} after")
    return reasons


def _figure(kind: _Kind, before: float | None, after: float | None, comparable: bool) -> Figure:
    ratio = after / before if comparable and before and after is not None else None
    verdict = None
    if ratio is not None and kind.more is not None:
        # Alike in both directions: a change undone must not be under another verdict.
        changed = ratio == 0 or max(ratio, 1 / ratio) - 1 >= kind.noise
        verdict = "same" if not changed else "better" if (ratio > 1) is kind.more else "worse"
    return Figure(kind.name, kind.unit, before, after, ratio, verdict, kind.noise if verdict is not None else None)


def _told_apart(figure: Figure, one: Measures, other: Measures) -> Figure:
    """Slots whose intervals overlap are the same, however far their means lie apart: then few samples were seen."""
    spans = (one.occupied_likely, other.occupied_likely)
    if figure.name != _SLOTS or figure.verdict in (None, "same") or spans[0] is None or spans[1] is None:
        return figure
    if min(spans[0][1], spans[1][1]) < max(spans[0][0], spans[1][0]):
        return figure
    return msgspec.structs.replace(figure, verdict="same", noise=None)


def _stage_figures(one: Measures, other: Measures, comparable: bool) -> list[Figure]:
    figures = []
    for title, before, after in (("busy", one.busy, other.busy), ("host works", one.host_work, other.host_work)):
        for stage in sorted({*before, *after}):
            kind = _Kind(f"{stage} {title}", "share", None, NOISE, lambda _: None)
            figures.append(_figure(kind, before.get(stage), after.get(stage), comparable))
    return figures


def _settings(before: Json, after: Json) -> list[Json]:
    """Settings that differ, as resolved where the server said it and as requested elsewhere."""

    def values(view: Json) -> dict[str, str | None]:
        return {
            row["name"]: row["resolved"] if row["resolved"] is not None else row["requested"]
            for row in view["settings"]
        }

    one, other = values(before), values(after)
    rows = [
        {"name": name, "before": one.get(name), "after": other.get(name)}
        for name in {**one, **other}
        if one.get(name) != other.get(name)
    ]
    for name in ("version", "layout"):
        pair = (before["server"].get(name), after["server"].get(name))
        if pair[0] != pair[1]:
            rows.insert(0, {"name": name, "before": pair[0], "after": pair[1]})
    return rows

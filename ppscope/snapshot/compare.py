"""Before and after: figures, findings and settings of two documents, and whether they can be compared at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from ppscope.figures import share
from ppscope.snapshot.measure import Measures, measure
from ppscope.snapshot.outcome import Outcome, outcome

SCHEMA = "ppscope.compare/1"
LOAD_RATIO = 1.5
"""Requests (running and queued) that differ by more are another load."""
NOISE = 0.05
"""A counted figure that changed by less is called the same: load generators swing by as much."""
SHORT_NOISE = 0.15
"""The same where a window is shorter than SHORT_S: a few batches more or less."""
SHORT_S = 20.0
SAMPLED_NOISE = 0.25
"""The same for figures from samples."""

Json = dict[str, Any]


class Figure(msgspec.Struct, frozen=True):
    """One figure before and after; None where it is not known. `verdict` is `better`, `worse`, `same` or None.

    `noise` is the change, as a share, up to which it is called the same.
    """

    name: str
    unit: str
    before: float | str | None
    after: float | str | None
    ratio: float | None
    verdict: str | None
    noise: float | None = None


class Comparison(msgspec.Struct, frozen=True):
    """What changed. `refused` are the reasons why figures must not be compared; then no verdict is given on any of them.

    `unknown_after` are findings of the first that the second lacks the evidence to deny, `unknown_before` the reverse.
    """

    before: str
    after: str
    model: str | None
    refused: tuple[str, ...]
    figures: tuple[Figure, ...]
    resolved: tuple[Json, ...]
    appeared: tuple[Json, ...]
    remaining: tuple[Json, ...]
    unknown_after: tuple[Json, ...]
    unknown_before: tuple[Json, ...]
    settings: tuple[Json, ...]
    summary: tuple[str, ...]

    @property
    def worse(self) -> bool:
        """Whether a finding above `info` is there after the change."""
        return any(finding["severity"] != "info" for finding in (*self.appeared, *self.unknown_before, *self.remaining))


class _Kind(NamedTuple):
    name: str
    unit: str
    more: bool | None
    """Whether more is better; None: neither."""
    noise: float
    read: Callable[[Measures], float | None]


_SLOTS = "micro-batch slots in use"
_FIGURES = (
    _Kind("throughput", "tok/s", True, NOISE, lambda m: m.tokens_per_s),
    _Kind("step time", "ms", False, NOISE, lambda m: m.step_ms),
    _Kind(_SLOTS, "", True, SAMPLED_NOISE, lambda m: m.occupied),
    _Kind("hosts working at once", "", None, SAMPLED_NOISE, lambda m: m.stages_at_work),
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
    figures = [_figure(kind, kind.read(one), kind.read(other), not refused) for kind in kinds]
    figures = [_told_apart(figure, one, other) for figure in figures]
    figures[4:4] = _stage_figures(one, other, not refused)
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
    return msgspec.structs.replace(comparison, summary=tuple(_summary(comparison, one, other)))


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


def _queue(before: Measures, after: Measures) -> str | None:
    """That requests wait now which did not before, and what caps those that run."""
    if not after.queued or after.queued <= (before.queued or 0):
        return None
    capped = after.cap is not None and after.cap <= (after.running or 0) + after.queued
    why = f": pp_max_micro_batch_size × slots lets {after.cap} run at once" if capped else ""
    return f"{after.queued:.0f} requests wait in the queue now{why}"


def _summary(comparison: Comparison, one: Measures, other: Measures) -> list[str]:
    """What changed and why, in a few lines."""
    if comparison.refused:
        return []
    lines = []
    moved = [
        figure for figure in comparison.figures if figure.verdict in ("better", "worse") and figure.ratio is not None
    ]
    for figure in moved[:3]:
        change = f"{_said(figure.before, figure.unit)} → {_said(figure.after, figure.unit)}"
        lines.append(f"{figure.name} {change} (×{figure.ratio:.2f}, {figure.verdict})")
    if not moved:
        lines.append("no figure changed by more than it swings by itself")
    if (waiting := _queue(one, other)) is not None:
        lines.append(waiting)
    changes = [f"{row['name']} {_or_none(row['before'])} → {_or_none(row['after'])}" for row in comparison.settings]
    if changes:
        more = f" and {len(changes) - 4} more" if len(changes) > 4 else ""
        lines.append("what differs between them: " + "; ".join(changes[:4]) + more)
    else:
        lines.append("no setting differs between them")
    lines += [
        f"{title}: " + ", ".join(finding["id"] for finding in findings) for title, findings in _became(comparison)
    ]
    return lines


def _became(comparison: Comparison) -> list[tuple[str, tuple[Json, ...]]]:
    """Findings under what became of them, those without any left out. Two that must not be compared are only set side by side."""
    apart = bool(comparison.refused)
    titled = [
        ("resolved", comparison.resolved),
        ("new", comparison.appeared),
        ("in both" if apart else "still there", comparison.remaining),
        ("only in the first" if apart else "not known after", comparison.unknown_after),
        ("only in the second" if apart else "not known before", comparison.unknown_before),
    ]
    return [(title, findings) for title, findings in titled if findings]


def _or_none(value: object) -> str:
    return "–" if value is None else str(value)


def _said(value: float | str | None, unit: str) -> str:
    if value is None or isinstance(value, str):
        return _or_none(value)
    if unit == "share":
        return share(value)
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f}" + (f" {unit}" if unit else "")


def _verdict(figure: Figure) -> str:
    """`same` with what it swings by, so that two changes of one size under two verdicts do not puzzle."""
    if figure.verdict != "same":
        return figure.verdict or ""
    return "same (too few samples to tell)" if figure.noise is None else f"same (it swings by ±{share(figure.noise)})"


def to_json(comparison: Comparison) -> Json:
    """The object that `--json` prints, of schema `ppscope.compare/1`; unknown is null."""
    built: Mapping[str, Any] = msgspec.to_builtins(comparison)
    findings = {name: built[name] for name in Outcome.__struct_fields__}
    rest = {name: value for name, value in built.items() if name not in findings}
    return {"schema": SCHEMA, "comparable": not comparison.refused, **rest, "findings": findings}


def to_text(comparison: Comparison) -> str:
    """The comparison for a terminal."""
    lines = [f"before  {comparison.before}", f"after   {comparison.after}"]
    if comparison.refused:
        lines += ["", "These two cannot be compared:", *(f"  · {reason}" for reason in comparison.refused)]
    elif comparison.summary:
        lines += ["", *comparison.summary]
    width = max((len(figure.name) for figure in comparison.figures), default=0)
    lines += ["", f"{'':{width}}  {'before':>12}  {'after':>12}"]
    for figure in comparison.figures:
        cells = [f"{_said(value, figure.unit):>12}" for value in (figure.before, figure.after)]
        change = f"  ×{figure.ratio:.2f} {_verdict(figure)}".rstrip() if figure.ratio is not None else ""
        lines.append(f"{figure.name:{width}}  {cells[0]}  {cells[1]}{change}")
    for title, findings in _became(comparison):
        lines += ["", title]
        lines += [f"  {finding['severity']:6} {finding['id']}: {finding['summary']}" for finding in findings]
    if comparison.settings:
        lines += ["", "settings that differ"]
        lines += [
            f"  {row['name']}: {_or_none(row['before'])} → {_or_none(row['after'])}" for row in comparison.settings
        ]
    return "\n".join(lines) + "\n"

"""A comparison in words: what changed and why in a few lines, and all of it as a table."""

from __future__ import annotations

from collections.abc import Iterable

from ppscope.figures import share
from ppscope.snapshot.comparison import Comparison, Figure, Json
from ppscope.snapshot.measure import Measures
from ppscope.target.redact import normal_name


def _queue(before: Measures, after: Measures) -> str | None:
    """That requests wait now which did not before, and what caps those that run."""
    if not after.queued or after.queued <= (before.queued or 0):
        return None
    capped = after.cap is not None and after.cap <= (after.running or 0) + after.queued
    why = f": pp_max_micro_batch_size × slots lets {after.cap} run at once" if capped else ""
    return f"{after.queued:.0f} requests wait in the queue now{why}"


def _passes(comparison: Comparison, before: Measures, after: Measures) -> str | None:
    """Why throughput went where it did, once the requests are shared out over more slots or fewer."""
    figures = {figure.name: figure for figure in comparison.figures}
    throughput, slots = figures.get("throughput"), figures.get("micro-batch slots in use")
    carried, made = (before.pass_requests, after.pass_requests), (before.passes_per_s, after.passes_per_s)
    if slots is None or slots.verdict not in ("better", "worse") or not all(carried) or not all(made):
        return None
    line = (
        f"a pass carries {after.pass_requests:.1f} requests instead of {before.pass_requests:.1f}, at {after.passes_per_s:.1f}"
        f" passes a second instead of {before.passes_per_s:.1f}"
    )
    if throughput is None or throughput.verdict != "worse" or slots.verdict != "better":
        return line
    shared = "; the stages of a CPU server may share its cores" if after.device == "cpu" else ""
    return f"{line}: too few more of them to make up for it{shared}"


def summarize(comparison: Comparison, one: Measures, other: Measures) -> list[str]:
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
    if (passes := _passes(comparison, one, other)) is not None:
        lines.append(passes)
    if (waiting := _queue(one, other)) is not None:
        lines.append(waiting)
    changes = [f"{row['name']} {_or_none(row['before'])} → {_or_none(row['after'])}" for row in comparison.settings]
    if changes:
        more = f" and {len(changes) - 4} more" if len(changes) > 4 else ""
        lines.append("what differs between them: " + "; ".join(changes[:4]) + more)
    else:
        lines.append("no setting differs between them")
    for title, findings in became(comparison):
        advised = [_advised(finding, comparison.settings) if title == "resolved" else "" for finding in findings]
        lines.append(f"{title}: " + ", ".join(f["id"] + why for f, why in zip(findings, advised, strict=True)))
    return lines


def _advised(finding: Json, settings: Iterable[Json]) -> str:
    """The settings that differ and that a finding told to change."""
    told = normal_name(str(finding.get("remedy") or ""))
    changed = [
        f"{row['name']}, which is {_or_none(row['after'])} now" for row in settings if normal_name(row["name"]) in told
    ]
    return f" (it advised {' and '.join(changed)})" if changed else ""


def became(comparison: Comparison) -> list[tuple[str, tuple[Json, ...]]]:
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
    for title, findings in became(comparison):
        lines += ["", title]
        lines += [f"  {finding['severity']:6} {finding['id']}: {finding['summary']}" for finding in findings]
    if comparison.settings:
        lines += ["", "settings that differ"]
        lines += [
            f"  {row['name']}: {_or_none(row['before'])} → {_or_none(row['after'])}" for row in comparison.settings
        ]
    return "".join("".join(char if char.isprintable() else "?" for char in line) + "\n" for line in lines)

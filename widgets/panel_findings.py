"""The findings panel: each claim with its evidence, what to change, and where a rule fired."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ppscope.views import Finding
from ppscope.widgets.header import SEVERITY
from ppscope.widgets.listing import Item, Listing
from ppscope.widgets.text import Line, Span, clean, wrapped

LABEL = 11
_COMMAND = re.compile(r"curl \S*(?: (?!-)\S+| -\w+(?: '[^']*'| \w+\b)?)*")
_OPTION = re.compile(r" (?=-[Hd] ')")


def findings_listing(findings: Sequence[Finding], state: str, width: int, seen: bool = True) -> Listing:
    """One item per finding, most severe first as given; without any, one line that says so. `seen`: enough to judge."""
    if not findings:
        return Listing((Item((((f"  {_none(state, seen)}", "dim"),),)),))
    return Listing(tuple(_item(finding, width) for finding in findings))


def _none(state: str, seen: bool) -> str:
    if state == "idle":
        return "no finding: the server is idle"
    if not seen and state not in {"gone", "recording"}:
        return "looking: too little was seen so far"
    return "no finding: nothing seen so far is out of order"


def _item(finding: Finding, width: int) -> Item:
    glyph, role = SEVERITY.get(finding.severity, ("●", "dim"))
    stage = "" if finding.stage is None else f" PP{finding.stage}"
    lines: list[Line] = [
        ((f" {glyph} ", role), (clean(finding.id), f"{role} bold"), (f"  {clean(finding.severity)}{stage}", "dim"),
         (f" · {clean(finding.provenance)}", "dim"))
    ]  # fmt: skip
    lines += _block("", finding.summary, width, "bold")
    for place, text in enumerate(finding.evidence):
        lines += _block("seen" if place == 0 else "", text, width, "")
    if finding.remedy:
        lines += _change(finding.remedy, width)
    for place, (file, line) in enumerate(finding.source):
        lines += _block("source" if place == 0 else "", f"{file}:{line}", width, "accent")
    lines.append(())
    return Item(tuple(lines), finding.id, finding_text(finding))


def _change(text: str, width: int) -> list[Line]:
    """What to change: prose wrapped, a command on rows of its own, broken where the shell lets it go on."""
    lines: list[Line] = []
    start = 0
    for match in _COMMAND.finditer(text):
        lines += _block("" if lines else "change", text[start : match.start()], width, "good")
        parts = _OPTION.split(clean(match[0]))
        for place, part in enumerate(parts):
            more = " \\" if place < len(parts) - 1 else ""
            lines.append(((" " * LABEL, ""), (f"{'  ' if place else ''}{part}{more}", "good bold")))
        start = match.end()
    return lines + _block("" if lines else "change", text[start:].lstrip(". "), width, "good")


def _block(label: str, text: str, width: int, role: str) -> list[Line]:
    rows = wrapped(text, max(20, width - LABEL - 2))
    out: list[Line] = []
    for place, row in enumerate(rows):
        lead: Span = (f"   {label if place == 0 else '':<{LABEL - 3}}", "dim")
        out.append((lead, (row, role)))
    return out


def finding_text(finding: Finding) -> str:
    """A finding as plain text to paste into an issue."""
    rows = [f"{finding.id} ({finding.severity}, {finding.provenance})", finding.summary]
    rows += [f"- {text}" for text in finding.evidence]
    rows += [f"source: {file}:{line}" for file, line in finding.source]
    if finding.remedy:
        rows.append(f"change: {finding.remedy}")
    return "\n".join(clean(row) for row in rows)

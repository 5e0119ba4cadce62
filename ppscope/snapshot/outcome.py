"""What became of the findings: gone, new or left, and which of that cannot be said because one side lacks the evidence."""

from __future__ import annotations

from typing import Any

import msgspec

from ppscope.snapshot.measure import Measures

Json = dict[str, Any]


class Outcome(msgspec.Struct, frozen=True):
    """Findings of two documents.

    `resolved` and `appeared` are judged: the other document has the evidence and no such finding. `unknown_after` are findings that
    the second document lacks the evidence to deny, `unknown_before` those that the first could not have had. Of documents that must
    not be compared nothing is resolved or new.
    """

    resolved: tuple[Json, ...]
    appeared: tuple[Json, ...]
    remaining: tuple[Json, ...]
    unknown_after: tuple[Json, ...]
    unknown_before: tuple[Json, ...]


def outcome(before: Json, after: Json, one: Measures, other: Measures, comparable: bool) -> Outcome:
    """Sort the findings of two documents with their figures; `comparable` is False where figures must not be compared."""
    found = [{(item["id"], item["stage"]): item for item in side["view"]["findings"]} for side in (before, after)]
    gone = [item for key, item in found[0].items() if key not in found[1]]
    new = [item for key, item in found[1].items() if key not in found[0]]

    def denied(item: Json, document: Json, figures: Measures) -> bool:
        return comparable and could_find(item["id"], document["view"], figures)

    return Outcome(
        resolved=tuple(item for item in gone if denied(item, after, other)),
        appeared=tuple(item for item in new if denied(item, before, one)),
        remaining=tuple(item for key, item in found[1].items() if key in found[0]),
        unknown_after=tuple(item for item in gone if not denied(item, after, other)),
        unknown_before=tuple(item for item in new if not denied(item, before, one)),
    )


def could_find(finding: str, view: Json, figures: Measures) -> bool:
    """Whether a document has the evidence that a finding of this id rests on, so that its absence says something."""
    decode = view["graphs"]["decode"]
    if finding in ("pipeline.serial", "pipeline.last_stage_sync"):
        return figures.occupied is not None and figures.active is True
    if finding.startswith("pipeline."):
        return figures.bubble is not None
    if finding.startswith("graphs.eager"):
        return figures.eager_per_step is not None or decode["observed"] is not None
    if finding.startswith("graphs."):
        return decode["resolved"] is not None or decode["observed"] is not None
    if finding.startswith("gpu."):
        return figures.power_w is not None and figures.active is True
    if finding.startswith(("load.", "server.")):
        return figures.running is not None
    return figures.active is True

"""The verdicts as text and as JSON (`ppscope.doctor/1`)."""

from __future__ import annotations

from collections.abc import Sequence

from ppscope.doctor.facts import Check, Facts

SCHEMA = "ppscope.doctor/1"


def as_json(facts: Facts, verdicts: Sequence[Check]) -> dict[str, object]:
    """Keys are stable; `pid` is null without a server."""
    return {
        "schema": SCHEMA,
        "pid": None if facts.target is None else facts.target.pid,
        "problems": sum(check.state == "problem" for check in verdicts),
        "checks": [
            {"id": check.id, "state": check.state, "what": check.what, "remedy": check.remedy or None}
            for check in verdicts
        ],
    }


def as_text(verdicts: Sequence[Check]) -> str:
    """One line a check, its remedy below it where something is to be done, and a sum."""
    width = max((len(check.id) for check in verdicts), default=0)
    lines = []
    margin = " " * (width + 11)
    for check in verdicts:
        what = check.what.replace("\n", f"\n{margin}")
        lines.append(f"{check.state:8} {check.id:{width}}  {what}")
        if check.remedy and check.state != "ok":
            lines += [f"{margin}try: {command}" for command in check.remedy.split("\n")]
    count = sum(check.state == "problem" for check in verdicts)
    lines.append("nothing stands in the way" if not count else f"{count} problem{'s' if count > 1 else ''}")
    return "\n".join(lines) + "\n"

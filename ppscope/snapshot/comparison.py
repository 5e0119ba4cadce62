"""What a comparison of two documents says, as values, and the object that `--json` prints of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ppscope.snapshot.outcome import Outcome

SCHEMA = "ppscope.compare/1"

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


def to_json(comparison: Comparison) -> Json:
    """The object that `--json` prints, of schema `ppscope.compare/1`; unknown is null."""
    built: Mapping[str, Any] = msgspec.to_builtins(comparison)
    findings = {name: built[name] for name in Outcome.__struct_fields__}
    rest = {name: value for name, value in built.items() if name not in findings}
    return {"schema": SCHEMA, "comparable": not comparison.refused, **rest, "findings": findings}

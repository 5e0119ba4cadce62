"""Findings that hold are shown, findings that come and go are not: they appear late and clear later."""

from __future__ import annotations

from collections.abc import Iterable

from ppscope.views import Finding

APPEAR_NS = 2_000_000_000
MISSES = 3

_Key = tuple[str, int | None]


class _Held:
    __slots__ = ("finding", "misses", "shown", "since_ns")

    def __init__(self, finding: Finding, since_ns: int) -> None:
        self.finding = finding
        self.since_ns = since_ns
        self.misses = 0
        self.shown = False


class Hysteresis:
    """A finding is shown once two judgements at least two seconds apart, and all between them, had it; it clears after three misses."""

    def __init__(self) -> None:
        self._held: dict[_Key, _Held] = {}

    def update(self, found: Iterable[Finding], now_ns: int) -> tuple[Finding, ...]:
        """The findings to show after this judgement, in its order; those it missed stay behind their severity's others."""
        now: dict[_Key, Finding] = {(finding.id, finding.stage): finding for finding in found}
        for key, finding in now.items():
            held = self._held.setdefault(key, _Held(finding, now_ns))
            held.finding, held.misses = finding, 0
            held.shown = held.shown or now_ns - held.since_ns >= APPEAR_NS
        for key in [key for key in self._held if key not in now]:
            held = self._held[key]
            held.misses += 1
            if not held.shown or held.misses >= MISSES:
                del self._held[key]
        order = {key: place for place, key in enumerate(now)}
        severity = {"high": 0, "medium": 1, "info": 2}
        shown = [(key, held.finding) for key, held in self._held.items() if held.shown]
        shown.sort(key=lambda pair: (severity.get(pair[1].severity, 3), order.get(pair[0], len(order))))
        return tuple(finding for _, finding in shown)

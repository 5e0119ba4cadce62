"""Findings that hold are shown, findings that come and go are not: they appear late and clear later."""

from __future__ import annotations

from collections.abc import Iterable

from ppscope.views import Finding

APPEAR_NS = 2_000_000_000
MISSES = 3
PATIENCE = 3
"""How many times as long a finding stays once it has come back, and again when it comes back again."""
MOST_MISSES = 60
FORGOTTEN_NS = 180_000_000_000
"""After so long a finding that comes back is a new one."""


class _Held:
    __slots__ = ("finding", "misses", "patience", "shown", "since_ns")

    def __init__(self, finding: Finding, since_ns: int) -> None:
        self.finding = finding
        self.since_ns = since_ns
        self.misses = 0
        self.patience = MISSES
        self.shown = False


class Hysteresis:
    """A finding is shown once two judgements at least two seconds apart, and all between them, had it; it clears after three misses.

    What lies on a threshold would come and go for ever: each time it comes back it takes three times as many misses to clear.
    """

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self._cleared: dict[str, tuple[int, int]] = {}
        """When a finding last cleared, and the misses that took."""

    def update(self, found: Iterable[Finding], now_ns: int) -> tuple[Finding, ...]:
        """The findings to show after this judgement, in its order; those it missed stay behind their severity's others."""
        # By its id alone: the stage that stands out may be another with each judgement, and no two judges claim the same.
        now: dict[str, Finding] = {finding.id: finding for finding in found}
        for key, finding in now.items():
            held = self._held.setdefault(key, _Held(finding, now_ns))
            held.finding, held.misses = finding, 0
            if not held.shown and now_ns - held.since_ns >= APPEAR_NS:
                held.shown, held.patience = True, self._patience(key, now_ns)
        for key in [key for key in self._held if key not in now]:
            held = self._held[key]
            held.misses += 1
            if not held.shown or held.misses >= held.patience:
                del self._held[key]
                if held.shown:
                    self._cleared[key] = (now_ns, held.patience)
        order = {key: place for place, key in enumerate(now)}
        severity = {"high": 0, "medium": 1, "info": 2}
        shown = [(key, held.finding) for key, held in self._held.items() if held.shown]
        shown.sort(key=lambda pair: (severity.get(pair[1].severity, 3), order.get(pair[0], len(order))))
        return tuple(finding for _, finding in shown)

    def _patience(self, key: str, now_ns: int) -> int:
        cleared_ns, misses = self._cleared.get(key, (now_ns - FORGOTTEN_NS, MISSES))
        return min(PATIENCE * misses, MOST_MISSES) if now_ns - cleared_ns < FORGOTTEN_NS else MISSES

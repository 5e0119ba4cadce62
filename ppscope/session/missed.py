"""Samples that could not be read, given back to the phases in which that happens.

py-spy reads without stopping its target. Where the stack moves meanwhile – the thread works – it gives a sample up; where the thread
waits it never does. So work is seen too rarely by as much as was given up, and waiting too often. Measured on SGLang 0.5.23
(PP 2, CPU) against the probe: 7 % of the samples given up, forward 5 to 8 points too low.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from ppscope.phase_sums import PhaseTimes
from ppscope.records import StackSpans
from ppscope.timeline import KEEP_NS
from ppscope.views import PhaseStyle

_TRIM = 64


class Missed:
    """What share of the samples of a rank's main thread was given up, window by window."""

    def __init__(self, styles: Sequence[PhaseStyle]) -> None:
        self._moving = {index for index, style in enumerate(styles) if style.kind == "work"}
        self._begins = array("q")
        self._ends = array("q")
        self._shares = array("d")
        self._trim_at = _TRIM

    def add(self, record: StackSpans) -> None:
        """Take in a window of the main thread. Windows overlap by design: what two have seen counts as the first one saw it."""
        begin = max(record.start_ns, self._ends[-1]) if self._ends else record.start_ns
        if record.end_ns <= begin:
            return
        self._begins.append(begin)
        self._ends.append(record.end_ns)
        self._shares.append(max(0.0, min(record.failed or 0.0, 0.9)))
        if len(self._ends) >= self._trim_at:
            gone = bisect_left(self._ends, record.end_ns - KEEP_NS)
            del self._begins[:gone], self._ends[:gone], self._shares[:gone]
            self._trim_at = len(self._ends) + _TRIM

    def share(self, start_ns: int, end_ns: int) -> float:
        """Share of the samples of a stretch of time that was given up; time in which none were taken does not count."""
        lost, seen = 0.0, 0
        for at in range(len(self._ends) - 1, -1, -1):
            if self._ends[at] <= start_ns:
                break
            both = max(min(self._ends[at], end_ns) - max(self._begins[at], start_ns), 0)
            lost += self._shares[at] * both
            seen += both
        return lost / seen if seen else 0.0

    def corrected(self, times: PhaseTimes, start_ns: int, end_ns: int) -> PhaseTimes:
        """Phase times with that share moved from all phases, in proportion, to those in which a stack moves; their sum stays."""
        share = self.share(start_ns, end_ns)
        moving = sum(took for phase, took in times.items() if phase in self._moving)
        if not share or not moving:
            return times
        lost = share * sum(times.values())
        more = 1 - share + lost / moving
        return {phase: int(took * (more if phase in self._moving else 1 - share)) for phase, took in times.items()}

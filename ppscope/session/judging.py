"""When findings are judged, and which of them are shown: in the stream's own time, so that a recording replays alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppscope.diagnose.findings import judge, merge
from ppscope.diagnose.hysteresis import Hysteresis
from ppscope.session.evidence import gather
from ppscope.views import Finding

if TYPE_CHECKING:
    from ppscope.session.session import Session

PERIOD_NS = 1_000_000_000


class Judging:
    """Judges about once a second of the stream's time."""

    def __init__(self) -> None:
        self._hysteresis = Hysteresis()
        self._next_ns = 0
        self.findings: tuple[Finding, ...] = ()

    def reset(self) -> None:
        """Forget everything: another server is looked at."""
        self._hysteresis = Hysteresis()
        self.findings = ()

    def upto(self, session: Session, now_ns: int) -> bool:
        """Judge if it is time to; True when it was."""
        if now_ns < self._next_ns:
            return False
        self._next_ns = now_ns + PERIOD_NS
        evidence = gather(session, now_ns)
        if evidence is not None:
            self.findings = merge(self._hysteresis.update(judge(evidence), now_ns), session.burst_findings(now_ns))
        return True

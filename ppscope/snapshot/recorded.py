"""Sessions over recorded records: nothing is awaited, and findings are judged once, at their end."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ppscope.collect.client import RecordedStream
from ppscope.diagnose.findings import judge, merge
from ppscope.records import AnyRecord, End
from ppscope.session import Session
from ppscope.session.evidence import gather
from ppscope.session.interned import Interned
from ppscope.snapshot.nogc import no_collection
from ppscope.views import Finding, Screen

JUDGED_NS = 60_000_000_000


class RecordedSession(Session):
    """A session over a recording: its findings are judged once, over the last minute of it, as `ppscope check` would have."""

    keep_all = True

    def __init__(self, records: Iterable[AnyRecord], interned: Interned | None = None) -> None:
        # That its writer stopped says nothing of the server.
        super().__init__(RecordedStream([record for record in records if not isinstance(record, End)]))
        if interned is not None:
            self.interned = interned
        self._verdicts: tuple[Finding, ...] = ()

    def poll(self) -> bool:
        """Take in the records."""
        news = self._stream.drain()
        with no_collection():
            for record in news:
                self._take(record)
        return bool(news)

    def judge(self) -> None:
        """Work out the findings."""
        now = self.now_ns()
        evidence = gather(self, now, min(now - self.extent()[0], JUDGED_NS) or 1)
        judged = judge(evidence) if evidence is not None else ()
        self._verdicts = merge(tuple(judged), self.burst_findings(now))

    def screen(self) -> Screen:
        """Everything the main screen draws."""
        return msgspec.structs.replace(super().screen(), findings=self._verdicts)


def session_of(records: Iterable[AnyRecord], interned: Interned | None = None) -> RecordedSession:
    """A session that has taken in these records and judged them. `interned` knows their definitions."""
    session = RecordedSession(records, interned)
    session.poll()
    session.judge()
    return session

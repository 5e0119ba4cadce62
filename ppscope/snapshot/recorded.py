"""Sessions over recorded records: nothing is awaited, and findings are judged once, at their end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from ppscope.collect.client import RecordedStream
from ppscope.diagnose.findings import judge, merge
from ppscope.garbage import no_collection
from ppscope.records import AnyRecord, Clock, End, LoadSample
from ppscope.session import Session
from ppscope.session.evidence import JUDGED_NS, gather
from ppscope.session.interned import Interned
from ppscope.views import Finding, Screen

_SECOND = 1_000_000_000
_HISTORY_S = 600


class RecordedSession(Session):
    """A session over a recording: its findings are judged once, over the last minute of it, as `ppscope check` would have."""

    keep_all = True

    def __init__(self, records: Iterable[AnyRecord], interned: Interned | None = None) -> None:
        # That its writer stopped says nothing of the server.
        super().__init__(RecordedStream([record for record in records if not isinstance(record, End)]))
        if interned is not None:
            self.interned = interned
        self._verdicts: tuple[Finding, ...] = ()
        self._history: deque[tuple[float | None, float | None, float | None]] = deque(maxlen=_HISTORY_S)
        self._history_ns = 0

    def poll(self) -> bool:
        """Take in the records."""
        news = self._stream.drain()
        until_ns = 0
        # What is judged looks back on a minute, and a little further for the load that it began with.
        noted_ns = max((record.mono_ns for record in news if isinstance(record, Clock)), default=0) - 2 * JUDGED_NS
        with no_collection():
            for record in news:
                if isinstance(record, LoadSample):
                    until_ns = record.at_ns
                    self._remember_load(until_ns)
                self._take(record)
                if self._newest_ns > noted_ns:
                    self._note_requests()
            if self._history_ns:
                self._remember_load(max(until_ns, self.now_ns()) + 1)
        return bool(news)

    def _remember_load(self, until_ns: int) -> None:
        """Note the load of every second before this instant, as a live view does: samples come seldom."""
        first_ns = max(self._history_ns + _SECOND, until_ns - _HISTORY_S * _SECOND) if self._history_ns else until_ns
        for at_ns in range(first_ns, until_ns, _SECOND):
            settings = self.settings
            load = self.load.view(at_ns, settings.integer("decode_log_interval"), None, settings.batch_interval)
            self._history.append((load.tokens_per_s, load.running, load.queued))
            self._history_ns = at_ns
        self._history_ns = self._history_ns or until_ns - _SECOND

    def judge(self) -> None:
        """Work out the findings."""
        now = self.now_ns()
        evidence = gather(self, now, min(now - self.extent()[0], JUDGED_NS) or 1)
        judged = judge(evidence) if evidence is not None else ()
        self._verdicts = merge(tuple(judged), self.burst_findings(now))

    def forget(self) -> None:
        """Let go of all that was seen: the session's parts know each other, and would wait for a collection of cycles with it."""
        self.states.clear()
        self.gpus.samples.clear()

    def screen(self) -> Screen:
        """Everything the main screen draws."""
        history = tuple(self._history)
        return msgspec.structs.replace(super().screen(), findings=self._verdicts, load_history=history)


def session_of(records: Iterable[AnyRecord], interned: Interned | None = None) -> RecordedSession:
    """A session that has taken in these records and judged them. `interned` knows their definitions."""
    session = RecordedSession(records, interned)
    session.poll()
    session.judge()
    return session

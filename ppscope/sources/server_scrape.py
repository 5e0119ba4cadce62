"""The worker that reads `/metrics` every few seconds or, where the server has none, its load now and then."""

from __future__ import annotations

import time
from collections import deque

from ppscope.sources.server_http import HttpError
from ppscope.sources.server_load import LoadMeter, from_loads
from ppscope.sources.server_metrics import ChangedOnly, MetricsReader, to_metrics
from ppscope.sources.server_worker import Desk, Worker

EVERY_S = 1.0
SLOWEST_S = 30.0
EARLY = 10
"""So many pages come as often as they may, for a verdict waits for them."""
TIMES, CHEAP_TIMES = 20, 200
"""So many times as long as a page takes it is not asked for again, whatever it costs, and as long as that keeps the load fresh."""
FRESH_S = 3.5
"""Pages that often are each the last word until the next: the load of one holds for five seconds (session/load.py)."""
READ_S = 3.0
DEAR = "a page takes the server long: it is read every 4 to 30 s"
PAGE_LIMIT = 8 << 20
ABSENT_EVERY_S = 60.0
LOADS_EVERY_S = 2.0
OLD_LOADS_EVERY_S = 10.0
LOADS_TRIES = 5


class Pace:
    """How long to leave the server alone after a page: its process that answers `/metrics` also takes the requests.

    The shortest of the last answers tells the page's cost, for the others waited in a queue as well (0.5.23, PP 2: 17 ms of CPU).
    """

    def __init__(self) -> None:
        self._took_s: deque[float] = deque(maxlen=5)
        self._pages = 0

    def pause_s(self, took_s: float) -> float:
        """Seconds until the next page, after one that took so long."""
        self._took_s.append(took_s)
        self._pages += 1
        cost_s = min(self._took_s)
        gentle_s = min(CHEAP_TIMES * cost_s, FRESH_S - took_s) if self._pages > EARLY else 0.0
        return min(max(EVERY_S - took_s, gentle_s, TIMES * cost_s, 0.1), SLOWEST_S)


class MetricsWorker(Worker):
    """Reads `/metrics`; the longer a page takes the less often it is asked for: at most a twentieth of the time, mostly far less."""

    name = "metrics"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._meter = LoadMeter()
        self._figures = False
        """Whether the last page held any."""
        self._changed = ChangedOnly()
        self._pace = Pace()
        self._path = "/metrics"
        self._absent_until = 0.0
        self._loads_failed = 0

    def turn(self) -> float:
        """Read the page, or the load where there is no page."""
        off = self.desk.no_metrics()
        if off is not None:
            self.desk.say("metrics", "off", *off)
            return 2.0
        if time.monotonic() < self._absent_until:
            return self._loads()
        started = time.monotonic()
        try:
            present = self._page()
        except HttpError as error:
            self.desk.say("metrics", "degraded", f"/metrics: {error}")
            return SLOWEST_S / 3 if error.kind in ("timeout", "too_large") else 2.0
        if not present:
            self._absent_until = started + ABSENT_EVERY_S
            return self._loads()
        pause_s = self._pace.pause_s(time.monotonic() - started)
        if self._figures:
            self.desk.say("metrics", "ok", DEAR if pause_s > FRESH_S else "")
        return pause_s

    def _page(self) -> bool:
        reader = MetricsReader()
        cut: HttpError | None = None
        with self.desk.client().get(self._path, READ_S) as reply:
            if reply.status in (307, 308) and self._path == "/metrics":
                self._path = "/metrics/"
                return self._page()
            if reply.status == 404:
                self.desk.say(
                    "metrics", "off", "the server runs without --enable-metrics", "start it with --enable-metrics"
                )
                return False
            if reply.status != 200:
                raise HttpError("status", f"answered {reply.status}")
            try:
                for chunk in reply.chunks(PAGE_LIMIT):
                    reader.feed(chunk)
            except HttpError as error:
                cut = error
        at_ns = time.monotonic_ns()
        metrics = to_metrics(reader.finish(), at_ns)
        for metric in self._changed.filter(metrics, at_ns):
            self.desk.emit(metric)
        if cut is not None:
            raise cut
        samples = self._meter.update(metrics, at_ns, self.desk.server.pp_size)
        for sample in samples:
            self.desk.emit(sample)
        self._figures = bool(samples)
        if samples:
            self.desk.metrics_ok_ns = at_ns
        else:
            self.desk.say("metrics", "degraded", "/metrics holds no scheduler's figures yet")
        return True

    def _loads(self) -> float:
        """Ask for the load where that is cheap: from 0.5.15 on it is read from shared memory, before it is a scheduler round trip.

        0.5.9 to 0.5.14 log a warning at every `/get_load` and are not asked; 0.5.6 is, where its log cannot be followed.
        """
        if self.desk.no_http() is not None or self._loads_failed >= LOADS_TRIES:
            return LOADS_EVERY_S
        if self.desk.version_at_least(0, 5, 15):
            path, every = "/v1/loads?include=core", LOADS_EVERY_S
        elif self.desk.version_at_least(0, 5, 9) is False and not self.desk.log_followed:
            path, every = "/get_load", OLD_LOADS_EVERY_S
        else:
            return LOADS_EVERY_S
        try:
            with self.desk.client().get(path) as reply:
                if reply.status == 404:
                    self._loads_failed = LOADS_TRIES
                elif reply.status >= 500:
                    self._loads_failed += (
                        1  # 503 while it drains; a fault would be a traceback in its log at every question
                    )
                    return OLD_LOADS_EVERY_S
                self._loads_failed = 0 if reply.status == 200 else self._loads_failed
                load = (
                    from_loads(reply.json(), time.monotonic_ns(), self.desk.server.pp_size)
                    if reply.status == 200
                    else None
                )
        except HttpError:
            return OLD_LOADS_EVERY_S  # AliveWorker says what is wrong
        if load is not None:
            self.desk.emit(load)
        return every

"""The workers that ask `/model_info` (is it alive?) and `/server_info` (its settings)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ppscope.records import Settings
from ppscope.sources.server_http import HttpError
from ppscope.sources.server_load import from_server_info
from ppscope.sources.server_worker import Desk, Worker
from ppscope.target.server_info import resolved_settings

ALIVE_EVERY_S = 5.0
LOADING_EVERY_S = 1.0
INFO_READ_S = 20.0
"""`/server_info` goes through the scheduler, which answers nothing while it exports a trace or hangs."""
INFO_LIMIT = 8 << 20
"""Each data-parallel rank's state repeats nearly all settings, 20 kB in 0.5.23."""
INFO_SLOW_S = 2.0
INFO_RETRY_S = (5.0, 30.0, 60.0, 120.0, 300.0)
"""An abandoned request stays queued in the server, so asking again is rare."""


class InfoWorker(Worker):
    """Asks `/server_info` once, and again whenever it is told to."""

    name = "http"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.pending_since_ns: int | None = None
        """Since when an answer is awaited; None when none is."""
        self.trouble: tuple[str, str] | None = None
        self.changed: Callable[[], None] = lambda: None
        """Called when there is something new to say."""
        self._wanted = threading.Event()
        self._failures = 0
        self._first_asked_ns: int | None = None

    def ask(self) -> None:
        """Ask as soon as possible."""
        self._wanted.set()
        self.nudge()

    def turn(self) -> float:
        """Ask if an answer is wanted."""
        if not self._wanted.is_set() or self.desk.no_http() is not None:
            return 600.0
        self._wanted.clear()
        now = time.monotonic_ns()
        self._first_asked_ns = self._first_asked_ns or now
        self.pending_since_ns = self._first_asked_ns
        self.trouble = None
        try:
            again = self._read()
        except HttpError as error:
            again = error.kind != "too_large"  # the next answer would be as long
            self.trouble = (f"/server_info: {error}", "")
        self.changed()
        if not again:
            self.pending_since_ns = self._first_asked_ns = None
            self._failures = 0
            return 600.0
        delay = INFO_RETRY_S[min(self._failures, len(INFO_RETRY_S) - 1)]
        self._failures += 1
        self._wanted.set()
        return delay

    def _read(self) -> bool:
        with self.desk.client().get("/server_info", INFO_READ_S) as reply:
            if reply.status in (401, 403):
                if self.desk.keys.refused(self.desk.port_owner()):
                    return self._read()
                self.trouble = self.desk.keys.advice(self.desk.port_owner())
                return True
            if reply.status != 200:
                self.trouble = (f"/server_info answered {reply.status}", "")
                return reply.status != 404
            answer = reply.json(INFO_LIMIT)
        at_ns = time.monotonic_ns()
        values = resolved_settings(answer)
        if not values or not isinstance(answer, dict):
            self.trouble = ("/server_info is not what SGLang answers", "")
            return False
        if isinstance(version := values.get("version"), str):
            self.desk.version = version
        self.desk.emit(Settings(at_ns, "resolved", values))
        if (load := from_server_info(answer.get("internal_states"), at_ns)) is not None:
            self.desk.emit(load)
        return False


class AliveWorker(Worker):
    """Asks `/model_info`, which touches no scheduler, and says how HTTP is doing."""

    name = "http"

    def __init__(self, desk: Desk, info: InfoWorker) -> None:
        super().__init__(desk)
        self._info = info
        info.changed = self.nudge
        self._due = 0.0
        self._trouble: tuple[str, str] | None = ("", "")
        self._asked_info = False
        self._silent_since: float | None = None

    def turn(self) -> float:
        """Ask when it is time to, and say the state of both workers."""
        off = self.desk.no_http()
        if off is not None:
            self.desk.say("http", "off", *off)
            return 2.0
        now = time.monotonic()
        if now >= self._due:
            self._trouble = self._probe()
            loading = self.desk.server.state == "loading" or (self._trouble is not None and self._due == 0.0)
            self._due = now + (LOADING_EVERY_S if loading else ALIVE_EVERY_S)
            self._silent_since = None if self._trouble is None else self._silent_since or now
        if self._trouble is None and not self._asked_info:
            self._asked_info = True
            self._info.ask()
        self._say()
        return 1.0

    def _probe(self) -> tuple[str, str] | None:
        port = self.desk.server.port
        try:
            with self.desk.client().get("/model_info") as reply:
                if reply.status in (401, 403):
                    if self.desk.keys.refused(self.desk.port_owner()):
                        return self._probe()
                    return self.desk.keys.advice(self.desk.port_owner())
                return (f"/model_info answered {reply.status}", "") if reply.status >= 500 else None
        except HttpError as error:
            if error.kind == "refused" and self.desk.server.state == "loading":
                return f"port {port} does not listen yet: the server is loading", ""
            return f"port {port}: {error}", ""

    def _say(self) -> None:
        if self._trouble is not None:
            message, remedy = self._trouble
            silent_s = int(time.monotonic() - (self._silent_since or time.monotonic()))
            self.desk.say("http", "degraded", f"{message}, for {silent_s} s" if silent_s >= 5 else message, remedy)
            return
        pending_ns = self._info.pending_since_ns
        waited_s = (time.monotonic_ns() - pending_ns) / 1e9 if pending_ns is not None else 0.0
        if self._info.trouble is not None:
            self.desk.say("http", "degraded", *self._info.trouble)
        elif waited_s > INFO_SLOW_S:
            self.desk.say(
                "http",
                "degraded",
                f"/server_info has not answered for {int(waited_s)} s",
                "a scheduler that loads, hangs or exports a trace answers late; settings follow when it does",
            )
        else:
            self.desk.say("http", "ok")

"""Starting and stopping the server's profiler over HTTP, with the keys the user gave."""

from __future__ import annotations

import json
import threading
from typing import Any, NamedTuple

from ppscope.records import Server
from ppscope.sources.server_http import HttpClient, HttpError
from ppscope.sources.server_keys import Keys
from ppscope.target.processes import has_ended

START_READ_S = 60.0
"""The first profile of a process starts CUPTI, which takes seconds; a scheduler in a long prefill answers after it."""
STOP_READ_S = 180.0
"""The first stage answers once its trace is written."""
LEAVE_READ_S = 1.0


class Refusal(NamedTuple):
    """Why the server did not start: `started` is False when it surely did not, None when nobody knows."""

    message: str
    remedy: str
    started: bool | None


class Profiler:
    """Asks one server whose port was traced to it."""

    def __init__(self, server: Server, keys: Keys | None = None) -> None:
        self._server = server
        self._keys = keys or Keys()
        self._lock = threading.Lock()
        self._open: set[HttpClient] = set()

    def start(self, body: dict[str, Any]) -> Refusal | None:
        """Ask for a profile; None when the server said yes."""
        try:
            status = self._post("/start_profile", json.dumps(body).encode(), START_READ_S)
        except HttpError as error:
            sent = error.kind not in ("refused", "unreachable")
            return Refusal(f"/start_profile: {error}", "", None if sent else False)
        if status == 200:
            return None
        if status in (401, 403):
            message, remedy = self._keys.advice(True)
            return Refusal(f"/start_profile: {message}", f"{remedy}; with an admin key: PPSCOPE_ADMIN_KEY", False)
        if status == 404:
            return Refusal("this server has no /start_profile", "", False)
        if status in (400, 422):
            return Refusal(f"the server does not take the request ({status})", "its log says why", False)
        return Refusal(
            f"the server refused to profile ({status}): most likely a profile runs already",
            "its log says why; POST /stop_profile ends a profile that was forgotten",
            False,
        )

    def stop(self, read_s: float = STOP_READ_S) -> str | None:
        """Ask the profiler to stop; None when it did, else why that is not known. 500 means that none ran any more."""
        try:
            status = self._post("/stop_profile", b"{}", read_s)
        except HttpError as error:
            return str(error)
        return None if status in (200, 500) else f"answered {status}"

    def abort(self) -> None:
        """End requests under way."""
        with self._lock:
            for client in self._open:
                client.close()

    def _key(self) -> str | None:
        server = self._server
        return self._keys.key(not has_ended(server.launcher_pid, server.launcher_started_ticks))

    def _post(self, path: str, body: bytes, read_s: float) -> int:
        server, tls = self._server, self._server.tls
        while True:
            client = HttpClient(server.host, server.port or 0, tls, self._key)
            with self._lock:
                self._open.add(client)
            try:
                with client.post(path, body, read_s) as reply:
                    if reply.status in (401, 403) and self._keys.refused(True):
                        continue
                    return reply.status
            finally:
                with self._lock:
                    self._open.discard(client)

"""The desk that the server source's workers share, and the thread that a worker is."""

from __future__ import annotations

import re
import threading
import time
from abc import ABC, abstractmethod

from ppscope.records import Server, SourceStatus
from ppscope.sources.base import Emit
from ppscope.sources.server_http import HttpClient
from ppscope.sources.server_keys import Keys
from ppscope.target.errors import inside_network
from ppscope.target.processes import has_ended

MAX_FAULTS = 5


class Desk:
    """The server as last heard of, the client that asks it, and the way to say how a worker is doing."""

    def __init__(self, emit: Emit, server: Server, keys: Keys, stopping: threading.Event) -> None:
        self.emit = emit
        self.stopping = stopping
        self.keys = keys
        self.server = server
        self.version: str | None = server.version
        self.metrics_ok_ns: int | None = None
        """When `/metrics` last gave a load; the log's own is not sent beside it."""
        self.log_followed = False
        self._client: HttpClient | None = None
        self._lock = threading.Lock()
        self._said: dict[str, tuple[str, str]] = {}

    def update(self, server: Server) -> None:
        """Take note of a changed server."""
        self.server = server
        self.version = server.version or self.version

    def say(self, name: str, state: str, message: str = "", remedy: str = "") -> None:
        """Say how `name` (`http`, `metrics`, `log`) is doing, once per change; an answer that `close` cut off is no news."""
        if not self.stopping.is_set() and self._said.get(name) != (state, message):
            self._said[name] = (state, message)
            self.emit(SourceStatus(name, time.monotonic_ns(), state, message, remedy))

    def port_owner(self) -> bool | None:
        """Whether the port was traced to this server's sockets (fact `port.owned`); None when it could not be told."""
        return {"yes": True, "no": False}.get(str(self._fact("port.owned")))

    def key(self) -> str | None:
        """The API key to send now, None for none: a server that ended this very second has left its port to anybody."""
        owned = self.port_owner() and not has_ended(self.server.launcher_pid, self.server.launcher_started_ticks)
        return self.keys.key(owned)

    def _fact(self, name: str) -> object:
        return next((fact.value for fact in reversed(self.server.facts) if fact.name == name), None)

    def no_http(self) -> tuple[str, str] | None:
        """Why the server's API must not or cannot be asked: message and remedy; None when it can."""
        if self.server.kind == "node":
            return "this node has no API of its own", "attach on the node with rank 0"
        return self.no_metrics()

    def no_metrics(self) -> tuple[str, str] | None:
        """The same for `/metrics`, which nodes behind the first serve too (entrypoints/engine.py, 0.5.6 to 0.5.23)."""
        if self.server.state == "gone":
            return "the server is gone", ""
        if self.server.port is None:
            return "no HTTP port is known", ""
        if self._fact("port.same_network") is False:
            return "the server is in another network namespace", inside_network(self.server.launcher_pid)
        if self.port_owner() is False:
            port = f"port {self.server.port}"
            if self.server.state == "loading":
                return f"the server does not listen on {port} yet", ""
            return f"{port} belongs to another process", "attach inside the server's network namespace"
        return None

    def client(self) -> HttpClient:
        """The client for the server's present address; call it only where `no_http` gives None."""
        server, tls = self.server, self.server.tls
        with self._lock:
            old = self._client
            if old is None or old.port != server.port or old.listens_on != server.host or old.tls != tls:
                self._client = HttpClient(server.host, server.port or 0, tls, self.key)
                if self.stopping.is_set():
                    self._client.close()
            return self._client  # type: ignore[return-value]

    def close(self) -> None:
        """End requests under way."""
        with self._lock:
            if self._client is not None:
                self._client.close()

    def version_at_least(self, *wanted: int) -> bool | None:
        """Whether the server's version is at least this; None when it is not known."""
        numbers = re.match(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", self.version or "")
        return tuple(int(n or 0) for n in numbers.groups()) >= wanted if numbers else None


class Worker(ABC):
    """A thread that takes one turn after another until the desk closes; a fault in a turn is said and survived."""

    name: str

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ppscope-{self.name}", daemon=True)

    @abstractmethod
    def turn(self) -> float:
        """Do the work once; how many seconds to wait before the next turn."""

    def finish(self) -> None:  # noqa: B027  most workers hold nothing open
        """Let go of what the worker holds; called on its own thread."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def nudge(self) -> None:
        """Take the next turn now."""
        self.wake.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        faults = 0
        try:
            while not self.desk.stopping.is_set():
                try:
                    delay = self.turn()
                    faults = 0
                except Exception as error:  # noqa: BLE001  whatever it is, only this worker may suffer, and it is said
                    if self.desk.stopping.is_set():
                        return
                    faults += 1
                    state = "dead" if faults >= MAX_FAULTS else "degraded"
                    self.desk.say(self.name, state, f"fault in ppscope: {type(error).__name__}: {error}"[:200])
                    if faults >= MAX_FAULTS:
                        return
                    delay = 2.0
                self.wake.wait(delay)
                self.wake.clear()
        finally:
            self.finish()

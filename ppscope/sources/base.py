"""What every source is: started, told of the server, stopped; it speaks only through `emit` and fails alone."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from ppscope.records import AnyCommand, AnyRecord, RankKey, Server, SourceStatus

Emit = Callable[[AnyRecord], None]
"""Hands a record to the stream; never blocks, callable from any thread."""


class Source(ABC):
    """A place where facts come from, on threads (or children) of its own.

    `start` returns at once. `stop` ends threads and children within about a second and may be called twice. An error inside
    becomes a `SourceStatus`, never an exception out of a thread.
    """

    name: str

    def __init__(self, emit: Emit) -> None:
        self.emit = emit
        self.stopping = threading.Event()
        self._said: dict[RankKey | None, tuple[str, str]] = {}

    @abstractmethod
    def start(self, server: Server) -> None:
        """Begin to observe this server."""

    @abstractmethod
    def stop(self) -> None:
        """End everything that was started; children are reaped."""

    def update(self, server: Server) -> None:  # noqa: B027  most sources do not mind
        """Take note of a changed server: ranks that came, went or got a GPU."""

    def obey(self, command: AnyCommand) -> None:  # noqa: B027  most sources have no commands
        """Do what the view asks, where it concerns this source."""

    def children(self) -> tuple[int, ...]:
        """Pids of the tools this source runs now, for the cost meter."""
        return ()

    def status(self, state: str, message: str = "", remedy: str = "", rank: RankKey | None = None) -> None:
        """Say how the source is doing, once per change, and nothing once it is stopped: what `stop` cuts off is no trouble."""
        if self.stopping.is_set() or self._said.get(rank) == (state, message):
            return
        self._said[rank] = (state, message)
        self.emit(SourceStatus(self.name, time.monotonic_ns(), state, message, remedy, rank))

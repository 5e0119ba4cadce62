"""The source of profile bursts: SGLang's own torch profiler, only when the user asks, one at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ppscope.records import AnyCommand, Burst, CancelBurst, Note, Server
from ppscope.sources.base import Emit, Source

if TYPE_CHECKING:
    from ppscope.sources.burst_run import BurstRun


class BurstSource(Source):
    """Obeys Burst and CancelBurst; emits BurstStatus, BurstRank and BurstReport. See burst_run for what it does to the server."""

    name = "burst"

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit)
        self._server: Server | None = None
        self._run: BurstRun | None = None

    def start(self, server: Server) -> None:
        """Take note of the server; nothing is asked of it."""
        self._server = server

    def update(self, server: Server) -> None:
        """The next burst is of the server as it is now."""
        self._server = server

    def obey(self, command: AnyCommand) -> None:
        """Begin a burst, or end the one that runs."""
        if isinstance(command, Burst):
            self._begin(command)
        elif isinstance(command, CancelBurst) and self._run is not None:
            self._run.cancel()

    def _begin(self, command: Burst) -> None:
        if self._server is None or self.stopping.is_set():
            return
        if self._run is not None and self._run.active:
            text = "a profile of ours is still under way: the next one can begin when it is over"
            self.emit(Note(time.monotonic_ns(), "warning", text))
            return
        # Here: with it comes the reader of traces, a third of what every collector would import.
        from ppscope.sources.burst_run import BurstRun

        run = BurstRun(self.emit, self._server, command)
        self._run = run
        run.start()

    def children(self) -> tuple[int, ...]:
        """The process that reads the traces."""
        child = self._run.child if self._run is not None else None
        return () if child is None else (child,)

    def stop(self) -> None:
        """Stop a profile that runs, and end the reading of one that is over."""
        self.stopping.set()
        if self._run is not None:
            self._run.leave()

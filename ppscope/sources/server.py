"""The server's own word: HTTP, metrics and log, each with a worker and a status of its own (`http`, `metrics`, `log`)."""

from __future__ import annotations

import time

from ppscope.records import AnyCommand, ReadServerInfo, Server, Settings
from ppscope.sources.base import Emit, Source
from ppscope.sources.server_ask import AliveWorker, InfoWorker
from ppscope.sources.server_follow import LogWorker
from ppscope.sources.server_keys import Keys
from ppscope.sources.server_scrape import MetricsWorker
from ppscope.sources.server_worker import Desk, Worker
from ppscope.target.config_file import ConfigProblem, config_words
from ppscope.target.procfs import Proc
from ppscope.target.server_info import CONFIG_PROBLEM, requested_settings

_Asked = tuple[int, tuple[str, ...]]
"""The launcher and its command line."""


class ServerSource(Source):
    """Emits Settings, LoadSample, Metric, BatchLog and LogNote records; changes nothing at the server."""

    name = "http"

    def __init__(self, emit: Emit, keys: Keys | None = None) -> None:
        super().__init__(emit)
        self._keys = keys or Keys()
        self._desk: Desk | None = None
        self._info: InfoWorker | None = None
        self._workers: list[Worker] = []
        self._requested: dict[str, object] | None = None
        self._config: tuple[_Asked, tuple[str, ...], str | None] | None = None

    def start(self, server: Server) -> None:
        """Begin to ask this server and to follow its log; returns at once."""
        desk = self._desk = Desk(self.emit, server, self._keys, self.stopping)
        self._info = InfoWorker(desk)
        self._workers = [self._info, AliveWorker(desk, self._info), MetricsWorker(desk), LogWorker(desk)]
        self._say_requested(server)
        for worker in self._workers:
            worker.start()

    def update(self, server: Server) -> None:
        """Take note of a changed server: another port, launcher, state or command line."""
        if self._desk is None:
            return
        before = self._desk.server
        self._desk.update(server)
        self._say_requested(server)
        if (before.port, before.state, before.launcher_pid) != (server.port, server.state, server.launcher_pid):
            for worker in self._workers:
                worker.nudge()

    def obey(self, command: AnyCommand) -> None:
        """Ask `/server_info` again on ReadServerInfo."""
        if isinstance(command, ReadServerInfo) and self._info is not None:
            self._info.ask()

    def stop(self) -> None:
        """End requests and threads; may be called twice."""
        self.stopping.set()
        if self._desk is not None:
            self._desk.close()
        for worker in self._workers:
            worker.nudge()
        until = time.monotonic() + 1.0
        for worker in self._workers:
            worker.join(max(until - time.monotonic(), 0.01))

    def _say_requested(self, server: Server) -> None:
        if not server.launch_command:
            return
        asked = (server.launcher_pid, server.launch_command)
        if self._config is None or self._config[0] != asked:
            # Once for each launcher: it may be gone when the server is looked at again.
            self._config = (asked, *_config_of(*asked))
        _, words, problem = self._config
        values = requested_settings(server.launch_command, server.facts, words)
        if problem is not None:
            values[CONFIG_PROBLEM] = problem
        if values != self._requested:
            self._requested = values
            self.emit(Settings(time.monotonic_ns(), "requested", values))


def _config_of(launcher_pid: int, command: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
    try:
        return config_words(Proc(), launcher_pid, command), None
    except ConfigProblem as problem:
        return (), str(problem)

"""What the tests of the gpu and host sources share: a place where records gather, and a server to observe."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

from ppscope.records import AnyRecord, Rank, Server, SourceStatus

PATIENCE_S = 30.0

T = TypeVar("T")


class Gathered:
    """An `emit` that keeps every record and lets a test wait for one."""

    def __init__(self) -> None:
        self.records: list[AnyRecord] = []
        self._news = threading.Condition()

    def __call__(self, record: AnyRecord) -> None:
        with self._news:
            self.records.append(record)
            self._news.notify_all()

    def of(self, kind: type[T]) -> list[T]:
        """Records of one kind, oldest first."""
        with self._news:
            return [record for record in self.records if isinstance(record, kind)]

    def wait(self, kind: type[T], wanted: Callable[[T], bool] = lambda _: True, count: int = 1) -> list[T]:
        """The first `count` records of a kind that are wanted, once they have come."""

        def found() -> list[T]:
            return [record for record in self.records if isinstance(record, kind) and wanted(record)]

        with self._news:
            came = self._news.wait_for(lambda: len(found()) >= count, PATIENCE_S)
            assert came, f"only {len(found())} of {count} {kind.__name__} came; states: {self.statuses()}"
            return found()[:count]

    def status(self, state: str, text: str = "") -> SourceStatus:
        """The first status of this state that says this."""
        return self.wait(SourceStatus, lambda status: status.state == state and text in status.message)[0]

    def statuses(self) -> list[tuple[str, str]]:
        """What was said, oldest first."""
        return [(said.state, said.message) for said in self.records if isinstance(said, SourceStatus)]


def server_of(ranks: tuple[Rank, ...] = (), launcher_pid: int = 1, *, emulated: bool = False) -> Server:
    """A server with these ranks, one stage each."""
    size = len(ranks) or 1
    return Server(0, launcher_pid, 0, "launch_server", "serving", ranks, size, 1, 1, emulated=emulated)


def alive(pid: int) -> bool:
    """Whether the process exists, zombies included."""
    return os.path.exists(f"/proc/{pid}")

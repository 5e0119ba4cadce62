"""A stream that a test fills by hand, for a session that takes it as a live one."""

from __future__ import annotations

from ppscope.records import AnyCommand, AnyRecord


class FedStream:
    """Gives what was added, once."""

    live = True

    def __init__(self, *records: AnyRecord) -> None:
        self._records = list(records)

    def add(self, *records: AnyRecord) -> None:
        self._records.extend(records)

    def drain(self) -> list[AnyRecord]:
        records, self._records = self._records, []
        return records

    def wait(self, timeout_s: float) -> bool:
        return bool(self._records)

    def send(self, command: AnyCommand) -> None:
        """Nobody listens."""

    def close(self) -> None:
        """Nothing to end."""

"""What the collector has seen so far that helps to say which rank sits on which GPU."""

from __future__ import annotations

from collections.abc import Mapping

from ppscope.records import AnyRecord, GpuDevice, GpuSample, RankKey, Server
from ppscope.target.processes import Found


class Observed:
    """Collects NVML's process table and the dumps' rank facts out of the passing records; safe to call from any thread."""

    def __init__(self) -> None:
        self.rank_facts: Mapping[RankKey, Mapping[str, int]] = {}
        self._devices: dict[int, GpuDevice] = {}
        self._pids: dict[int, tuple[int, ...]] = {}

    def note(self, record: AnyRecord) -> None:
        """Remember what a record says about GPUs."""
        if isinstance(record, GpuSample):
            if record.pids is not None:
                self._pids[record.index] = record.pids
        elif isinstance(record, GpuDevice):
            self._devices[record.index] = record

    def join(self, found: Found, at_ns: int) -> Server:
        """The server record with each rank's GPU, as far as it is known now."""
        return found.to_record(at_ns)

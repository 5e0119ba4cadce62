"""What the collector has seen so far that helps to say which rank sits on which GPU."""

from __future__ import annotations

from collections.abc import Mapping

from ppscope.records import AnyRecord, GpuDevice, GpuSample, RankKey, Server
from ppscope.target.found import Found
from ppscope.target.gpu_map import map_gpus, with_gpus
from ppscope.target.procfs import Proc, contained


class Observed:
    """Collects NVML's process table and the dumps' rank facts out of the passing records; safe to call from any thread."""

    def __init__(self, proc: Proc | None = None, inside: bool | None = None) -> None:
        self._proc = proc or Proc()
        # In a container a number that exists here may be the host's of a stranger, and often is a small one of ours.
        self._inside = contained(self._proc) if inside is None else inside
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
        pids = dict(self._pids)
        dumps = {key: facts["gpu_id"] for key, facts in list(self.rank_facts.items()) if "gpu_id" in facts}
        # On the machine itself the numbers are ours, also that of a process which has just ended, or whose context is left behind.
        foreign = self._inside
        if foreign is None:
            foreign = not all(self._proc.exists(pid) for on_gpu in pids.values() for pid in on_gpu)
        gpus = map_gpus(
            found.ranks,
            found.placement,
            found.env,
            device=found.device,
            devices=list(self._devices.values()),
            pids=pids,
            foreign_pids=foreign,
            dumps=dumps,
            rank_env=found.rank_env,
        )
        return with_gpus(found.to_record(at_ns), gpus)

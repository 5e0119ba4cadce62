"""What the collector has seen so far that helps to say which rank sits on which GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ppscope.records import AnyRecord, GpuDevice, GpuSample, RankKey, Server
from ppscope.target.found import Found
from ppscope.target.gpu_map import map_gpus, with_gpus


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
        pids = dict(self._pids)
        dumps = {key: facts["gpu_id"] for key, facts in list(self.rank_facts.items()) if "gpu_id" in facts}
        gpus = map_gpus(
            found.ranks,
            found.placement,
            found.env,
            device=found.device,
            devices=list(self._devices.values()),
            pids=pids,
            foreign_pids=any(not os.path.exists(f"/proc/{pid}") for on_gpu in pids.values() for pid in on_gpu),
            dumps=dumps,
            rank_env=found.rank_env,
        )
        return with_gpus(found.to_record(at_ns), gpus)

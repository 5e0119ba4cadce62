"""GPU readings by index, with the history the panel draws."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from ppscope.records import GpuDevice, GpuSample, RankKey
from ppscope.sources.gpu_reasons import throttle_names
from ppscope.views import GpuPanelRow

_HISTORY = 300
"""Readings that are kept of each GPU: a minute at 5 Hz, which is what findings look back on."""
_DRAWN = 24
"""Readings that go to the panel with every screen: it draws at most the last 24."""
_FRESH_NS = 3_000_000_000


class Gpus:
    """The devices seen and their last readings."""

    def __init__(self) -> None:
        self.devices: dict[int, GpuDevice] = {}
        self.samples: dict[int, deque[GpuSample]] = {}

    def add_device(self, device: GpuDevice) -> None:
        """Take in a device."""
        self.devices[device.index] = device

    def add_sample(self, sample: GpuSample) -> None:
        """Take in a reading."""
        self.samples.setdefault(sample.index, deque(maxlen=_HISTORY)).append(sample)

    def last(self, index: int | None, now_ns: int) -> GpuSample | None:
        """The newest reading of a GPU, None when it is older than three seconds."""
        samples = self.samples.get(index) if index is not None else None
        if not samples or now_ns - samples[-1].at_ns > _FRESH_NS:
            return None
        return samples[-1]

    def since(self, index: int | None, since_ns: int) -> list[GpuSample]:
        """Readings of a GPU since an instant, oldest first."""
        if index is None:
            return []
        return [sample for sample in self.samples.get(index, ()) if sample.at_ns >= since_ns]

    def power_limit_w(self, index: int | None, now_ns: int) -> float | None:
        """The limit in force now, or the device's own."""
        sample = self.last(index, now_ns)
        if sample is not None and sample.power_limit_w is not None:
            return sample.power_limit_w
        device = self.devices.get(index) if index is not None else None
        return device.power_limit_w if device else None

    def rows(self, now_ns: int, ranks: Iterable[tuple[RankKey, int | None]]) -> tuple[GpuPanelRow, ...]:
        """Panel rows in index order."""
        on_gpu: dict[int, list[RankKey]] = {}
        for key, index in ranks:
            if index is not None:
                on_gpu.setdefault(index, []).append(key)
        rows = []
        for index, device in sorted(self.devices.items()):
            held = self.samples.get(index, deque())
            samples = list(islice(reversed(held), _DRAWN))[::-1]
            newest = samples[-1] if samples else None
            age_ns = now_ns - newest.at_ns if newest else 0
            rows.append(
                GpuPanelRow(
                    device=device,
                    last=newest,
                    power_w=tuple(sample.power_w for sample in samples),
                    util_percent=tuple(_number(sample.util_percent) for sample in samples),
                    throttle=throttle_names(newest.throttle_reasons) if newest and newest.throttle_reasons else (),
                    ranks=tuple(on_gpu.get(index, ())),
                    stalled_s=age_ns / 1e9 if age_ns > _FRESH_NS else None,
                )
            )
        return tuple(rows)


def _number(value: int | None) -> float | None:
    return None if value is None else float(value)

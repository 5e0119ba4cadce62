"""GPU readings as CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from ppscope.records import AnyRecord, Clock, GpuDevice, GpuSample, Hello
from ppscope.snapshot.wall import WallClock
from ppscope.sources.gpu_reasons import throttle_names
from ppscope.unicode import json_bytes

SCHEMA = "ppscope.gpu_samples/1"
_FIELDS = tuple(name for name in GpuSample.__struct_fields__ if name != "pids")


def _rows(records: Iterable[AnyRecord]) -> list[dict[str, Any]]:
    """One row a reading in time order; `wall_ns` is None where the recording does not say."""
    clocks: list[AnyRecord] = []
    uuids: dict[int, str] = {}
    samples: list[GpuSample] = []
    for record in records:
        if isinstance(record, Hello | Clock):
            clocks.append(record)
        elif isinstance(record, GpuDevice):
            uuids[record.index] = record.uuid
        elif isinstance(record, GpuSample):
            samples.append(record)
    wall = WallClock(clocks)
    rows = []
    for sample in sorted(samples, key=lambda one: (one.at_ns, one.index)):
        row = {name: getattr(sample, name) for name in _FIELDS}
        row["wall_ns"] = wall.at(sample.at_ns)
        row["uuid"] = uuids.get(sample.index)
        mask = sample.throttle_reasons
        row["throttle"] = None if mask is None else "+".join(throttle_names(mask))
        rows.append(row)
    return rows


def gpu_csv(records: Iterable[AnyRecord]) -> str:
    """A table with a header; an unknown value is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ["wall_ns", *_FIELDS, "throttle", "uuid"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(_rows(records))
    return text.getvalue()


def gpu_json(records: Iterable[AnyRecord]) -> bytes:
    """An object of schema `ppscope.gpu_samples/1`; unknown is null."""
    return json_bytes({"schema": SCHEMA, "samples": _rows(records)})

"""A recording whose figures are no numbers: those records are left out, and the rest is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ppscope.collect.stream import MAGIC, encode
from ppscope.records import AnyRecord, BatchLog, BurstRank, BurstReport, Cost, GpuDevice, GpuSample, LoadSample, Metric
from ppscope.snapshot.read import read_file
from ppscope.snapshot.recorded import session_of
from ppscope.snapshot.sound import _FIGURES, is_sound
from tests.recordings import recording

KINDS = {GpuDevice, GpuSample, LoadSample, BatchLog, Metric, Cost, BurstRank, BurstReport}


def test_the_figures_of_every_record_are_known() -> None:
    assert {kind for kind, names in _FIGURES.items() if names} >= KINDS
    assert _FIGURES[LoadSample] == ("tokens_per_s", "token_usage", "micro_batch")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e300])
def test_a_figure_that_is_no_number_leaves_its_record_out(value: float, tmp_path: Path) -> None:
    records = recording(2, 2)
    assert all(map(is_sound, records))
    spoilt: list[AnyRecord] = []
    for record in records:
        changed: dict[str, Any] = dict.fromkeys(_FIGURES[type(record)], value)
        spoilt.append(msgspec.structs.replace(record, **changed) if changed else record)
    bad = [record for record, before in zip(spoilt, records, strict=True) if record is not before]
    assert {type(record) for record in bad} >= {GpuSample, LoadSample, Cost}
    assert not any(map(is_sound, bad))
    path = tmp_path / "run.pps"
    path.write_bytes(MAGIC + b"".join(map(encode, spoilt)))
    left = read_file(path).records
    assert left
    assert all(map(is_sound, left))
    assert session_of(left).screen().header.load.tokens_per_s is None

"""What is sent of a rank's trace stays bounded, whatever the trace holds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ppscope.records import RankKey
from ppscope.sources import burst_columns
from ppscope.trace.align import group_runs
from ppscope.trace.analyse import analyse_file
from tests.kineto import Pipeline


@pytest.mark.parametrize("limit", [1, 7, 60])
def test_spans_that_cannot_be_joined_are_left_out_and_counted(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = group_runs([analyse_file(path) for path in Pipeline([1_000_000] * 2, steps=60).build().write(tmp_path)])
    analysis = run.ranks[1]
    # Each span of a step of its own: no gap, however long, joins any two of them.
    spans = analysis.spans
    count = len(spans.gpu_start_ns)
    analysis.spans = msgspec.structs.replace(spans, gpu_step=list(range(count)), gpu_dropped=3)
    monkeypatch.setattr(burst_columns, "MOST_SPANS", limit)
    record = burst_columns.rank_record(analysis, run, RankKey(0, 1, 0), 1, 0)
    assert record is not None
    assert count > 60
    assert len(record.gpu_starts_ns) == len(record.gpu_lengths_ns) == len(record.gpu_steps) == limit
    assert record.gpu_dropped == count - limit + 3
    assert record.gpu_starts_ns == sorted(record.gpu_starts_ns)
    lengths = sorted(
        (end - start for start, end in zip(spans.gpu_start_ns, spans.gpu_end_ns, strict=True)), reverse=True
    )
    assert sorted(record.gpu_lengths_ns, reverse=True) == lengths[:limit]

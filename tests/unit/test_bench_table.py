"""The table of the bench: absent cells, parts kept between runs, intervals."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.bench.overhead import interval
from tests.bench.table import Measured, Row, keep, kept, markdown


def test_a_cell_that_was_not_measured_is_a_dash_and_other_peers_share_a_column() -> None:
    row = Row("bytes", "4.2", "8", {"nvitop": "2.0", "orjson": "68", "json": "51"})
    text = markdown({"one": Measured([row, Row("memory", "80")], ["Seen.", "py-spy: absent."], "now")})
    lines = text.splitlines()
    assert "| bytes | 8 | 4.2 | – | – | 2.0 | orjson 68, json 51 |" in lines
    assert "| memory | – | 80 | – | – | – | – |" in lines
    assert "- **one** (now): Seen. py-spy: absent." in lines
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


def test_a_part_is_kept_and_joins_the_table_later(tmp_path: Path) -> None:
    measured = Measured([Row("bytes", "4.2", "8", {"nvitop": "2"})], ["a note"], "now")
    assert kept(tmp_path / "none", "part") is None
    keep(tmp_path / "bench", "part", measured)
    assert kept(tmp_path / "bench", "part") == measured


@pytest.mark.parametrize("ratios", [[0.5, 2.0], [1.0] * 5, [0.9, 1.0, 1.1]])
def test_the_interval_holds_the_mean(ratios: list[float]) -> None:
    mean, low, high = interval([math.log(ratio) for ratio in ratios])
    assert mean == pytest.approx(math.prod(ratios) ** (1 / len(ratios)))
    assert low <= mean <= high
    assert min(ratios) <= low + 1e-12
    assert high <= max(ratios) + 1e-12

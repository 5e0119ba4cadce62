"""Every row of the fault table names a test that exists, and every complaint that was collected has a row."""

from __future__ import annotations

import re

from tests.faults import ROW, named, nodes
from tests.shared import ROOT

COMPLAINTS = (
    "py-spy #8,", "marin #4529", "debugpy #578", "py-spy #872", "py-spy #565", "py-spy #609", "py-spy #737", "py-spy #711",
    "nvitop #75", "driver changed (nvitop #75", "nvtop #95", "nvitop #5,", "btop #1612", "nvitop #134", "tmux #2901",
    "tmux #2191", "memray #309", "memray #404", "sglang-omni #2174", "sglang #17941",
)  # fmt: skip
"""One that stands for each of the twenty kinds."""


def test_every_row_names_a_test_that_exists() -> None:
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8").partition("\n## Nearly real input")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| fault", "|---"))]
    names = ROW.findall(text)
    assert len(rows) == len(names) > 30
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"^(?:async )?def (test_\w+)", sources, re.MULTILINE))
    assert [name for name in names if name not in there] == []
    assert [node.rpartition("::")[2] for node in nodes()] == named(), "each name is of one test"


def test_every_kind_of_complaint_has_a_row() -> None:
    rows = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    assert [named for named in COMPLAINTS if named not in rows] == []

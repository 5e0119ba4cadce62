"""Every row of the fault table names a test that exists, and no other test file's."""

from __future__ import annotations

import re

from tests.shared import ROOT

ROW = re.compile(r"^\|.*\| `(test_\w+)` \|$", re.MULTILINE)


def test_every_row_names_a_test_that_exists() -> None:
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| fault", "|---"))]
    named = ROW.findall(text)
    assert len(rows) == len(named) > 30
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"^(?:async )?def (test_\w+)", sources, re.MULTILINE))
    assert [name for name in named if name not in there] == []

"""README and manual say what the code does."""

from __future__ import annotations

import re

from tests.docs import outdated
from tests.shared import ROOT


def test_generated_parts_are_fresh() -> None:
    assert outdated() == [], "run: make docs"


def test_pictures_and_links_of_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    local = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    assert local
    assert [target for target in local if not (ROOT / target).exists()] == []

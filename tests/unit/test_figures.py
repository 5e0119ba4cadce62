"""Shares are written one way, wherever they are told."""

from __future__ import annotations

import re
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.figures import held, loose, share
from tests.shared import ROOT

SOURCES = sorted(path for folder in ("ppscope", "widgets") for path in (ROOT / folder).rglob("*.py"))
_FORMAT = re.compile(r":[ <>0-9]*(?:\.\d)?%\}|\.\df\}%|\}%(?![\w{])")


@pytest.mark.parametrize(
    ("value", "digits", "text"), [(0.853, 0, "85 %"), (0.0424, 1, "4.2 %"), (1, 0, "100 %"), (None, 0, "–")]
)
def test_a_share(value: float | None, digits: int, text: str) -> None:
    assert share(value, digits) == text


@given(st.lists(st.sampled_from(["busy", "85 %", "4.2 %,", "of", "a", "stage", "(12 %)"]), max_size=40))
def test_wrapping_never_tears_a_figure_from_its_sign(words: list[str]) -> None:
    text = " ".join(words)
    lines = [loose(line) for line in textwrap.wrap(held(text), 20)]
    assert " ".join(lines) == text
    assert not any(line.startswith("%") for line in lines)


def test_nobody_formats_a_share_otherwise() -> None:
    """But for the emulator, which writes SGLang's own words, and style sheets."""
    others = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in SOURCES
        if "emulator" not in path.parts and path.name not in ("app_theme.py", "figures.py")
        for line in path.read_text().splitlines()
        if _FORMAT.search(line) and "CSS" not in line
    ]
    assert others == []

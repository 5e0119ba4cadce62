"""How the screen looks, at every size and with every kind of colour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.screen.pilots import make

SHOTS: dict[str, tuple[str, tuple[int, int], tuple[str, ...], dict[str, Any]]] = {
    "serial_80x24": ("serial", (80, 24), (), {}),
    "stacks_120x40": ("serial", (120, 40), ("3", "tab", "down", "down"), {}),
    "findings_160x50": ("serial", (160, 50), (), {}),
    "spans_light_160x50": ("healthy", (160, 50), ("plus", "plus", "plus", "5"), {"dark": False}),
    "rank_120x40": ("tensor_parallel", (120, 40), ("enter", "enter"), {}),
    "no_colour_80x24": ("serial", (80, 24), ("4",), {"colours": "none"}),
    "sixteen_colours_120x40": ("sources_dead", (120, 40), ("4",), {"colours": "ansi"}),
    "ascii_80x24": ("rank_dead", (80, 24), ("3",), {"colours": "none", "ascii": True}),
    "many_ranks_80x24": ("big", (80, 24), ("end", *["down"] * 12), {}),
    "gone_120x40": ("server_gone", (120, 40), ("a",), {}),
    "hostile_80x24": ("hostile", (80, 24), ("5",), {}),
    "unknown_80x24": ("unknown", (80, 24), ("4",), {}),
}


@pytest.mark.parametrize("name", SHOTS)
def test_screen_looks_as_before(name: str, snap_compare: Callable[..., bool]) -> None:
    situation, size, keys, options = SHOTS[name]
    assert snap_compare(make(situation, **options), terminal_size=size, press=keys)

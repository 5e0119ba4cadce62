"""Entry point of SGLang's plugin group `sglang.srt.plugins` (0.5.11 and later), for when ppscope is installed beside SGLang.

Dormant until a view attaches, and again when the last one has left; `PPSCOPE_PROBE=off` keeps it out.
"""

from __future__ import annotations

import os

from .start import MODE, start


def load() -> None:
    """Called by SGLang in every process of the server; returns nothing and raises nothing."""
    start(os.environ.get(MODE) or "wanted")

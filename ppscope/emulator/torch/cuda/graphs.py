"""A graph whose replay costs the host the same short time whatever it holds."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

from .._ops import spend


class CUDAGraph:
    """A captured decode step."""

    def __init__(self, launch_ms: float) -> None:
        self.launch_ms = launch_ms

    def replay(self) -> None:
        """Launch the graph."""
        spend(self.launch_ms)

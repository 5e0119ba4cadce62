"""Replay of a whole decode step as one graph."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

from ....torch.cuda.graphs import CUDAGraph


class FullCudaGraphBackend:
    """Holds the captured graph."""

    def __init__(self, launch_ms: float) -> None:
        self._graph = CUDAGraph(launch_ms)

    def replay(self) -> None:
        """Launch the graph."""
        self._graph.replay()

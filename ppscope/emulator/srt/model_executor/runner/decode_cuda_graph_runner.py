"""Decode with graphs: copy the inputs, replay."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

from ....torch._ops import spend
from ..runner_backend.full_cuda_graph_backend import FullCudaGraphBackend

INPUT_COPY_SHARE = 0.25


class DecodeCudaGraphRunner:
    """Runner for batches up to the largest captured size. `host_ms` is the host time of one step."""

    def __init__(self, host_ms: float) -> None:
        self._copy_ms = host_ms * INPUT_COPY_SHARE
        self._backend = FullCudaGraphBackend(host_ms * (1 - INPUT_COPY_SHARE))

    def load_batch(self) -> None:
        """Copy the inputs into the graph's buffers."""
        spend(self._copy_ms)

    def execute(self) -> None:
        """Run one decode step."""
        self.load_batch()
        self._backend.replay()

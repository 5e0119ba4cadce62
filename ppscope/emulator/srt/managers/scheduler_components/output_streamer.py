"""Tokens on their way to the detokenizer."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

from ....torch._ops import burn, spend
from ..schedule_batch import Req

STREAM_MS = 0.4


class OutputStreamer:
    """Counts what it would send; `burn_ms` of CPU time go into each batch."""

    def __init__(self, burn_ms: float = 0.0) -> None:
        self.tokens_streamed = 0
        self._burn_ms = burn_ms

    def stream_output(self, reqs: list[Req]) -> None:
        """Send one token of each request."""
        self.tokens_streamed += len(reqs)
        burn(self._burn_ms)
        spend(STREAM_MS)

"""Tokens on their way to the detokenizer."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

from ....torch._ops import spend
from ..schedule_batch import Req

STREAM_MS = 0.4


class OutputStreamer:
    """Counts what it would send."""

    def __init__(self) -> None:
        self.tokens_streamed = 0

    def stream_output(self, reqs: list[Req]) -> None:
        """Send one token of each request."""
        self.tokens_streamed += len(reqs)
        spend(STREAM_MS)

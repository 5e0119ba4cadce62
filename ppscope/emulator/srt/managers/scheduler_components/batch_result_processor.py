"""What happens on the host when the tokens of a micro-batch are known."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

from ....torch._ops import spend
from ..schedule_batch import ScheduleBatch
from .output_streamer import OutputStreamer

BOOKKEEPING_MS = 0.4


class BatchResultProcessor:
    """Gives each request its token."""

    def __init__(self, streamer: OutputStreamer) -> None:
        self._streamer = streamer

    def process_batch_result_prefill(self, batch: ScheduleBatch) -> None:
        """First token of new requests."""
        self._give_tokens(batch)

    def process_batch_result_decode(self, batch: ScheduleBatch) -> None:
        """Next token of running requests."""
        self._give_tokens(batch)

    def _give_tokens(self, batch: ScheduleBatch) -> None:
        for req in batch.reqs:
            req.output_tokens += 1
        spend(BOOKKEEPING_MS)
        self._streamer.stream_output(batch.reqs)

"""The worker between scheduler and model."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

from ..model_executor.model_runner import ModelRunner
from .schedule_batch import ScheduleBatch


class TpModelWorker:
    """Worker of one rank."""

    def __init__(self, model_runner: ModelRunner) -> None:
        self.model_runner = model_runner

    def forward_batch_generation(self, batch: ScheduleBatch) -> tuple[bool, int]:
        """Launch one step; see `ModelRunner.forward`."""
        return self.model_runner.forward(batch)

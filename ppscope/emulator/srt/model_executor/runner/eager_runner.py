"""A forward pass kernel by kernel."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

import time

from ...models.deepseek_v2 import DeepseekV3ForCausalLM


class EagerRunner:
    """Runner without graphs. `host_ms` is the host time of one step."""

    def __init__(self, model: DeepseekV3ForCausalLM, host_ms: float) -> None:
        self._model, self._host_ns = model, int(host_ms * 1e6)

    def execute(self) -> None:
        """Run one step."""
        now = time.monotonic_ns()
        self._model(now, now + self._host_ns)

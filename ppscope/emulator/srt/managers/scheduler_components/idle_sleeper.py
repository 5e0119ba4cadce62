"""Sleep of an idle stage 0."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

from ....torch._ops import spend


class IdleSleeper:
    """Waits a little for a request before the loop goes round again."""

    def maybe_sleep(self) -> None:
        """Sleep 0.1 s."""
        spend(100.0)

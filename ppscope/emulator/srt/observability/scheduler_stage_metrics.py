"""The wrapper that 0.5.23 puts around a scheduler's stages; here it leaves its frame and its span."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ...torch.profiler import record_function

P = ParamSpec("P")
R = TypeVar("R")


def scheduler_stage(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Wrap a scheduler method as the stage `name`."""

    def decorate(func: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(func)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            with record_function(f"scheduler.{name}"):
                return func(*args, **kwargs)

        return wrapper

    return decorate

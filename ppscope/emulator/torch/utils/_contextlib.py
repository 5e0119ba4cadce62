"""The frame that a grad-mode decorator leaves on every stack."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def context_decorator(func: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function as `DynamicGradMode` does."""

    @functools.wraps(func)
    def decorate_context(*args: P.args, **kwargs: P.kwargs) -> R:
        return func(*args, **kwargs)

    return decorate_context

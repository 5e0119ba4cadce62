"""Python frames of a profile with stacks, as the profiler writes them: `sglang/srt/file.py(line): function`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import FunctionType
from typing import Any

ATTENTION_KERNELS = 8
"""Of the kernels of a layer, those that attention launches; the rest are its experts'."""


@dataclass(frozen=True)
class Stacks:
    """Frames around the launches of a step, outermost first: of every step, a replay, an eager step, and the parts of its layers."""

    step: tuple[str, ...]
    replay: tuple[str, ...]
    eager: tuple[str, ...]
    layer: tuple[str, ...]
    attention: tuple[str, ...]
    experts: tuple[str, ...]


def frame(function: Any) -> str:
    """A function of the emulated SGLang, or a method, as a frame; its path from the package on."""
    inner = inspect.unwrap(getattr(function, "__func__", function))
    assert isinstance(inner, FunctionType)
    code = inner.__code__
    return f"sglang/srt/{code.co_filename.rpartition('/srt/')[2]}({code.co_firstlineno}): {code.co_name}"

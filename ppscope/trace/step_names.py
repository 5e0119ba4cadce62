"""Step spans: what one forward of the model is called in each program and version."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

import msgspec

DECODE_LIKE = frozenset({"DECODE", "TARGET_VERIFY", "VERIFY", "DRAFT", "DRAFT_EXTEND", "DRAFT_EXTEND_V2"})
"""Modes in which SGLang replays a graph: one or few tokens per request."""
PREFILL_LIKE = frozenset({"EXTEND", "MIXED", "PREBUILT", "SPLIT_PREFILL", "DLLM_EXTEND", "DRAFT_PREFILL"})
IDLE = "IDLE"


class StepFamily(IntEnum):
    """Who wrote the span; of several in one trace the first counts, the others enclose it."""

    SGLANG_STEP = 0
    VLLM_EXECUTE = 1
    PROFILER_STEP = 2
    SGLANG_RUN_BATCH = 3


class StepName(msgspec.Struct, frozen=True, gc=False):
    """What a step span's name says.

    `mode` is SGLang's forward mode in its own capitals, None when the span does not tell (ProfilerStep, run_batch).
    `batch_size` is the number of requests, None when unknown.
    """

    family: StepFamily
    mode: str | None
    batch_size: int | None


# SGLang 0.5.11 and later (model_runner.py 3469, utils/profile_utils.py 462 in 0.5.23), tails such as `g_sq=` and `forward_id=` included.
_SGLANG = re.compile(r"^step\[([A-Za-z_0-9]+)(?:\s+bs=(\d{1,9})(?!\d))?(\s+toks=)?[^\]]*\]?")
# vLLM: `execute_context_1(888_788544)_generation_0(0)`, with a count of tokens behind `execute_` in later versions.
_VLLM = re.compile(r"^execute_(?:\d+_)?context_(\d{1,9})(?:\([^)]*\))?_generation_(\d{1,9})(?!\d)")
_PROFILER = re.compile(r"^ProfilerStep#?\*?\d*$")


@lru_cache(maxsize=8192)
def parse_step(name: str) -> StepName | None:
    """Reads the name of a span; None when it is no step."""
    match = _SGLANG.match(name)
    if match:
        size, mode = match.group(2), match.group(1).upper()
        # Every step of a draft model is called DRAFT; tokens are counted in its prefill alone (profile_utils.py 484 in 0.5.23).
        if mode == "DRAFT" and match.group(3):
            mode = "DRAFT_PREFILL"
        return StepName(StepFamily.SGLANG_STEP, mode, int(size) if size else None)
    match = _VLLM.match(name)
    if match:
        context, generation = int(match.group(1)), int(match.group(2))
        if context == 0:
            return StepName(StepFamily.VLLM_EXECUTE, "DECODE" if generation else IDLE, generation)
        return StepName(StepFamily.VLLM_EXECUTE, "MIXED" if generation else "EXTEND", context + generation)
    if _PROFILER.match(name):
        return StepName(StepFamily.PROFILER_STEP, None, None)
    if name in ("run_batch", "scheduler.run_batch"):
        return StepName(StepFamily.SGLANG_RUN_BATCH, None, None)
    return None

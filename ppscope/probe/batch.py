"""What a batch is, and why a graph runner refused it: read from the few fields that all releases share."""

from __future__ import annotations

from typing import Any

from . import layout

_CODES = {name: code for code, name in enumerate(layout.MODES) if name}


def batch_facts(batch: Any) -> tuple[int, int, int]:
    """(mode code, requests, tokens) of a ScheduleBatch; 0 for what it does not say.

    Tokens: `extend_num_tokens` of a prefill, one a request otherwise.
    """
    mode = getattr(batch, "forward_mode", None)
    code = _CODES.get(getattr(mode, "name", mode), 0)  # type: ignore[arg-type]
    requests = getattr(batch, "reqs", None)
    size = len(requests) if requests is not None else 0
    extended = getattr(batch, "extend_num_tokens", None) if code != 2 else None
    tokens = extended if isinstance(extended, int) and extended > 0 else size
    return code, min(size, 0xFFFF), min(tokens, 0xFFFFFFFF)


def refusal(runner: Any, forward_batch: Any) -> int:
    """Why `can_run` said no; `REFUSED` where the fields do not tell (0.5.6.post2 to 0.5.23: the checks of decode and prefill runners)."""
    if getattr(forward_batch, "replace_embeds", None) is not None:
        return layout.REPLACE_EMBEDS
    vote = getattr(forward_batch, "can_run_decode_cuda_graph", getattr(forward_batch, "can_run_dp_cuda_graph", True))
    if getattr(runner, "require_mlp_sync", False) and vote is False:
        return layout.DP_VOTE
    size, largest = getattr(forward_batch, "batch_size", None), getattr(runner, "max_bs", None)
    if isinstance(size, int) and isinstance(largest, int):
        if size > largest:
            return layout.OVER_CAPTURED
        if getattr(runner, "disable_padding", False) and size not in getattr(runner, "capture_bs", (size,)):
            return layout.NOT_CAPTURED
    captured = getattr(runner, "capture_hidden_mode", None)
    asked = getattr(forward_batch, "capture_hidden_mode", captured)
    if captured is not None and asked != captured:
        return layout.HIDDEN_MODE
    tokens, most = getattr(forward_batch, "extend_num_tokens", None), getattr(runner, "max_num_tokens", None)
    if largest is None and isinstance(tokens, int) and isinstance(most, int) and tokens > most:
        return layout.TOKENS_OVER
    return layout.REFUSED

"""Reads `py-spy dump --json --locals`: the scheduler's main stack, and of all its memory only the few named loop locals."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import msgspec

from ppscope.sources.stacks_intern import Frame
from ppscope.sources.stacks_sound import has_scheduler, is_torn, last_name


class DumpError(ValueError):
    """Not a dump, or not one to believe; the message is one line."""


class _Local(msgspec.Struct):
    name: str
    repr: str | None = None


class _DumpFrame(msgspec.Struct):
    name: str
    filename: str
    line: int | None = None
    locals: list[_Local] | None = None


class _DumpThread(msgspec.Struct):
    frames: list[_DumpFrame]
    thread_name: str | None = None
    os_thread_id: int | None = None
    owns_gil: bool | None = None


_DECODER = msgspec.json.Decoder(list[_DumpThread])

RANK_FACTS = ("gpu_id", "dp_rank", "pp_rank", "tp_rank", "moe_ep_rank", "attn_cp_rank", "moe_dp_rank")
_INT = re.compile(r"-?\d{1,9}")
_MAX_SLOTS = 4096

# 0.5.23 keeps the batch in the loop's local `cur_batch`, stale until get_next_batch_to_run has answered. These calls of the
# loop come after the assignment in each of its three loops (scheduler_pp_mixin.py 104-559); others may come before.
_AFTER_ASSIGNMENT = (
    "_pp_recv_proxy_tensors", "_pp_exchange_outputs_before_forward", "_pp_commit_send_output_work_and_preprocess_output_tensors",
    "_pp_commit_proxy_send_work", "_pp_launch_batch", "_pp_process_batch_result", "_pp_send_proxy_to_next_stage",
    "maybe_prefetch_staging_for_batch", "_pp_pd_send_consensus_release_ids", "_pp_pd_send_consensus_bootstrapped_ids",
)  # fmt: skip


@dataclass(frozen=True)
class LoopFacts:
    """What a dump says of a scheduler; each fact is None where the release or the place in the loop does not tell it.

    `frames` are outermost first. `rank` holds the integer arguments of run_scheduler_process (gpu_id, pp_rank …).
    """

    frames: tuple[Frame, ...]
    loop: str | None = None
    mb_id: int | None = None
    next_mb_id: int | None = None
    batch: bool | None = None
    occupied: tuple[bool, ...] | None = None
    owns_gil: bool | None = None
    rank: Mapping[str, int] = field(default_factory=dict)


def parse_dump(data: bytes, tids: Collection[int]) -> LoopFacts:
    """Facts of the main thread, which has one of the numbers `tids` or the name MainThread.

    Raises `DumpError` for damaged JSON, a dump without a main thread, and a stack that no code path has.
    """
    try:
        threads = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # The error text must not carry what was in the dump; msgspec names the path and the type only.
        raise DumpError(f"py-spy's dump cannot be read: {str(error).splitlines()[0][:120]}") from None
    main = next((thread for thread in threads if thread.os_thread_id in tids), None)
    if main is None:
        main = next((thread for thread in threads if thread.thread_name == "MainThread"), None)
    if main is None:
        raise DumpError("py-spy's dump shows no main thread")
    inward = main.frames[::-1]
    frames = tuple((frame.name, frame.filename, frame.line or None) for frame in inward)
    if not has_scheduler(frames) or is_torn(frames):
        raise DumpError("py-spy read a stack that was changing")
    rank: dict[str, int] = {}
    for frame in inward:
        if fnmatchcase(last_name(frame.name), "run_scheduler_process*"):
            rank |= _named_ints(frame, RANK_FACTS)
    loop_at = next((i for i, frame in enumerate(inward) if fnmatchcase(last_name(frame.name), "event_loop_*")), None)
    if loop_at is None:
        return LoopFacts(frames, owns_gil=main.owns_gil, rank=rank)
    loop = inward[loop_at]
    ids = _named_ints(loop, ("mb_id", "next_mb_id"))
    callee = last_name(inward[loop_at + 1].name) if loop_at + 1 < len(inward) else ""
    return LoopFacts(
        frames,
        loop=last_name(loop.name),
        mb_id=_slot(ids.get("mb_id")),
        next_mb_id=_slot(ids.get("next_mb_id")),
        batch=_batch(_local(loop, "cur_batch")) if callee in _AFTER_ASSIGNMENT else None,
        occupied=_occupied(_local(loop, "mbs")),
        owns_gil=main.owns_gil,
        rank=rank,
    )


def _local(frame: _DumpFrame, name: str) -> str | None:
    return next((local.repr for local in frame.locals or () if local.name == name), None)


def _named_ints(frame: _DumpFrame, names: Collection[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for local in frame.locals or ():
        if local.name in names and local.repr is not None and _INT.fullmatch(local.repr):
            found[local.name] = int(local.repr)
    return found


def _slot(value: int | None) -> int | None:
    return value if value is not None and 0 <= value < _MAX_SLOTS else None


def _batch(text: str | None) -> bool | None:
    if text == "None":
        return False
    return True if text is not None and text.startswith("<") else None


def _occupied(text: str | None) -> tuple[bool, ...] | None:
    if text is None or not text.startswith("[") or not text.endswith("]") or "..." in text:
        return None
    items = [item.strip() for item in text[1:-1].split(",")]
    if not all(item == "None" or (item.startswith("<") and item.endswith(">")) for item in items):
        return None
    return tuple(item != "None" for item in items)

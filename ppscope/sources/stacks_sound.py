"""Which stacks can be believed: reading without stopping the target tears some (about 1 in 100 samples, 1 in 10 dumps under load)."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

from ppscope.sources.stacks_intern import Frame

_LOOP = "event_loop_*"
_SCHEDULER = ("run_scheduler_process*", "configure_scheduler_process", "spawn_main", _LOOP)

# Who may call what, in any release from 0.5.6 to 0.5.23. A caller that this table does not know at all may be a wrapper of a
# fork and is believed; one it knows from elsewhere cannot be.
_CALLERS: dict[str, tuple[str, ...]] = {
    "point_to_point_pyobj": (_LOOP, "recv_requests", "_pull_raw_reqs", "*_pyobj_*_stage"),
    "_pull_raw_reqs": ("recv_requests",),
    "recv_object": ("recv_tensor_dict",),
    "send_object": ("send_tensor_dict",),
    "recv_tensor_dict": (
        _LOOP, "_pp_recv_typed_dict", "_pp_recv_proxy_tensors", "_pp_recv_dict_from_prev_stage", "forward_batch_generation",
    ),
    "send_tensor_dict": (_LOOP, "_pp_send_dict_to_next_stage"),
    "_pp_recv_typed_dict": ("_pp_recv_proxy_tensors", "_pp_recv_dict_from_prev_stage"),
    "_pp_recv_proxy_tensors": (_LOOP,),
    "_pp_send_recv_and_preprocess_output_tensors": ("_pp_commit_send_output_work_and_preprocess_output_tensors",),
    "_pp_commit_send_output_work_and_preprocess_output_tensors": (_LOOP,),
    "_pp_commit_proxy_send_work": (_LOOP,),
    "_pp_launch_batch": (_LOOP,),
    "_pp_process_batch_result": (_LOOP,),
    "get_next_batch_to_run": (_LOOP,),
    "ingest_requests": (_LOOP,),
    "run_batch": (_LOOP, "_pp_launch_batch"),
}  # fmt: skip
_ENTRIES = ("__enter__", "__exit__")


def last_name(function: str) -> str:
    """A function's own name, without the class and function it is in."""
    return function.rpartition(".")[2]


def is_torn(frames: Sequence[Frame]) -> bool:
    """Whether a scheduler's main stack, outermost frame first, is one that no code path has."""
    names = [last_name(frame[0]) for frame in frames]
    for caller, name in pairwise(names):
        allowed = _CALLERS.get(name)
        if allowed is None or any(fnmatchcase(caller, pattern) for pattern in allowed):
            continue
        if caller in _CALLERS or caller in _ENTRIES:
            return True
    return not names


def has_scheduler(frames: Sequence[Frame]) -> bool:
    """Whether a stack reaches down to the scheduler's entry or loop, as every whole one does."""
    return any(fnmatchcase(last_name(frame[0]), pattern) for frame in frames for pattern in _SCHEDULER)


def usual_root(stacks: Sequence[Sequence[Frame]], weights: Sequence[int]) -> tuple[str, str] | None:
    """(function, file) of the outermost frame that holds at least four fifths of the weight; None when none does."""
    roots: dict[tuple[str, str], int] = {}
    for stack, weight in zip(stacks, weights, strict=True):
        if stack:
            root = (stack[0][0], stack[0][1])
            roots[root] = roots.get(root, 0) + weight
    if not roots:
        return None
    best = max(roots, key=lambda root: roots[root])
    return best if roots[best] * 5 >= sum(weights) * 4 else None

"""The names that carry meaning in a torch profiler trace, of every Kineto, CUDA, ROCm, SGLang and vLLM version known.

A new launch call, communication library or span is a new row here. Categories: 2021 traces say `Kernel`, `Memcpy`, `Runtime`,
`Operator`; later ones `kernel`, `gpu_memcpy`, `cuda_runtime` (HIP calls too), `cuda_driver`, `cpu_op`.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache


class GpuKind(IntEnum):
    """What a GPU event is."""

    KERNEL = 0
    MEMORY = 1


class CallKind(IntEnum):
    """What a runtime or driver call does."""

    LAUNCH = 0
    GRAPH_LAUNCH = 1
    BEGIN_CAPTURE = 2
    END_CAPTURE = 3
    MEMORY = 4


GPU_CATEGORIES: dict[str, GpuKind] = {
    "kernel": GpuKind.KERNEL,
    "Kernel": GpuKind.KERNEL,
    "gpu_memcpy": GpuKind.MEMORY,
    "gpu_memset": GpuKind.MEMORY,
    "Memcpy": GpuKind.MEMORY,
    "Memset": GpuKind.MEMORY,
}
CALL_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "Runtime", "Driver"})
SPAN_CATEGORIES = frozenset({"user_annotation"})
OPERATOR_CATEGORIES = frozenset({"cpu_op", "Operator"})
# In 2021 the annotations of a program were operators too.
OLD_OPERATOR_CATEGORY = "Operator"
PYTHON_CATEGORIES = frozenset({"python_function", "Python"})
RECORDING_CATEGORY = "Trace"

_CALLS: tuple[tuple[re.Pattern[str], CallKind], ...] = (
    (re.compile(r"^(?:cuda|cu|hip)GraphLaunch(?:_ptsz)?$"), CallKind.GRAPH_LAUNCH),
    (
        re.compile(
            r"^(?:cu(?:da)?|hip)(?:Ext|Hcc)?(?:Module)?Launch(?:Cooperative)?(?:Multi)?Kernel"
            r"|^cudaLaunch(?:_ptsz)?$|^cuLaunch(?:Grid(?:Async)?)?$|^hipLaunchByPtr"
        ),
        CallKind.LAUNCH,
    ),
    (re.compile(r"^(?:cuda|cu|hip)StreamBeginCapture"), CallKind.BEGIN_CAPTURE),
    (re.compile(r"^(?:cuda|cu|hip)StreamEndCapture"), CallKind.END_CAPTURE),
    (re.compile(r"^(?:cuda|cu|hip)Mem(?:cpy|set)"), CallKind.MEMORY),
)

_COMMUNICATION = re.compile(
    r"^(?:nccl|rccl|oneccl|hccl)|nccl(?:Dev)?Kernel|msccl|nvshmem|deep_ep|SendRecv"
    r"|cross_device_reduce|allreduce_fusion|all_?reduce_?(?:one|two)_?shot|(?:one|two)_?shot_?all_?reduce"
    r"|multimem_(?:all|one)|quickreduce|quick_reduce",
    re.IGNORECASE,
)
# NCCL from 2.19 on and RCCL run what they do not specialise in kernels of this name, send and receive among it.
_NOT_COLLECTIVE = re.compile(r"SendRecv|nccl.*(?:Send|Recv|Generic)", re.IGNORECASE)


@lru_cache(maxsize=4096)
def call_kind(name: str) -> CallKind | None:
    """Classifies a runtime or driver call; None for calls that start no GPU work (and for `INVALID`, an id Kineto did not know)."""
    for pattern, kind in _CALLS:
        if pattern.search(name):
            return kind
    return None


def is_communication(kernel: str) -> bool:
    """True for kernels of communication libraries: they spin until the peer arrives, so their time is waiting."""
    return _COMMUNICATION.search(kernel) is not None


def is_collective(kernel: str) -> bool:
    """True for communication that stays within a stage, among its tensor or expert ranks; stages send and receive between each other."""
    return is_communication(kernel) and _NOT_COLLECTIVE.search(kernel) is None


def short_kernel_name(kernel: str) -> str:
    """The kernel's own name, without return type, namespaces, template and call arguments."""
    name = kernel.removeprefix("void ").removeprefix("(anonymous namespace)::")
    depth = 0
    kept: list[str] = []
    for char in name.replace("(anonymous namespace)::", "").replace("operator()", "operator"):
        if char in "<(":
            if char == "(" and depth == 0:
                break
            depth += 1
        elif char in ">)":
            depth = max(depth - 1, 0)
        elif depth == 0:
            kept.append(char)
    return "".join(kept).strip().rsplit("::", 1)[-1] or kernel

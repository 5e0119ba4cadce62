"""What an NVML error means for the user: NVML's own codes as data, so that no NVML is needed to read them."""

from __future__ import annotations

from typing import NamedTuple

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
INSUFFICIENT_POWER = 8
DRIVER_NOT_LOADED = 9
IRQ_ISSUE = 11
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
DEPRECATED = 26

NEVER = frozenset(
    {INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED}
)
"""Answers that will not change while this process lives: the call is not made again."""

LOST = frozenset({INSUFFICIENT_POWER, IRQ_ISSUE, GPU_IS_LOST, RESET_REQUIRED})
"""The GPU itself is in trouble; the others may be well."""

DRIVER = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH})
"""The driver itself is gone or was exchanged: every further call fails alike."""


FINAL = frozenset({NO_PERMISSION, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND})
"""Why NVML does not start, and never will for this process; a driver may be loaded later, and other errors pass."""


class Trouble(NamedTuple):
    """A `SourceStatus` in words: state, what failed, and what mends it."""

    state: str
    message: str
    remedy: str


KERNEL_LOG = "dmesg | grep -i -e NVRM -e Xid says more"
_CONTAINER = "in a container: docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"

_INIT: dict[int, Trouble] = {
    LIBRARY_NOT_FOUND: Trouble("off", "no NVIDIA driver here: libnvidia-ml.so.1 not found", _CONTAINER),
    DRIVER_NOT_LOADED: Trouble(
        "off",
        "the NVIDIA driver is not loaded, or its devices are not in this container",
        f"ls -l /dev/nvidiactl; {_CONTAINER}",
    ),
    NO_PERMISSION: Trouble(
        "dead",
        "no permission to use the NVIDIA driver",
        "this user must read and write the devices: ls -l /dev/nvidia*",
    ),
    LIB_RM_VERSION_MISMATCH: Trouble(
        "dead",
        "NVIDIA driver and NVML library differ in version: upgraded without a reload",
        "reboot the node, or reload the nvidia kernel modules once nothing uses a GPU",
    ),
    FUNCTION_NOT_FOUND: Trouble(
        "dead", "the NVML library is too old for nvidia-ml-py", "use a driver of R418 or later"
    ),
}

NO_GPUS = Trouble("off", "NVML finds no GPU", f"nvidia-smi -L; {_CONTAINER}")
NO_BINDING = Trouble("off", "the Python package nvidia-ml-py is not installed", "pip install nvidia-ml-py")


def init_trouble(code: int, text: str) -> Trouble:
    """Why NVML as a whole does not work; `text` is NVML's own name of the error."""
    return _INIT.get(code) or Trouble("dead", f"NVML does not work: {text}", f"nvidia-smi; {KERNEL_LOG}")


def lost_trouble(index: int, code: int, text: str) -> Trouble:
    """What is wrong with one GPU that does not answer."""
    said = {
        GPU_IS_LOST: ("is lost: it fell off the bus", "dmesg | grep Xid says why; the node needs a reboot"),
        RESET_REQUIRED: ("needs a reset", f"once nothing uses it: nvidia-smi --gpu-reset -i {index}"),
        INSUFFICIENT_POWER: ("has no external power", "check its power cables"),
        NO_PERMISSION: ("may not be opened by this user", f"ls -l /dev/nvidia{index}"),
    }
    what, remedy = said.get(code, (f"does not answer: {text}", KERNEL_LOG))
    return Trouble("degraded", f"GPU {index} {what}", remedy)

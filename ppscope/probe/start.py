"""The gate: what the environment asks of the probe, and whether this process is one to be in."""

from __future__ import annotations

import os
import sys

MODE = "PPSCOPE_PROBE"
"""`always`: write from the loop's first turn. `wanted`: only while a view watches. Anything else, or unset: nothing is done."""
GPU_TIMING = "PPSCOPE_GPU_TIMING"
MODES = ("always", "wanted")
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "multiprocessing.popen_spawn")
_started = False


def is_helper(argv: list[str]) -> bool:
    """Whether a command line is that of a helper of multiprocessing, which never runs a scheduler."""
    return any(name in word for word in argv[:8] for name in _HELPERS)


def start(mode: str | None = None) -> bool:
    """Install the hook once, as the environment (or `mode`) says; False when nothing was done. Raises nothing."""
    global _started  # noqa: PLW0603  one probe a process
    try:
        mode = os.environ.get(MODE) if mode is None else mode
        if _started or mode not in MODES or sys.platform != "linux" or is_helper(sys.orig_argv):
            return False
        if any("ppscope" in type(finder).__module__ and type(finder).__name__ == "Hook" for finder in sys.meta_path):
            return False  # loaded already under its other name: by `ppscope launch`, or as a plugin
        from .hook import Hook
        from .recorder import Recorder

        Hook(Recorder(always=mode == "always", gpu_timing=os.environ.get(GPU_TIMING) == "1")).install()
        _started = True
    except Exception as error:  # noqa: BLE001  nothing here may keep a server from starting
        print(f"ppscope: the probe was not loaded: {error!r}", file=sys.stderr)
        return False
    return True

"""`launch`: the command itself, with the probe's folder first on PYTHONPATH."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ppscope.probe
from ppscope.complain import complain
from ppscope.probe.start import GPU_TIMING, MODE, MODES

CANNOT_RUN = 126
NOT_FOUND = 127
"""The shell's own codes: `launch` ends with the code of its command, and there is none."""
SITE = Path(ppscope.probe.__file__).resolve().parent / "site"


def environment(base: Mapping[str, str], *, gpu_timing: bool) -> dict[str, str]:
    """The command's environment: what was there, our folder before any other of PYTHONPATH, and the gate the probe looks at.

    `PPSCOPE_PROBE=wanted` set by the caller is kept: then nothing is written while no view watches.
    """
    env = dict(base)
    before = env.get("PYTHONPATH")
    # An empty entry is the current folder, as in PYTHONPATH=$PYTHONPATH:/x where there was none.
    others = [entry for entry in before.split(os.pathsep) if entry != str(SITE)] if before else []
    env["PYTHONPATH"] = os.pathsep.join([str(SITE), *others])
    if env.get(MODE) not in MODES:
        env[MODE] = "always"
    if gpu_timing:
        env[GPU_TIMING] = "1"
    else:
        env.pop(GPU_TIMING, None)
    return env


def launch(command: Sequence[str], *, gpu_timing: bool) -> int:
    """Become the command, which keeps our pid, signals and exit code; returns only when it cannot be run."""
    env = environment(os.environ, gpu_timing=gpu_timing)
    # Python ignores these, and what is ignored stays so in a command, whose shell may have pipelines.
    ours = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    try:
        os.execvpe(command[0], list(command), env)
    except FileNotFoundError:
        _restore(ours)
        complain(f"no such command: {command[0]}")
        return NOT_FOUND
    except (OSError, ValueError) as error:
        _restore(ours)
        complain(f"cannot run {command[0]}: {getattr(error, 'strerror', None) or error}")
        return CANNOT_RUN


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)

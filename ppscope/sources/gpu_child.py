"""The process that asks NVML, so that a driver that never answers hangs nobody else.

`python -m ppscope.sources.gpu_child --hz 5 --parent PID` writes framed records to stdout until nobody reads them. It is
killed with its parent, also inside a call that does not return.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import time
from collections.abc import Sequence

from ppscope.collect.stream import encode
from ppscope.records import AnyRecord, SourceStatus
from ppscope.sources.gpu_errors import KERNEL_LOG, NO_BINDING, Trouble

EXIT_READER_GONE = 0
EXIT_UNAVAILABLE = 3
"""NVML gives nothing, and never will; the last status said why."""
EXIT_DRIVER_CHANGED = 4
"""NVML worked and then stopped: a new child may find the new driver."""

EXIT_FAILED = 5
EXIT_NOT_NOW = 6
"""NVML did not start, which may pass; the last status said why."""

_PR_SET_PDEATHSIG = 1


class _Out:
    """Blocking writes to a private copy of stdout; what a library prints to stdout goes nowhere."""

    def __init__(self) -> None:
        self._fd = os.dup(1)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
        self._said: Trouble | None = None

    def send(self, records: Sequence[AnyRecord]) -> None:
        data = memoryview(b"".join(map(encode, records)))
        while data:
            data = data[os.write(self._fd, data) :]

    def say(self, trouble: Trouble) -> None:
        if trouble != self._said:
            self._said = trouble
            self.send([SourceStatus("gpu", time.monotonic_ns(), *trouble)])


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(EXIT_READER_GONE)


def _run(out: _Out, period_s: float) -> int:
    try:
        from ppscope.sources.gpu_nvml import NvmlReader, Unavailable
    except ImportError:
        out.say(NO_BINDING)
        return EXIT_UNAVAILABLE
    reader = NvmlReader()
    try:
        reader.open()
    except Unavailable as error:
        out.say(error.trouble)
        return EXIT_UNAVAILABLE if error.final else EXIT_NOT_NOW
    due = time.monotonic()
    while True:
        began = time.monotonic()
        try:
            devices = reader.devices(time.monotonic_ns())
            samples = reader.sample(time.monotonic_ns())
        except Unavailable as error:
            out.say(error.trouble)
            return EXIT_DRIVER_CHANGED
        out.send([*devices, *samples])
        out.say(reader.state())
        now = time.monotonic()
        # A slow driver lowers the rate: never more than half the time inside NVML.
        due = max(due + period_s, now + (now - began))
        time.sleep(due - now)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read all GPUs until the reader is gone; returns the exit status."""
    parser = argparse.ArgumentParser(prog="ppscope.sources.gpu_child")
    parser.add_argument("--hz", type=float, default=5.0)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(arguments)
    _die_with(options.parent)
    out = _Out()
    try:
        return _run(out, 1.0 / options.hz)
    except BrokenPipeError:
        return EXIT_READER_GONE
    except Exception as error:  # noqa: BLE001  whatever a driver makes nvidia-ml-py raise is told, not printed
        out.say(Trouble("dead", f"reading NVML failed: {type(error).__name__}: {error}", KERNEL_LOG))
        return EXIT_FAILED


if __name__ == "__main__":
    # Not sys.exit: a library's exit handlers may hang where its calls do.
    os._exit(main())

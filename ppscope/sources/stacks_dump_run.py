"""Runs one `py-spy dump` to its end, or to ours."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ppscope.sources.stacks_pyspy import Trouble, dump_argv, private_file, spawn

_MAX_BYTES = 32 << 20
_REAP_S = 1.0
"""How long an ended or killed py-spy may take to be gone; one in state D never is."""


@dataclass(frozen=True)
class DumpOutput:
    """What a dump left: `code` is its exit code, None when it never ran or was killed; times bracket the reading.

    `abandoned` is a py-spy that was killed and is still there; whoever asked for the dump has to reap it.
    """

    data: bytes
    stderr: bytes
    code: int | None
    before_ns: int
    after_ns: int
    cpu_s: float
    trouble: Trouble | None = None
    abandoned: subprocess.Popen[bytes] | None = None


def run_dump(
    binary: str,
    pid: int,
    timeout_s: float,
    stopping: threading.Event,
    running: Callable[[int | None], None] = lambda pid: None,
) -> DumpOutput:
    """Dump a process once; py-spy is killed after `timeout_s` or as soon as `stopping` is set. Never raises for py-spy's sake."""
    before_ns = time.monotonic_ns()
    out = -1
    try:
        out = private_file()
        with os.fdopen(os.dup(out), "wb") as stdout:
            process = spawn(dump_argv(binary, pid), stdout)
    except OSError as error:
        if out >= 0:
            os.close(out)
        trouble = Trouble("missing", f"py-spy does not start: {error.strerror}", "pip install --force-reinstall py-spy")
        return DumpOutput(b"", b"", None, before_ns, before_ns, 0.0, trouble)
    running(process.pid)
    try:
        assert process.stderr is not None
        stderr, ended = _read_to_end(process.stderr.fileno(), before_ns + int(timeout_s * 1e9), stopping)
        after_ns = time.monotonic_ns()
        usage = _reap(process) if ended else None
        if usage is None:
            ended = False
            # Not Popen.kill: that reaps one that has just ended, and wait4 finds nothing.
            os.kill(process.pid, signal.SIGKILL)
            usage = _reap(process)
        if usage is None:
            trouble = Trouble("hung", f"py-spy dump of process {pid} was killed and does not end: no other is started")
            return DumpOutput(b"", stderr, None, before_ns, after_ns, 0.0, trouble, process)
        cpu_s = usage.ru_utime + usage.ru_stime
        if not ended:
            trouble = Trouble("hung", f"py-spy dump of process {pid} did not end in {timeout_s:g} s and was killed")
            return DumpOutput(b"", stderr, None, before_ns, after_ns, cpu_s, trouble)
        data = os.pread(out, min(os.fstat(out).st_size, _MAX_BYTES), 0)
        return DumpOutput(data, stderr, process.returncode, before_ns, after_ns, cpu_s)
    finally:
        running(None)
        os.close(out)
        if process.stderr is not None:
            process.stderr.close()


def _reap(process: subprocess.Popen[bytes]) -> resource.struct_rusage | None:
    deadline = time.monotonic() + _REAP_S
    while True:
        reaped, status, usage = os.wait4(process.pid, os.WNOHANG)
        if reaped:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage
        if time.monotonic() > deadline:
            return None
        time.sleep(0.002)


def _read_to_end(descriptor: int, deadline_ns: int, stopping: threading.Event) -> tuple[bytes, bool]:
    text = b""
    while not stopping.is_set():
        left_s = (deadline_ns - time.monotonic_ns()) / 1e9
        if left_s <= 0:
            break
        ready, _, _ = select.select([descriptor], [], [], min(left_s, 0.2))
        if not ready:
            continue
        chunk = os.read(descriptor, 65536)
        if not chunk:
            return text, True
        if len(text) < 8192:
            text += chunk
    return text, False

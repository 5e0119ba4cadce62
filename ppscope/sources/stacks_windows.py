"""One `py-spy record` window: started, interrupted, reaped, and turned into spans on CLOCK_MONOTONIC."""

from __future__ import annotations

import math
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ppscope.sources.stacks_chrometrace import ChrometraceError, ThreadTrace, WindowTrace, base_bounds, parse_window
from ppscope.sources.stacks_intern import Frame
from ppscope.sources.stacks_pyspy import Trouble, explain, private_file, record_argv, spawn
from ppscope.sources.stacks_sound import is_torn, usual_root

WATCHDOG_S = 3.0
EXTENSION_NS = 300_000_000
_MAX_BYTES = 64 << 20
_FAILED = re.compile(rb"Errors: (\d{1,9})\b")
_FAILED_MOST = 0.5


@dataclass
class ThreadSpans:
    """Spans of one thread, nanoseconds of CLOCK_MONOTONIC: in order, disjoint, inside the window."""

    tid: int | None
    name: str
    starts_ns: list[int]
    ends_ns: list[int]
    stacks: list[tuple[Frame, ...]]


@dataclass
class Result:
    """What a finished window gave: spans with the time they cover, or the trouble; and py-spy's CPU time.

    `lag_s` is how long after its start py-spy took the first sample, None when it took none. `failed_share` is the share of its
    samples that it could not read, None where it does not say.
    """

    threads: list[ThreadSpans]
    start_ns: int
    end_ns: int
    error_ns: int
    cpu_s: float
    lag_s: float | None = None
    failed_share: float | None = None
    trouble: Trouble | None = None


class Window:
    """A running py-spy. Start it from the thread that will outlive it."""

    def __init__(self, binary: str, pid: int, rate_hz: int, length_s: float) -> None:
        self.pid = pid
        self.rate_hz = rate_hz
        self.length_s = length_s
        self.interrupted_ns: int | None = None
        self.killed = False
        self.stderr = b""
        self._out, self._said = private_file(), private_file()
        self.spawned_ns = time.monotonic_ns()
        try:
            argv = record_argv(binary, pid, rate_hz, f"/proc/self/fd/{self._out}", math.ceil(length_s) + 10)
            self._process = spawn(argv, self._said, pass_fds=(self._out,))
        except BaseException:
            os.close(self._out)
            os.close(self._said)
            raise
        self.due_ns = self.spawned_ns + int(length_s * 1e9)
        self._hopeless_ns = self.due_ns + int(WATCHDOG_S * 1e9)
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)

    @property
    def pyspy_pid(self) -> int:
        """Pid of the py-spy child."""
        return self._process.pid

    def fileno(self) -> int:
        """Descriptor that becomes readable when py-spy speaks or ends."""
        assert self._process.stderr is not None
        return self._process.stderr.fileno()

    def drain(self) -> bool:
        """Take in what py-spy said; True once it has ended."""
        while True:
            try:
                chunk = os.read(self.fileno(), 65536)
            except BlockingIOError:
                return False
            if not chunk:
                return True
            if len(self.stderr) < 8192:
                self.stderr += chunk

    def interrupt(self) -> None:
        """Ask py-spy to write what it has and end."""
        if self.interrupted_ns is None:
            self.interrupted_ns = time.monotonic_ns()
            self._process.send_signal(signal.SIGINT)

    def close_if_due(self, now_ns: int) -> None:
        """Interrupt a window whose time is up, a little later if py-spy has not come to sample yet; kill one that hangs."""
        if now_ns > self._hopeless_ns:
            if not self.killed:
                self._hopeless_ns = now_ns
                self.kill()
        elif now_ns >= self.due_ns and self.interrupted_ns is None:
            if catches_interrupts(self.pyspy_pid):
                self.interrupt()
            else:
                self.due_ns = now_ns + EXTENSION_NS

    def outlives_kill(self, now_ns: int) -> bool:
        """Whether py-spy was killed a second ago and is still there (state D)."""
        return self.killed and now_ns > self._hopeless_ns + 1_000_000_000

    def kill(self) -> None:
        """End a py-spy that hangs; its target was never stopped and notices nothing."""
        self.killed = True
        self._process.kill()

    def finish(self) -> Result:
        """Reap the ended py-spy and read its file."""
        done_ns = time.monotonic_ns()
        cpu_s = self._reap()
        try:
            data, said = self._read(), os.pread(self._said, 8192, 0)
        finally:
            self.close()
        code = self._process.returncode
        if self.killed:
            trouble = Trouble("hung", hung(self.pid))
            return Result([], done_ns, done_ns, 0, cpu_s, trouble=trouble)
        if code == -signal.SIGINT and self.interrupted_ns is not None:
            trouble = Trouble("transient", f"py-spy did not come to sample process {self.pid}: the machine is busy")
            return Result([], done_ns, done_ns, 0, cpu_s, trouble=trouble)
        if code != 0 or not data:
            return Result([], done_ns, done_ns, 0, cpu_s, trouble=explain(self.stderr, code, self.pid))
        try:
            trace = parse_window(data)
        except ChrometraceError as error:
            return Result([], done_ns, done_ns, 0, cpu_s, trouble=Trouble("unknown", str(error)))
        return self._place(trace, done_ns, cpu_s, said)

    def close(self) -> None:
        """Give the descriptors back; may be called twice."""
        if self._out >= 0:
            os.close(self._out)
            os.close(self._said)
            self._out = self._said = -1
        if self._process.stderr is not None and not self._process.stderr.closed:
            self._process.stderr.close()

    def _place(self, trace: WindowTrace, done_ns: int, cpu_s: float, said: bytes) -> Result:
        if trace.last_us is None or trace.first_us is None or not trace.threads:
            trouble = explain(b"", 0, self.pid)
            if trouble.kind != "gone":
                trouble = Trouble("transient", f"no stack of process {self.pid} could be read in a window")
            return Result([], done_ns, done_ns, 0, cpu_s, trouble=trouble)
        base_ns, error_ns = base_bounds(self.spawned_ns, self.interrupted_ns, done_ns, trace.last_us)
        end_ns = min(base_ns + trace.last_us * 1000, done_ns)
        return Result(
            [place(thread, base_ns, end_ns) for thread in trace.threads],
            base_ns + trace.first_us * 1000,
            end_ns,
            error_ns,
            cpu_s,
            lag_s=(base_ns - self.spawned_ns) / 1e9 + trace.first_us / 1e6,
            failed_share=failed_share(said, trace.last_us - trace.first_us, self.rate_hz),
        )

    def _read(self) -> bytes:
        size = os.fstat(self._out).st_size
        return os.pread(self._out, min(size, _MAX_BYTES), 0)

    def _reap(self) -> float:
        if self._process.returncode is not None:
            return 0.0
        try:
            _, status, usage = os.wait4(self._process.pid, 0)
        except ChildProcessError:
            self._process.returncode = -1
            return 0.0
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return usage.ru_utime + usage.ru_stime


def hung(pid: int) -> str:
    """What is said of a window that had to be killed."""
    return f"py-spy on process {pid} did not end in time and was killed"


def failed_share(said: bytes, length_us: int, rate_hz: int) -> float | None:
    """Share of the samples that py-spy tried to take and could not read, by its own last words; None where it does not say."""
    match = _FAILED.search(said)
    tried = length_us * rate_hz / 1e6
    # Its `Samples` counts threads; how often it tried follows from the time.
    return min(int(match[1]) / tried, _FAILED_MOST) if match and tried >= 1 else None


def catches_interrupts(pid: int) -> bool:
    """Whether a process handles SIGINT; py-spy does from just before its first sample, and would lose its data earlier."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            caught = next((line for line in status if line.startswith(b"SigCgt:")), b"SigCgt: 0")
    except OSError:
        return True
    return bool(int(caught.split()[1], 16) >> (signal.SIGINT - 1) & 1)


def place(thread: ThreadTrace, base_ns: int, end_ns: int) -> ThreadSpans:
    """A thread's spans on CLOCK_MONOTONIC, cut at the window's end."""
    starts = [min(base_ns + us * 1000, end_ns) for us in thread.starts_us]
    ends = [min(base_ns + us * 1000, end_ns) for us in thread.ends_us]
    return ThreadSpans(thread.tid, thread.name, starts, ends, thread.stacks)


def clip(spans: ThreadSpans, from_ns: int) -> ThreadSpans:
    """The part of the spans after an instant, so that overlapping windows never say anything twice."""
    kept = [
        (max(start, from_ns), end, stack)
        for start, end, stack in zip(spans.starts_ns, spans.ends_ns, spans.stacks, strict=True)
        if end > from_ns and end > max(start, from_ns)
    ]
    return ThreadSpans(spans.tid, spans.name, [k[0] for k in kept], [k[1] for k in kept], [k[2] for k in kept])


def sound(spans: ThreadSpans) -> ThreadSpans:
    """The main thread's spans without the torn stacks: time of a misread stack is time not seen."""
    lengths = [end - start for start, end in zip(spans.starts_ns, spans.ends_ns, strict=True)]
    root = usual_root(spans.stacks, lengths)
    kept = [
        i
        for i, stack in enumerate(spans.stacks)
        if stack and not is_torn(stack) and (root is None or (stack[0][0], stack[0][1]) == root)
    ]
    return ThreadSpans(
        spans.tid,
        spans.name,
        [spans.starts_ns[i] for i in kept],
        [spans.ends_ns[i] for i in kept],
        [spans.stacks[i] for i in kept],
    )


def reap_all(windows: Sequence[Window], patience_s: float, wait: Callable[[float], None] = time.sleep) -> list[Result]:
    """End windows for good: interrupt, wait a little, kill, reap; what each had seen by then."""
    for window in windows:
        window.interrupt()
    deadline = time.monotonic() + patience_s
    left = list(windows)
    while left and time.monotonic() < deadline:
        left = [window for window in left if not window.drain()]
        if left:
            wait(0.02)
    for window in left:
        window.kill()
    return [window.finish() for window in windows]

"""The gpu source: NVML through a child process, or the file of emulated GPUs."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping

from ppscope.collect.stream import FrameReader, StreamError
from ppscope.records import GpuDevice, GpuSample, Server, SourceStatus
from ppscope.signals import killer
from ppscope.sources.base import Emit, Source
from ppscope.sources.gpu_child import EXIT_DRIVER_CHANGED, EXIT_FAILED, EXIT_NOT_NOW, EXIT_UNAVAILABLE
from ppscope.sources.gpu_emulated import VARIABLE, EmulatedReader, UnreadableFile, find_path

DEFAULT_HZ = 5.0
STALLED_S = 3.0
"""Silence of the child after which the driver is said to hang."""
MAX_RESTARTS = 3
STEADY_S = 60.0
"""A child that lived this long may be restarted anew as often."""
RETRY_S = 60.0
"""How soon NVML is tried anew where it did not start."""
_KILL_WAIT_S = 0.5
_LISTEN_MS = 250
"""How soon a stop or a silence is noticed."""
_READ_BYTES = 65536

_Spoken = GpuDevice | GpuSample | SourceStatus


class GpuSource(Source):
    """Power, utilisation, memory, clocks and processes of every GPU of the node, five times a second.

    `environment` replaces the child's environment (tests: a fake NVML library).
    """

    name = "gpu"

    def __init__(
        self, emit: Emit, hz: float = DEFAULT_HZ, environment: Mapping[str, str] | None = None, backoff_s: float = 1.0
    ) -> None:
        super().__init__(emit)
        self._hz = hz
        self._environment = dict(environment) if environment is not None else None
        self._backoff_s = backoff_s
        self._thread: threading.Thread | None = None
        self._child: subprocess.Popen[bytes] | None = None

    def start(self, server: Server) -> None:
        """Begin to read the GPUs of this server's node, or its emulated ones."""
        self._thread = threading.Thread(target=self._run, args=(server,), name="gpu", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and the child; a child that cannot be killed (state D) is left to the kernel."""
        self.stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_KILL_WAIT_S + 1.0)

    def children(self) -> tuple[int, ...]:
        """The NVML child, while it runs."""
        child = self._child
        return (child.pid,) if child is not None and child.returncode is None else ()

    def _run(self, server: Server) -> None:
        try:
            if server.emulated:
                self._run_emulated(server)
            else:
                self._run_nvml()
        except Exception as error:  # noqa: BLE001  a source ends with a status, never with a traceback
            self.status("dead", f"reading the GPUs failed: {type(error).__name__}: {error}")

    def _run_emulated(self, server: Server) -> None:
        reader: EmulatedReader | None = None
        while not self.stopping.is_set():
            if reader is None and (path := find_path(server)) is not None:
                reader = EmulatedReader(path)
            if reader is None:
                self.status("degraded", f"emulated server without {VARIABLE} in its environment")
            else:
                try:
                    for record in reader.records():
                        self.emit(record)
                    self.status("ok", "emulated GPUs")
                except UnreadableFile as error:
                    self.status("degraded", f"emulated GPUs: {reader.path}: {error}")
            self.stopping.wait(1.0 / self._hz if reader is not None else 1.0)

    def _run_nvml(self) -> None:
        restarts = 0
        while not self.stopping.is_set():
            began = time.monotonic()
            try:
                child = self._spawn()
            except OSError as error:
                self.status("dead", f"cannot start the NVML reader: {error.strerror}")
                return
            try:
                said = _Listener(self, child).listen()
            finally:
                ended = self._reap(child)
            if self.stopping.is_set() or ended == EXIT_UNAVAILABLE:
                return
            if ended == EXIT_NOT_NOW:
                restarts = 0
                self.stopping.wait(RETRY_S)
                continue
            restarts = 1 if time.monotonic() - began > STEADY_S else restarts + 1
            why = said if said and ended in (EXIT_DRIVER_CHANGED, EXIT_FAILED) else _ending(ended)
            if ended is None or restarts > MAX_RESTARTS:
                self.status("dead", f"{why}; given up", "nvidia-smi shows whether NVML works")
                return
            pause_s = self._backoff_s * 2 ** (restarts - 1)
            self.status("dead", f"{why}; again in {pause_s:g} s", "nvidia-smi shows whether NVML works")
            self.stopping.wait(pause_s)

    def _spawn(self) -> subprocess.Popen[bytes]:
        # -P (3.11) keeps a `ppscope` folder in the working directory from being taken for the installed package.
        safe = ["-P"] if sys.version_info >= (3, 11) else []
        module = ["-m", "ppscope.sources.gpu_child", "--hz", str(self._hz), "--parent", str(os.getpid())]
        self._child = subprocess.Popen(
            [sys.executable, *safe, *module],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=self._environment,
        )
        return self._child

    def _reap(self, child: subprocess.Popen[bytes]) -> int | None:
        """Exit status of the child, killed if need be; None when it cannot be killed and is abandoned."""
        if child.stdout is not None:
            child.stdout.close()
        if self.stopping.is_set() or _wait(child, _KILL_WAIT_S) is None:
            child.kill()
        ended = _wait(child, _KILL_WAIT_S)
        self._child = None
        return ended


class _Listener:
    """Hands over what one child says, and says when it falls silent."""

    def __init__(self, source: GpuSource, child: subprocess.Popen[bytes]) -> None:
        self._source = source
        self._child = child
        self._frames: FrameReader[_Spoken] = FrameReader(_Spoken, magic=False)
        self._health: SourceStatus | None = None
        self._heard = False

    def listen(self) -> str | None:
        """Until the child's end or the source's; returns the trouble it last spoke of."""
        assert self._child.stdout is not None
        fd = self._child.stdout.fileno()
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        spoke = time.monotonic()
        while not self._source.stopping.is_set():
            if poll.poll(_LISTEN_MS):
                data = os.read(fd, _READ_BYTES)
                if not data or not self._hand_over(data):
                    break
                spoke = time.monotonic()
            elif (silent_s := time.monotonic() - spoke) >= STALLED_S:
                self._stalled(silent_s)
        return self._health.message if self._health and self._health.state != "ok" else None

    def _hand_over(self, data: bytes) -> bool:
        try:
            for record in self._frames.feed(data):
                if isinstance(record, SourceStatus):
                    self._health = record
                else:
                    self._source.emit(record)
                self._heard = True
        except StreamError:
            return False
        if self._health is not None:
            self._source.status(self._health.state, self._health.message, self._health.remedy)
        return True

    def _stalled(self, silent_s: float) -> None:
        if self._heard:
            said, remedy = (
                "NVML has not answered",
                "nvidia-smi probably hangs too; dmesg | grep -i -e NVRM -e Xid says why",
            )
        else:
            said, remedy = "NVML has been starting", "without persistence mode the driver loads anew: seconds per GPU"
        self._source.status("stalled", f"{said} for {int(silent_s)} s", remedy)


def _wait(child: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    try:
        return child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None


def _ending(code: int | None) -> str:
    if code is None:
        return "the NVML reader cannot be ended"
    killed_by = killer(code)
    return f"the NVML reader was killed by {killed_by}" if killed_by else f"the NVML reader ended with status {code}"

"""The reading process of a burst, seen from the collector: a job in, records out, and no way to outlive us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import msgspec

from ppscope.collect.stream import FrameReader, StreamError
from ppscope.records import AnyRecord
from ppscope.signals import killer
from ppscope.sources.burst_child import Job

_READ_BYTES = 1 << 18


class BurstReader:
    """One child in a session of its own. `trouble` is its last word on stderr when it failed, None otherwise."""

    def __init__(self, job: Job) -> None:
        command = [
            sys.executable,
            *(["-P"] if sys.version_info >= (3, 11) else []),
            "-m",
            "ppscope.sources.burst_child",
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self._job = job
        self.trouble: str | None = None

    @property
    def pid(self) -> int:
        """The child's pid."""
        return self._process.pid

    def records(self) -> Iterator[AnyRecord]:
        """What the child reads, until it is done or was ended."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        reader: FrameReader[AnyRecord] = FrameReader(AnyRecord, magic=False)
        try:
            process.stdin.write(msgspec.json.encode(self._job) + b"\n")
            process.stdin.flush()
            while data := os.read(process.stdout.fileno(), _READ_BYTES):
                yield from reader.feed(data)
        except (OSError, StreamError) as error:
            self.trouble = str(error)
        words = process.stderr.read().decode(errors="replace").strip().splitlines()
        self.end()
        if process.returncode is None and self.trouble is None:
            self.trouble = "the reading process does not end"
        if process.returncode and self.trouble is None:
            if killed_by := killer(process.returncode):
                self.trouble = f"the reading process was killed by {killed_by}"
            else:
                self.trouble = words[-1][:200] if words else f"the reading process ended with {process.returncode}"

    def end(self) -> None:
        """End the child and what it started; may be called twice, from any thread."""
        try:
            if self._process.stdin is not None:
                self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            try:
                self._process.wait(1.0)
            except subprocess.TimeoutExpired:
                # It sits in the kernel and dies when it comes out; nobody here may wait for that, or fall over it.
                pass

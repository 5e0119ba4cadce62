"""CPU time and memory of a process and everything below it, and how it is held."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil


def tree(pid: int) -> Iterator[psutil.Process]:
    """A process and its living descendants."""
    try:
        root = psutil.Process(pid)
        yield root
        yield from root.children(recursive=True)
    except psutil.NoSuchProcess:
        return


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of a process, its living and its reaped descendants."""
    total = 0.0
    for process in tree(pid):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def own_cpu_s(pid: int) -> float:
    """CPU seconds of the Python processes among them: without py-spy, living or reaped."""
    total = 0.0
    for process in tree(pid):
        try:
            if process.name() != "py-spy":
                times = process.cpu_times()
                total += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return total


def tree_mib(pid: int) -> float:
    """Memory of a process and its descendants, MiB: shared pages by their share (PSS)."""
    total = 0
    for process in tree(pid):
        try:
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(kib) for kib in re.findall(r"^Pss:\s+(\d+)", text, re.MULTILINE))
    return total / 1024


def hold(pids: list[int]) -> None:
    """Stop what we started, parents before the children they may start meanwhile."""
    held: set[int] = set()
    while fresh := [process for pid in pids for process in tree(pid) if process.pid not in held]:
        for process in fresh:
            held.add(process.pid)
            with suppress(psutil.NoSuchProcess):
                process.suspend()


def let_go(pids: list[int]) -> None:
    """Let it run again, children before parents."""
    for process in reversed([process for pid in pids for process in tree(pid)]):
        with suppress(psutil.NoSuchProcess):
            process.resume()


class Usage:
    """What some processes use over a stretch of time: cores, of which Python's own, and the median of their memory."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._before = self._now()
        self._began = time.monotonic()

    def _now(self) -> tuple[float, float]:
        return sum(map(tree_cpu_s, self._pids)), sum(map(own_cpu_s, self._pids))

    def over(self, seconds: float) -> tuple[float, float, float]:
        """(cores, cores of Python alone, MiB) from the start until so much later."""
        memory = []
        while (left := self._began + seconds - time.monotonic()) > 0:
            time.sleep(min(left, 1.0))
            memory.append(sum(map(tree_mib, self._pids)))
        took = time.monotonic() - self._began
        cpu, own = self._now()
        return (cpu - self._before[0]) / took, (own - self._before[1]) / took, sorted(memory)[len(memory) // 2]

"""What can be seen of a visitor in the processes of a server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil


class Footprint(NamedTuple):
    """One process: how many threads and sockets, which files are open and mapped, who traces it, whether it is stopped."""

    threads: int
    sockets: int
    files: tuple[str, ...]
    mapped: frozenset[str]
    tracer: int
    stopped: bool


def footprints(pid: int) -> dict[int, Footprint]:
    """Of a server's launcher and everything below it, by pid."""
    return {
        process.pid: _of(process) for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    }


def _of(process: psutil.Process) -> Footprint:
    status = Path(f"/proc/{process.pid}/status").read_text()
    tracer = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("TracerPid"))
    opened = list(_opened(process.pid))
    files = tuple(sorted(name for name in opened if name != "socket"))
    maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    mapped = frozenset(line.split(maxsplit=5)[5] for line in maps if len(line.split(maxsplit=5)) > 5)
    stopped = process.status() == psutil.STATUS_STOPPED
    return Footprint(process.num_threads(), len(opened) - len(files), files, mapped, tracer, stopped)


def _opened(pid: int) -> Iterator[str]:
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            yield os.readlink(f"/proc/{pid}/fd/{fd}").split(":")[0]
        except OSError:
            continue

"""How many cores of the node have nothing to do: what a guest may use without the host noticing."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

LEAST_NS = 400_000_000
"""Idle time is counted in ticks of 10 ms: less than this says too little."""


class IdleCores:
    """Idle time of the cores that this process may run on, between two readings; CPU limits of cgroup v2 count as well."""

    def __init__(self, proc: str = "/proc", cgroup: str = "/sys/fs/cgroup") -> None:
        self._stat = f"{proc}/stat"
        self._cpus = os.sched_getaffinity(0)
        self._limits = _Limits(Path(cgroup), f"{proc}/self/cgroup")
        self._at_ns: int | None = None
        self._idle_s: float | None = None
        self._used_s: list[float | None] = []

    def read(self, now_ns: int) -> float | None:
        """Cores idle on average since the last reading; None at the first one, or where the kernel does not say.

        A reading too soon after the last one gives None and leaves that one as it is.
        """
        if self._at_ns is not None and now_ns - self._at_ns < LEAST_NS:
            return None
        idle_s, used_s, before_ns = self._read_idle_s(), self._limits.used_s(), self._at_ns
        idle_before, used_before = self._idle_s, self._used_s
        self._at_ns, self._idle_s, self._used_s = now_ns, idle_s, used_s
        if before_ns is None or idle_s is None or idle_before is None:
            return None
        seconds = (now_ns - before_ns) / 1e9
        # The kernel's idle counter may step back by a tick (proc(5)).
        idle = min(max((idle_s - idle_before) / seconds, 0.0), float(len(self._cpus)))
        return min(idle, self._limits.left(used_before, used_s, seconds))

    def _read_idle_s(self) -> float | None:
        try:
            with open(self._stat, "rb") as file:
                lines = file.read().splitlines()
        except OSError:
            return None
        return idle_s(lines, self._cpus)


def idle_s(lines: list[bytes], cpus: set[int]) -> float | None:
    """Idle seconds of these cores since boot, by the lines of /proc/stat (idle and iowait).

    None when none of them is named, or was ever idle: a sandbox's /proc that counts nothing.
    """
    ticks = 0
    for line in lines:
        fields = line.split()
        if len(fields) < 6 or not fields[0].startswith(b"cpu"):
            continue
        with suppress(ValueError):
            if int(fields[0][3:]) in cpus:
                ticks += int(fields[4]) + int(fields[5])
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else None


class _Limits:
    """The CPU limits of our cgroup and of those above it (cgroup v2: `cpu.max`), with what was used under each."""

    def __init__(self, root: Path, own: str) -> None:
        self._limits: list[tuple[float, Path]] = []
        with suppress(OSError, ValueError, IndexError, StopIteration):
            # "0::/path" is the line of cgroup v2.
            path = next(line for line in Path(own).read_text().splitlines() if line.startswith("0::"))[3:]
            folder = root / path.lstrip("/")
            for candidate in (folder, *folder.parents):
                if not candidate.is_relative_to(root):
                    break
                self._take(candidate)

    def _take(self, folder: Path) -> None:
        with suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = (folder / "cpu.max").read_text().split()
            self._limits.append((int(quota) / int(period), folder))

    def used_s(self) -> list[float | None]:
        """CPU seconds used under each limit so far; None where that cannot be read."""
        return [_usage_s(folder) for _, folder in self._limits]

    def left(self, before: list[float | None], now: list[float | None], seconds: float) -> float:
        """Cores that all limits together still leave, by two readings; infinite without a limit."""
        known = [
            max(cores - (used - used_before) / seconds, 0.0)
            for (cores, _), used_before, used in zip(self._limits, before, now, strict=True)
            if used_before is not None and used is not None
        ]
        return min(known, default=float("inf"))


def _usage_s(folder: Path) -> float | None:
    with suppress(OSError, ValueError, IndexError):
        for line in (folder / "cpu.stat").read_text().splitlines():
            if line.startswith("usage_usec"):
                return int(line.split()[1]) / 1e6
    return None

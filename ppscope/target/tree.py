"""One look at the process table, and how SGLang's processes hang together in it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from ppscope.target.commands import (
    hidden_launcher_kind,
    is_multiprocessing_helper,
    is_python,
    is_resource_tracker,
    launcher_kind,
)
from ppscope.target.procfs import Proc, Stat
from ppscope.target.titles import LAUNCHER, PREFIX, Title, parse_title


class Tree:
    """All processes at one instant: command lines, parents and children. Processes that vanish meanwhile are left out."""

    def __init__(self, proc: Proc) -> None:
        self.proc = proc
        self.argv: dict[int, tuple[str, ...]] = {}
        self.stats: dict[int, Stat] = {}
        self.children: dict[int, list[int]] = {}
        self.titles: dict[int, Title] = {}
        self.launchers: dict[int, str] = {}
        """pid → `launch_server` or `serve`."""
        self._titled_launchers: set[int] = set()
        for pid in proc.pids():
            argv = proc.argv(pid)
            stat = proc.stat(pid)
            if argv is None or stat is None:
                continue
            self.stats[pid] = stat
            self.argv[pid] = argv = _words(argv)
            self.children.setdefault(stat.ppid, []).append(pid)
            if stat.state in "ZX":
                continue
            # with an unreadable or empty command line the kernel's own 15 bytes of name are left
            title = parse_title(argv[0] if argv else stat.comm)
            if title is not None and title.text == LAUNCHER:
                self._titled_launchers.add(pid)
            elif title is not None:
                self.titles[pid] = title
            elif kind := launcher_kind(argv):
                self.launchers[pid] = kind
        for pid in [pid for pid in self.titles if self._inherited(pid)]:
            del self.titles[pid]

    def _inherited(self, pid: int) -> bool:
        """A titled process's fork shows its title until it execs (a compiler, a shell): not a rank of its own."""
        parent = self.titles.get(self.stats[pid].ppid)
        return parent is not None and parent.text == self.titles[pid].text

    def ancestors(self, pid: int) -> Iterator[int]:
        """The process and everything above it, nearest first."""
        seen: set[int] = set()
        while pid in self.stats and pid not in seen:
            seen.add(pid)
            yield pid
            pid = self.stats[pid].ppid

    def descendants(self, pid: int) -> list[int]:
        """Everything below the process, nearest first."""
        out: list[int] = []
        queue = [pid]
        while queue:
            below = sorted(self.children.get(queue.pop(0), ()))
            out += below
            queue += below
        return out

    def owner(self, pid: int) -> int | None:
        """The launcher of a titled process: the nearest ancestor without a title of SGLang's children; None for an orphan.

        Schedulers are children of the launcher, or of the DP controller (up to 0.5.15), which has its title before it spawns any.
        """
        for above in self.ancestors(pid):
            if above in self.titles or self._copies_title(above):
                continue
            return above if self._may_launch(above) else None
        return None

    def _copies_title(self, pid: int) -> bool:
        argv = () if pid in self._titled_launchers else self.argv.get(pid)
        return bool(argv) and argv is not None and argv[0].startswith(PREFIX)

    def _may_launch(self, pid: int) -> bool:
        """Pid 1 and session managers inherit orphans; in a container pid 1 may be the launcher itself."""
        if pid in self.launchers or pid in self._titled_launchers:
            return True
        return self.stats[pid].state not in "ZX" and self.is_python(pid)

    def is_python(self, pid: int) -> bool:
        """Whether a process runs Python, by its program file or, where that is not ours to see, by its names."""
        exe = self.proc.link(pid, "exe")
        if exe is not None:
            return is_python(exe)
        argv, stat = self.argv.get(pid, ()), self.stats.get(pid)
        return bool(argv and is_python(argv[0])) or (stat is not None and is_python(stat.comm))

    def untitled_children(self, pid: int) -> list[int]:
        """Children that multiprocessing spawned and that may still take a title; its resource tracker never does."""
        return [below for below in self.children.get(pid, ()) if self._may_take_title(below)]

    def _may_take_title(self, pid: int) -> bool:
        argv = self.argv.get(pid, ())
        return is_multiprocessing_helper(argv) and not is_resource_tracker(argv)

    def servers(self) -> dict[int, str]:
        """Every launcher: pid → `launch_server`, `serve`, or `engine` for a program known by its titled children only."""
        found: dict[int, str] = {}
        for pid in self.titles:
            launcher = self.owner(pid)
            if launcher is not None:
                kind = self.launchers.get(launcher) or hidden_launcher_kind(self.argv.get(launcher, ()))
                found[launcher] = kind or "engine"
        for pid, kind in self.launchers.items():
            # an ancestor with the same command line forked this one (a daemon, a reloader): it serves only if it has children of its own
            forked = any(self.argv.get(above) == self.argv[pid] for above in list(self.ancestors(pid))[1:])
            if not forked:
                found.setdefault(pid, kind)
        return found

    def members(self, launcher: int) -> list[int]:
        """Titled processes of one server, launcher not included."""
        return sorted(pid for pid in self.titles if self.owner(pid) == launcher)


def _words(argv: tuple[str, ...]) -> tuple[str, ...]:
    """A command line rewritten as one title (setproctitle) is split again, if it is Python's."""
    if len(argv) != 1 or " " not in argv[0].strip():
        return argv
    first = argv[0].split(None, 1)[0]
    if not os.path.basename(first).startswith("python"):
        return argv
    try:
        return tuple(shlex.split(argv[0]))
    except ValueError:
        return tuple(argv[0].split())

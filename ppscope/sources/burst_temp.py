"""Room for the export itself: torch writes a trace as plain JSON to a temporary file of the server's own, and packs it from there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from ppscope.records import Server
from ppscope.sources.burst_folder import LEAST_FREE_BYTES, FolderError, root_of
from ppscope.target.installed import Root
from ppscope.target.procfs import Proc

STEP_BYTES = 16 << 20
"""Of one rank's step: 16 steps were seen to take 242 MB (sglang #34942)."""
STACKS_TIMES = 4
_VARIABLES = ("TMPDIR", "TEMP", "TMP")
_USUAL = ("/tmp", "/var/tmp", "/usr/tmp")


def check_room(server: Server, num_steps: int, with_stack: bool = False) -> None:
    """Raises FolderError where a profile of so many steps may not fit into the temporary folder of this server."""
    ranks = server.ranks
    pids = (ranks[0].pid if ranks else server.launcher_pid, server.launcher_pid)
    small = server.device == "cpu" or server.emulated
    check_temp(pids, max(len(ranks), 1), num_steps, with_stack, small=small)


def check_temp(
    pids: Sequence[int],
    ranks: int,
    num_steps: int,
    with_stack: bool = False,
    proc_root: str = "/proc",
    *,
    small: bool = False,
) -> None:
    """Raises FolderError where the traces of `ranks` ranks may not fit, each as plain text at once, into the server's temporary folder.

    On a CPU they are `small`. `pids` are a scheduler, whose environment setproctitle may have overwritten in part, and the launcher
    that it inherits from.
    """
    proc = Proc(proc_root)
    root = root_of(proc, pids[0])
    written = 0 if small else ranks * num_steps * STEP_BYTES * (STACKS_TIMES if with_stack else 1)
    needed = max(LEAST_FREE_BYTES, written)
    for folder in _folders(proc, pids):
        # Links are followed within the server's own tree: the kernel would follow them in ours.
        here = Root(root).resolve(folder) if root else folder
        try:
            room = os.statvfs(here) if os.path.isdir(here) else None
        except OSError:
            continue
        if room is None:
            continue
        free = room.f_bavail * room.f_frsize
        if free < needed:
            raise FolderError(
                f"the server writes its traces unpacked to {folder} first: {free >> 20} MB are free there,"
                f" {needed >> 20} are needed",
                "make room there, ask for fewer rounds, or start the server with TMPDIR set to a folder with more room",
            )
        return


def _folders(proc: Proc, pids: Sequence[int]) -> Iterator[str]:
    """Where Python's tempfile looks, in its order."""
    environments = [proc.environ(pid) or {} for pid in pids]
    for name in _VARIABLES:
        value = next((found[name] for found in environments if found.get(name)), None)
        if value is not None and value.startswith("/"):
            yield value
    yield from _USUAL

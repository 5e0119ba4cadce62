"""Why an attach did not happen: what failed, the likely cause and the exact command that helps, one place for all words."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ppscope.target.redact import redact_argv

CHOICE_NEEDED = 2
NOT_ATTACHED = 3
TARGET_GONE = 4


SUDO = 'sudo env "PATH=$PATH" ppscope'
"""Root's own path does not have the virtual environment that ppscope may be in."""


def for_command(remedy: str, command: str) -> str:
    """A remedy that names the command that was run, where it says `ppscope attach`."""
    return remedy.replace("ppscope attach", f"ppscope {command}")


def inside_network(pid: int) -> str:
    """The command that attaches from within a server's network alone: pids and files stay those that are seen here."""
    words = f"nsenter --net --target {pid} ppscope attach {pid}"
    return words if os.geteuid() == 0 else SUDO.removesuffix("ppscope") + words


class AttachError(Exception):
    """The target cannot be observed. `exit_code` is 2 (a choice is needed), 3 (could not attach) or 4 (it ended meanwhile)."""

    def __init__(self, message: str, remedy: str = "", exit_code: int = NOT_ATTACHED) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.message}\n{self.remedy}" if self.remedy else self.message


def printable(text: str, limit: int = 120) -> str:
    """A process's own words made safe for a terminal: no control characters, not longer than `limit`."""
    safe = "".join(char if char.isprintable() else "�" for char in text)
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


def describe(argv: Sequence[str], comm: str = "") -> str:
    """A short redacted command line for a message."""
    return printable(" ".join(redact_argv(argv))) if argv else printable(comm) or "a process without a name"


def no_such_pid(pid: int, hidden: bool) -> AttachError:
    """Nothing with that number can be seen."""
    if hidden:
        return AttachError(
            f"no process {pid} can be seen: /proc is mounted with hidepid, which hides other users' processes",
            f"{SUDO} attach {pid}",
        )
    return AttachError(f"no process {pid}: it ended, or it lives in another container or machine", "ppscope attach")


def ended(pid: int) -> AttachError:
    """The process is a zombie."""
    return AttachError(
        f"process {pid} has ended and only waits for its parent to notice (zombie)", "ppscope attach", TARGET_GONE
    )


def not_python(pid: int, what: str) -> AttachError:
    """Some other program, with no server above or below it."""
    return AttachError(
        f"process {pid} is not a Python process and no SGLang server runs under it: {what}", "ppscope attach"
    )


def not_sglang(pid: int, what: str, loading_children: int = 0) -> AttachError:
    """A Python program that runs no SGLang processes."""
    if loading_children:
        return AttachError(
            f"process {pid} is Python with {loading_children} untitled multiprocessing children, none an SGLang scheduler: {what}",
            f"if its Engine is still loading, try again shortly: ppscope attach {pid}",
        )
    return AttachError(f"process {pid} is Python but runs no SGLang server: {what}", "ppscope attach")


def ray_actor(pid: int, what: str) -> AttachError:
    """Schedulers under Ray are actors, with Ray's titles and no launcher above them."""
    return AttachError(
        f"process {pid} belongs to Ray ({what}): servers started with --use-ray have no SGLang process tree",
        "start the server without --use-ray to observe it",
    )


def orphan(pid: int, what: str) -> AttachError:
    """A process of a server whose launcher died."""
    return AttachError(
        f"process {pid} ({what}) has no launcher any more: its server has ended and left it behind",
        "ppscope attach",
        TARGET_GONE,
    )


def no_permission(pid: int, user: str | None, me: str | None) -> AttachError:
    """The server belongs to somebody else, or a lock of the kernel is closed between processes of one user."""
    if user is not None and user == me:
        return AttachError(
            f"no permission to look into process {pid}, although it runs as {user} like ppscope",
            f"ppscope doctor {pid}",
        )
    return AttachError(
        f"no permission to look into process {pid}: it belongs to user {user or 'unknown'}, ppscope runs as {me or 'unknown'}",
        f"{SUDO} attach {pid}",
    )


def gone(pid: int) -> AttachError:
    """It ended while it was being read."""
    return AttachError(f"the server of process {pid} ended during attach", "ppscope attach", TARGET_GONE)


def none_found(hidden: bool) -> AttachError:
    """No server at all."""
    if hidden:
        return AttachError(
            "no SGLang server can be seen: /proc is mounted with hidepid, which hides other users' processes",
            f"{SUDO} attach",
        )
    return AttachError(
        "no SGLang server found on this machine (servers in other containers are seen from the host only)",
        "ppscope demo",
    )


def several(lines: Sequence[str], pid: int | None = None) -> AttachError:
    """More than one server fits; `lines` name them, one each."""
    where = f"under process {pid}" if pid is not None else "on this machine"
    listing = "\n".join(f"  {line}" for line in lines)
    return AttachError(
        f"{len(lines)} SGLang servers run {where}, choose one:\n{listing}", "ppscope attach PID", CHOICE_NEEDED
    )

"""From any pid of a server to the whole server: launcher, ranks, port, settings, and where each fact came from."""

from __future__ import annotations

import os

from ppscope.target import errors
from ppscope.target.building import build
from ppscope.target.errors import AttachError
from ppscope.target.found import Found
from ppscope.target.procfs import Proc, hides_processes, user_name
from ppscope.target.titles import PREFIX
from ppscope.target.tree import Tree


def find_servers(proc_root: str = "/proc") -> list[Found]:
    """Every SGLang server that can be seen, of any user, ordered by launcher pid."""
    tree = Tree(Proc(proc_root))
    found = [build(tree, pid, kind) for pid, kind in sorted(tree.servers().items())]
    return [server for server in found if server is not None]


def find_server(pid: int, proc_root: str = "/proc") -> Found:
    """The server that a process belongs to, starts, or wraps.

    `pid` may be the launcher, any of its processes or threads, or anything above it that leads to one server only. Raises
    AttachError: exit code 2 when several servers run below it, 3 when there is none, 4 when it has ended.
    """
    proc = Proc(proc_root)
    status = proc.status(pid)
    if status is None:
        raise errors.no_such_pid(pid, hides_processes(proc))
    tree = Tree(proc)
    process = status.tgid or pid  # a thread's number also has a folder in /proc
    stat = tree.stats.get(process)
    if stat is None:
        raise errors.gone(pid)
    if stat.state in "ZX":
        raise errors.ended(pid)
    servers = tree.servers()
    candidates = _candidates(tree, process, servers)
    if len(candidates) > 1:
        found = [item for one in candidates if (item := build(tree, one, servers[one])) is not None]
        raise errors.several([item.line() for item in found], pid)
    if not candidates:
        raise _nothing(tree, process)
    server = build(tree, candidates[0], servers[candidates[0]])
    if server is None:
        raise errors.gone(pid)
    return server


def resolve(pid: int | None = None, proc_root: str = "/proc") -> Found:
    """The server to attach to: that of `pid`, or the only one on this machine. Raises AttachError, also without permission."""
    if pid is None:
        servers = find_servers(proc_root)
        if not servers:
            raise errors.none_found(hides_processes(Proc(proc_root)))
        if len(servers) > 1:
            raise errors.several([server.line() for server in servers])
        found = servers[0]
    else:
        found = find_server(pid, proc_root)
    if not found.readable:
        raise errors.no_permission(pid or found.launcher_pid, found.user, user_name(os.geteuid()))
    return found


def still_there(pid: int, started_ticks: int, proc_root: str = "/proc") -> str:
    """What became of a process: `alive`, `zombie`, `stopped`, `gone`, or `pid_reused` when the number names another one now."""
    proc = Proc(proc_root)
    stat = proc.stat(pid)
    if stat is None:
        return "alive" if proc.exists(pid) else "gone"  # no descriptor was left to read it with
    if stat.started_ticks != started_ticks:
        return "pid_reused"
    if stat.state in "ZX":
        return "zombie"
    return "stopped" if stat.state in "Tt" else "alive"


def has_ended(pid: int, started_ticks: int) -> bool:
    """Whether a process is over, its number free or another's."""
    return still_there(pid, started_ticks) in ("gone", "zombie", "pid_reused")


def _candidates(tree: Tree, pid: int, servers: dict[int, str]) -> list[int]:
    """Launchers that a process may mean: its own or the nearest above, else all below it."""
    for above in tree.ancestors(pid):
        if above in servers:
            return [above]
        if above in tree.titles:
            owner = tree.owner(above)
            return [] if owner is None else [owner]
    below = set(tree.descendants(pid))
    return sorted(below & servers.keys())


def _nothing(tree: Tree, pid: int) -> AttachError:
    argv, stat = tree.argv.get(pid, ()), tree.stats[pid]
    what = errors.describe(argv, stat.comm)
    if (argv and argv[0].startswith(PREFIX)) or pid in tree.titles:
        return errors.orphan(pid, what)
    if (argv and argv[0].startswith("ray::")) or stat.comm.startswith("ray::"):
        return errors.ray_actor(pid, what)
    if not tree.is_python(pid):
        return errors.not_python(pid, what)
    return errors.not_sglang(pid, what, len(tree.untitled_children(pid)))

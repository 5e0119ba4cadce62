"""What must hold before a server is asked for a profile."""

from __future__ import annotations

from ppscope.records import Server
from ppscope.target.errors import inside_network
from ppscope.target.processes import still_there


class Unfit(Exception):
    """The server must not or cannot be profiled now; `remedy` is what to try."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


def fact(server: Server, name: str) -> object:
    """The newest value of a fact, None when it is not known."""
    return next((found.value for found in reversed(server.facts) if found.name == name), None)


def check(server: Server) -> None:
    """Raises Unfit unless the server serves, all its ranks live, and its port was traced to it."""
    if server.kind == "node":
        raise Unfit("this node has no API of its own", "profile from the node with rank 0")
    if server.state != "serving":
        raise Unfit(f"the server is {server.state}, not serving")
    for rank in server.ranks:
        state = still_there(rank.pid, rank.started_ticks)
        if state != "alive":
            raise Unfit(f"stage {rank.key.pp} (pid {rank.pid}) is {state.replace('_', ' ')}")
    if not server.ranks:
        raise Unfit("no scheduler of this server runs on this node")
    if server.port is None:
        raise Unfit("no HTTP port of this server is known")
    if fact(server, "port.same_network") is False:
        raise Unfit("the server is in another network namespace", inside_network(server.launcher_pid))
    if fact(server, "port.owned") != "yes":
        raise Unfit(
            f"port {server.port} could not be traced to this server, and no other may be asked",
            "run ppscope as the server's user or as root",
        )
    if str(fact(server, "env.SGLANG_PROFILE_V2")).lower() in ("1", "true", "yes", "y", "t", "on"):
        raise Unfit(
            "this server runs SGLANG_PROFILE_V2, whose profiler raises on a plain request and would end the server",
            "start it without SGLANG_PROFILE_V2",
        )


def dead_ranks(server: Server) -> list[str]:
    """The ranks that are gone, as text."""
    return [
        f"stage {rank.key.pp} (pid {rank.pid})"
        for rank in server.ranks
        if still_there(rank.pid, rank.started_ticks) not in ("alive", "stopped")
    ]

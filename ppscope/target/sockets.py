"""Which TCP ports a server's own processes listen on, so that another server's port is never asked.

In another network namespace 127.0.0.1:30000 is somebody else: the listening socket's inode must be among the file descriptors
of the server's processes, read in the server's namespace through /proc/PID/net.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import NamedTuple

from ppscope.target.arguments import DEFAULT_HOST, DEFAULT_PORT
from ppscope.target.procfs import Proc

_LISTEN = b"0A"


class Listener(NamedTuple):
    """A listening TCP socket."""

    address: str
    port: int
    inode: int

    @property
    def connect_host(self) -> str:
        """The address to connect to: loopback for a socket that listens on every address."""
        if self.address == "0.0.0.0":
            return "127.0.0.1"
        return "::1" if self.address == "::" else self.address


class PortCheck(NamedTuple):
    """Whether a port is this server's. `owned` is `yes`, `no` or `unknown` (no permission to look).

    `listener` is the server's own socket where one was found. `same_network` says whether we share the network namespace
    with the server, None when that cannot be told.
    """

    owned: str
    listener: Listener | None
    same_network: bool | None
    reason: str = ""


def parse_tcp(raw: bytes) -> list[Listener]:
    """Listening sockets of a /proc/net/tcp or tcp6 file; lines that are not understood are left out."""
    found = []
    for line in raw.split(b"\n")[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN:
            continue
        address, _, port = fields[1].partition(b":")
        try:
            host = _address(address.decode("ascii"))
            found.append(Listener(host, int(port, 16), int(fields[9])))
        except ValueError:
            continue
    return found


def _address(text: str) -> str:
    """The kernel prints addresses as hexadecimal words in the machine's own (little-endian) byte order."""
    raw = bytes.fromhex(text)
    if len(raw) == 4:
        return str(ipaddress.IPv4Address(raw[::-1]))
    if len(raw) != 16:
        raise ValueError(text)
    address = ipaddress.IPv6Address(b"".join(raw[i : i + 4][::-1] for i in range(0, 16, 4)))
    return str(address.ipv4_mapped or address)


def listeners(proc: Proc, pid: int) -> list[Listener] | None:
    """Every listening TCP socket in the network namespace of that process; None when it cannot be read."""
    found: list[Listener] | None = None
    for name in ("net/tcp", "net/tcp6"):
        raw = proc.read(pid, name)
        if raw is not None:
            found = (found or []) + parse_tcp(raw)
    return found


def socket_inodes(proc: Proc, pids: Sequence[int]) -> frozenset[int] | None:
    """Inodes of the sockets these processes hold; None when not one of them may be looked into."""
    inodes: set[int] | None = None
    for pid in pids:
        links = proc.fd_links(pid)
        if links is None:
            continue
        inodes = inodes or set()
        inodes.update(
            int(link[8:-1])
            for link in links
            if link.startswith("socket:[") and link.endswith("]") and link[8:-1].isdigit()
        )
    return None if inodes is None else frozenset(inodes)


def same_network(proc: Proc, pid: int) -> bool | None:
    """Whether that process is in our network namespace; None without permission."""
    ours, theirs = proc.link("self", "ns/net"), proc.link(pid, "ns/net")
    return None if ours is None or theirs is None else ours == theirs


def own_listeners(proc: Proc, pids: Sequence[int]) -> list[Listener] | None:
    """Sockets that these processes (the first names the namespace) listen on; None when that cannot be told."""
    if not pids:
        return None
    inodes = socket_inodes(proc, pids)
    if inodes is None:
        return None
    everything = listeners(proc, pids[0])
    return None if everything is None else [item for item in everything if item.inode in inodes]


def check_port(proc: Proc, pids: Sequence[int], host: str | None, port: int) -> PortCheck:
    """Whether `port` is listened on by one of the server's processes `pids`, the launcher first."""
    network = same_network(proc, pids[0]) if pids else None
    mine = own_listeners(proc, pids)
    if mine is None:
        return PortCheck("unknown", None, network, "no permission to read the launcher's sockets")
    fitting = [item for item in mine if item.port == port]
    exact = [item for item in fitting if item.address == host]
    if fitting:
        return PortCheck("yes", (exact or fitting)[0], network)
    others = [item for item in listeners(proc, pids[0]) or [] if item.port == port]
    reason = f"port {port} belongs to another process" if others else f"nothing listens on port {port} yet"
    return PortCheck("no", None, network, reason)


def find_port(proc: Proc, launcher_pid: int) -> Listener | None:
    """The one port the launcher itself listens on; None when there is none, or several and nothing to choose by."""
    mine = own_listeners(proc, (launcher_pid,)) or []
    ports = {item.port for item in mine}
    return mine[0] if len(ports) == 1 else None


class Located(NamedTuple):
    """The HTTP port of a server: the host to connect to, the port, whether it is this server's, and who says so."""

    host: str | None
    port: int | None
    check: PortCheck | None
    source: str


def locate_port(
    proc: Proc, pids: Sequence[int], host: str | None, port: int | None, *, default: bool = True
) -> Located:
    """Find the port of the server whose launcher is `pids[0]`; further pids are its tokenizer workers.

    Without an argument SGLang's default port is tried, then the one the launcher listens on; with `default` false (an
    embedded Engine, which may have no HTTP at all) only the latter.
    """
    check = (
        check_port(proc, pids, host, DEFAULT_PORT if port is None else port) if default or port is not None else None
    )
    source = "default" if port is None else "cmdline"
    listener = check.listener if check is not None else None
    if port is None and (check is None or check.owned == "no"):
        listener = find_port(proc, pids[0])
        if listener is not None:
            check, source = PortCheck("yes", listener, same_network(proc, pids[0])), "socket"
    if listener is not None:
        return Located(listener.connect_host, listener.port, check, source)
    if check is None:
        return Located(None, None, None, source)
    wildcard = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    asked = host or DEFAULT_HOST
    return Located(wildcard.get(asked, asked), DEFAULT_PORT if port is None else port, check, source)

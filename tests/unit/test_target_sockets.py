"""A port counts as the server's only when the server holds its socket."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.target.procfs import Proc
from ppscope.target.sockets import check_port, find_port, locate_port, parse_tcp, same_network
from tests.unit.fake_proc import ANYWHERE, LOCALHOST, FakeProc, listening


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_real_listening_socket_of_this_process_is_found(family: socket.AddressFamily, host: str) -> None:
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"no {host} on this machine")
    with server:
        port = server.getsockname()[1]
        check = check_port(Proc(), [os.getpid()], host, port)
        assert check.owned == "yes"
        assert check.listener is not None
        assert (check.listener.address, check.listener.port) == (host, port)
        assert check.same_network is True
    assert check_port(Proc(), [os.getpid()], host, port).owned == "no"


@pytest.fixture
def box(tmp_path: Path) -> FakeProc:
    """A server (10) with a socket on 31000 and 5555, a server (20) in another network with 30000, one (30) of another user."""
    fake = FakeProc(tmp_path)
    ours = [
        listening(LOCALHOST, 31000, 71),
        listening(ANYWHERE, 30000, 99),
        listening(LOCALHOST, 5555, 72),
        listening(LOCALHOST, 6, 73, "01"),
    ]
    fake.add(
        10, ["python"], env={}, fds=["/dev/null", "socket:[71]", "socket:[72]", "pipe:[9]", "socket:[x]"], tcp=ours
    )
    fake.add(20, ["python"], env={}, fds=["socket:[80]"], net="net:[2]", tcp=[listening(ANYWHERE, 30000, 80)])
    fake.add(30, ["python"], uid=7, tcp=ours)
    return fake


def test_ownership_is_decided_by_inode_in_the_servers_own_namespace(box: FakeProc) -> None:
    proc = Proc(box.root)
    assert check_port(proc, [10], "127.0.0.1", 31000).owned == "yes"
    foreign = check_port(proc, [10], None, 30000)
    assert (foreign.owned, foreign.reason) == ("no", "port 30000 belongs to another process")
    assert check_port(proc, [10], None, 6).owned == "no"  # connected, not listening
    other = check_port(proc, [20], None, 30000)
    assert (other.owned, other.same_network) == ("yes", False)
    assert other.listener is not None
    assert other.listener.connect_host == "127.0.0.1"
    hidden = check_port(proc, [30], None, 31000)
    assert (hidden.owned, hidden.same_network) == ("unknown", None)
    assert same_network(proc, 30) is None


def test_a_missing_port_is_found_only_when_there_is_no_choice(box: FakeProc) -> None:
    proc = Proc(box.root)
    assert find_port(proc, 10) is None  # two ports, nothing to choose by
    assert find_port(proc, 30) is None
    only = locate_port(proc, [20], None, None, default=False)
    assert (only.host, only.port, only.source) == ("127.0.0.1", 30000, "socket")
    nothing = locate_port(proc, [10], None, None, default=False)
    assert (nothing.host, nothing.port, nothing.check) == (None, None, None)
    default = locate_port(proc, [10], "0.0.0.0", None)
    assert (default.host, default.port, default.source) == ("127.0.0.1", 30000, "default")
    assert default.check is not None
    assert default.check.owned == "no"


@given(st.binary(max_size=300))
def test_damaged_tables_are_read_without_error(noise: bytes) -> None:
    good = listening(LOCALHOST, 80, 5).encode()
    found = parse_tcp(b"header\n" + good + b"\n" + noise)
    assert found[0].port == 80

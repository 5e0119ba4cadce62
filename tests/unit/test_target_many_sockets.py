"""A busy node: /proc/net/tcp comes in pieces shorter than a page, and the server's port is in a later one."""

from __future__ import annotations

import os
import socket

from ppscope.target.procfs import Proc
from ppscope.target.sockets import check_port


def test_a_port_is_found_behind_many_other_sockets() -> None:
    opened = []
    try:
        for _ in range(150):
            listening = socket.socket()
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            opened.append(listening)
        proc = Proc("/proc")
        for listening in opened:
            port = listening.getsockname()[1]
            assert check_port(proc, [os.getpid()], "127.0.0.1", port).owned == "yes"
    finally:
        for listening in opened:
            listening.close()

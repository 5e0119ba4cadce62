"""Messages between two processes: whole objects over a local socket pair, in order."""

from __future__ import annotations

import pickle
import socket
from typing import Any

LARGEST_MESSAGE = 1 << 18


class Link:
    """One end of a one-way link; picklable for a process being spawned."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: Any) -> None:
        """Send an object; blocks only when the other end has long stopped reading."""
        self._end.send(pickle.dumps(message))

    def recv(self) -> Any:
        """Block until an object comes. Raises EOFError when every writing end is closed."""
        data = self._end.recv(LARGEST_MESSAGE)
        if not data:
            raise EOFError
        return pickle.loads(data)

    def poll(self) -> bool:
        """Return whether `recv` would not block."""
        try:
            self._end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return True

    def fileno(self) -> int:
        """Return the descriptor, so that the end can be waited for."""
        return self._end.fileno()

    def close(self) -> None:
        """Close this process's end."""
        self._end.close()


def new_link() -> tuple[Link, Link]:
    """Return (receiving end, sending end)."""
    receiver, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Link(receiver), Link(sender)

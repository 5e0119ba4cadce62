"""A server of a few lines whose answers are whatever bytes a test wants, good and bad."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ppscope.probe.ring import started_ticks

Answer = Callable[[socket.socket, str, str], None]
"""Gets the connection, the path and the whole head of the request."""


def reply(body: bytes | str, status: str = "200 OK", kind: str = "application/json") -> Answer:
    data = body.encode() if isinstance(body, str) else body
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n".encode()

    def answer(sock: socket.socket, path: str, head_text: str) -> None:
        sock.sendall(head + data)

    return answer


def raw(data: bytes) -> Answer:
    def answer(sock: socket.socket, path: str, head_text: str) -> None:
        sock.sendall(data)

    return answer


class TinyHttp:
    """Listens on a port of its own; `routes` may change at any time; `seen` are the heads of the requests."""

    def __init__(self, routes: dict[str, Answer]) -> None:
        self.routes = routes
        self.seen: list[str] = []
        self.released = threading.Event()
        self.tls: ssl.SSLContext | None = None
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def hang(self, sock: socket.socket, path: str, head: str) -> None:
        self.released.wait(30)

    def drip(self, data: bytes) -> Answer:
        def answer(sock: socket.socket, path: str, head: str) -> None:
            for byte in data:
                if self.released.wait(0.02):
                    return
                sock.sendall(bytes([byte]))

        return answer

    def paths(self) -> list[str]:
        return [head.split(" ", 2)[1] for head in list(self.seen)]

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            head = b""
            try:
                if self.tls is not None:
                    sock = self.tls.wrap_socket(sock, server_side=True)
                while b"\r\n\r\n" not in head and (more := sock.recv(4096)):
                    head += more
                text = head.decode("latin-1")
                if not text:
                    return
                self.seen.append(text)
                path = text.split(" ", 2)[1]
                route = self.routes.get(path.partition("?")[0], reply("{}", "404 Not Found"))
                route(sock, path, text)
            except OSError:
                return

    def close(self) -> None:
        self.released.set()
        self._socket.close()


@contextmanager
def tiny_http(**routes: Answer) -> Iterator[TinyHttp]:
    """Serve routes named like their path, `/` written as `__`: `v1__loads` is `/v1/loads`."""
    server = TinyHttp({"/" + name.replace("__", "/"): answer for name, answer in routes.items()})
    try:
        yield server
    finally:
        server.close()


def living() -> dict[str, Any]:
    """The launcher's fields of a server that is there: this very process."""
    return {"launcher_pid": os.getpid(), "launcher_started_ticks": started_ticks(os.getpid()) or 0}


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether the condition holds before long; generous, for it only ends a failing test."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.01)
    return condition()

"""Requests to the observed server: bounded in time and size, never a redirect, never a health endpoint.

`/health` and `/health_generate` run a request through an idle pipeline (SGLang 0.5.6 to 0.5.23, `http_server.py`), so this
client refuses to ask them.
"""

from __future__ import annotations

import http.client
import io
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

CONNECT_S = 0.5
READ_S = 2.0
JSON_LIMIT = 1 << 20
CHUNK = 1 << 16


class HttpError(Exception):
    """A request that brought no answer. `kind` is `refused`, `timeout`, `closed`, `too_large`, `garbage` or `unreachable`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _Reader(io.RawIOBase):
    """The socket as a raw stream in which every read may take what is left of the deadline, not a fresh timeout."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._sock.recv_into(buffer)


class _DeadlineSocket:
    """What `http.client` needs of a socket, under one deadline for the whole answer."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(max(self._deadline - time.monotonic(), 0.001))
        self._sock.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self._sock, self._deadline), CHUNK)

    def close(self) -> None:
        """Called by `http.client` once it holds the head, while the body is still to be read: `end` closes."""

    def end(self) -> None:
        self._sock.close()

    def abort(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            self._sock.close()


class Reply:
    """The head of an answer, with its body still to be read."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self._response = response

    def chunks(self, limit: int) -> Iterator[bytes]:
        """Yield the body in pieces; HttpError `too_large` once more than `limit` bytes came."""
        # Python 3.10's read1 does not count down what is left of a declared length, so that is done here.
        declared = self._response.length
        seen = 0
        while (size := CHUNK if declared is None else min(CHUNK, declared - seen)) and (
            chunk := self._response.read1(size)
        ):
            seen += len(chunk)
            if seen > limit:
                raise HttpError("too_large", f"answer is larger than {limit >> 20} MB")
            yield chunk
        if declared is not None and seen < declared:
            raise HttpError("closed", "the connection was closed before the answer was whole")

    def json(self, limit: int = JSON_LIMIT) -> object:
        """Read the body as JSON; HttpError `garbage` where it is none, `too_large` above `limit` bytes."""
        body = b"".join(self.chunks(limit))
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise HttpError("garbage", "answer is not JSON") from error


def local_host(host: str | None) -> str:
    """The address at which a server that listens on `host` is reached from its own node."""
    if host in (None, "", "0.0.0.0", "localhost"):
        return "127.0.0.1"
    if host in ("::", "[::]"):
        return "::1"
    return str(host).strip("[]")


class HttpClient:
    """Asks one server; several threads may ask at once. `key` gives the API key to send, or None for none."""

    def __init__(
        self, host: str | None, port: int, tls: bool = False, key: Callable[[], str | None] = lambda: None
    ) -> None:
        self.listens_on = host
        self.host = local_host(host)
        self.port = port
        self.tls = tls
        self._key = key
        self._lock = threading.Lock()
        self._open: set[_DeadlineSocket] = set()
        self._closed = False

    def get(self, path: str, read_s: float = READ_S) -> AbstractContextManager[Reply]:
        """Ask for `path`, with `read_s` seconds for the whole answer. Raises HttpError."""
        return self._ask("GET", path, None, read_s)

    def post(self, path: str, body: bytes, read_s: float = READ_S) -> AbstractContextManager[Reply]:
        """Send a JSON body to `path`, with `read_s` seconds for the whole answer. Raises HttpError."""
        return self._ask("POST", path, body, read_s)

    @contextmanager
    def _ask(self, method: str, path: str, body: bytes | None, read_s: float) -> Iterator[Reply]:
        if path.lstrip("/").startswith("health"):
            raise ValueError("health endpoints run a request on the server")
        wire: _DeadlineSocket | None = None
        try:
            wire = self._connect(read_s)
            connection = http.client.HTTPConnection(self.host, self.port)
            connection.sock = wire
            headers = {"Accept": "*/*", "Connection": "close", "User-Agent": "ppscope"}
            if key := self._key():
                headers["Authorization"] = f"Bearer {key}"
            if body is not None:
                headers["Content-Type"] = "application/json"
            connection.request(method, path, body, headers)
            with connection.getresponse() as response:
                yield Reply(response)
        except TimeoutError as error:
            raise HttpError(
                "timeout", f"no answer within {read_s:g} s" if wire else "no connection within 0.5 s"
            ) from error
        except ConnectionRefusedError as error:
            raise HttpError("refused", "connection refused") from error
        except (ConnectionError, http.client.IncompleteRead, http.client.RemoteDisconnected) as error:
            raise HttpError("closed", "the connection was closed before the answer was whole") from error
        except (http.client.HTTPException, ssl.SSLError, UnicodeError) as error:
            raise HttpError("garbage", "the answer is not HTTP") from error
        except (OSError, OverflowError) as error:
            raise HttpError("unreachable", getattr(error, "strerror", None) or "not reachable") from error
        finally:
            if wire is not None:
                with self._lock:
                    self._open.discard(wire)
                wire.end()

    def close(self) -> None:
        """End every request under way, from any thread; later ones fail as `closed`."""
        with self._lock:
            self._closed = True
            for wire in self._open:
                wire.abort()

    def _connect(self, read_s: float) -> _DeadlineSocket:
        sock = socket.create_connection((self.host, self.port), timeout=CONNECT_S)
        try:
            deadline = time.monotonic() + read_s
            if self.tls:
                sock.settimeout(read_s)
                sock = _tls_context().wrap_socket(sock)
            wire = _DeadlineSocket(sock, deadline)
            with self._lock:
                if self._closed:
                    raise ConnectionAbortedError
                self._open.add(wire)
        except BaseException:
            sock.close()
            raise
        return wire


def _tls_context() -> ssl.SSLContext:
    # The peer is on this node and its port was traced to the server's own sockets; its certificate names another host.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context

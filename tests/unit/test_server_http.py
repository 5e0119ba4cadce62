"""The HTTP client against peers that answer badly, late or never."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ppscope.sources.server_http import HttpClient, HttpError, local_host
from ppscope.sources.server_keys import Keys
from tests.unit.tiny_http import Answer, TinyHttp, raw, reply, tiny_http

OK = b"HTTP/1.1 200 OK\r\n"


def fetch(server: TinyHttp, answer: Answer, read_s: float = 5.0) -> object:
    server.routes["/x"] = answer
    with HttpClient("127.0.0.1", server.port).get("/x", read_s) as got:
        return got.status, got.json()


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl to make a certificate with")
def test_a_server_behind_tls_answers_whatever_its_certificate_says(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=elsewhere.example"
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with tiny_http(x=reply("[7]")) as server:
        server.tls = context
        with HttpClient("127.0.0.1", server.port, tls=True).get("/x") as got:
            assert (got.status, got.json()) == (200, [7])
        with pytest.raises(HttpError) as error, HttpClient("127.0.0.1", server.port).get("/x"):
            pass
    assert error.value.kind in ("closed", "garbage")


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda s: s.hang, "timeout"),
        (lambda s: s.drip(OK + b"X: " + b"y" * 4000), "timeout"),
        (lambda s: s.drip(OK + b"Content-Length: 4000\r\n\r\n" + b"1" * 4000), "timeout"),
    ],
    ids=["never answers", "drips its head", "drips its body"],
)
def test_the_whole_answer_has_one_deadline(make: Callable[[TinyHttp], Answer], kind: str) -> None:
    with tiny_http() as server, pytest.raises(HttpError) as error:
        fetch(server, make(server), read_s=0.3)
    assert error.value.kind == kind


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (raw(b""), "closed"),
        (raw(OK + b"Content-Length: 100\r\n\r\n{}"), "closed"),
        (raw(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}"), "closed"),
        (raw(b"SSH-2.0-OpenSSH_9.6\r\n"), "garbage"),
        (raw(b"\x00\xff\xfe" * 5000), "garbage"),
        (raw(OK + b"A: " + b"b" * 100_000 + b"\r\n\r\n"), "garbage"),
        (raw(OK + b"A: b\r\n" * 500 + b"\r\n"), "garbage"),
        (reply("not json"), "garbage"),
        (reply(b"\xff\xfe{"), "garbage"),
        (reply("[" * 200_000), "garbage"),
        (reply("[" + "1," * 600_000 + "1]"), "too_large"),
        (raw(OK + b"\r\n" + b"1" * (2 << 20)), "too_large"),
    ],
    ids=range(12),
)
def test_bad_answers_are_one_error_of_a_known_kind(answer: Answer, kind: str) -> None:
    with tiny_http() as server, pytest.raises(HttpError) as error:
        fetch(server, answer)
    assert error.value.kind == kind


@pytest.mark.parametrize(
    "answer",
    [
        reply('{"a": 1}'),
        raw(OK + b'\r\n{"a": 1}'),
        raw(OK + b'Transfer-Encoding: chunked\r\n\r\n4\r\n{"a"\r\n4\r\n: 1}\r\n0\r\n\r\n'),
        raw(b'HTTP/1.0 200 OK\r\n\r\n{"a": 1}'),
    ],
)
def test_every_framing_of_a_good_answer_is_read(answer: Answer) -> None:
    with tiny_http() as server:
        assert fetch(server, answer) == (200, {"a": 1})


def test_a_port_where_nobody_listens_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(HttpError) as error, HttpClient(None, port).get("/x"):
        pass
    assert error.value.kind == "refused"
    with pytest.raises(HttpError), HttpClient(None, 70_000).get("/x"):
        pass


def test_close_ends_a_request_that_waits_and_those_to_come() -> None:
    with tiny_http() as server:
        server.routes["/x"] = server.hang
        client = HttpClient("127.0.0.1", server.port)
        kinds: list[str] = []

        def ask() -> None:
            try:
                with client.get("/x", 30.0):
                    pass
            except HttpError as error:
                kinds.append(error.kind)

        thread = threading.Thread(target=ask)
        thread.start()
        while not server.seen:
            pass
        client.close()
        thread.join(10)
        ask()
    assert kinds == ["closed", "closed"]


@pytest.mark.parametrize("path", ["/health", "/health_generate", "//health"])
def test_health_endpoints_are_never_asked(path: str) -> None:
    with pytest.raises(ValueError, match="health"), HttpClient(None, 1).get(path):
        pass


@pytest.mark.parametrize(
    ("host", "address"),
    [(None, "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("[::1]", "::1"), ("10.1.2.3", "10.1.2.3")],
)
def test_wildcard_addresses_are_reached_on_loopback(host: str | None, address: str) -> None:
    assert local_host(host) == address


def test_keys_are_sent_only_once_asked_for_and_only_to_a_verified_port() -> None:
    keys = Keys({"PPSCOPE_API_KEY": " k1\n", "PPSCOPE_ADMIN_KEY": "k2"})
    assert keys.key(True) is None
    assert not keys.refused(None)
    assert keys.refused(True)
    assert [keys.key(owner) for owner in (True, None, False)] == ["k1", None, None]
    assert keys.refused(True)
    assert keys.key(True) == "k2"
    assert not keys.refused(True)
    assert keys.key(True) is None
    assert "k1" not in str(keys.advice(True)) + str(keys.advice(None))
    assert Keys({"PPSCOPE_API_KEY": "split\r\nHost: x"}).refused(True) is False

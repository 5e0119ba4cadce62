"""The launcher's HTTP server: the paths that tools ask, nothing that generates."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from ppscope.emulator import server_info as answers
from ppscope.emulator.board import Board
from ppscope.emulator.log import write_log
from ppscope.emulator.metrics import metrics_page
from ppscope.emulator.options import Options

ProfileCommand = Callable[[bool, dict[str, Any]], None]
HANG_S = 3600.0


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket, api: HttpApi) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.api = api

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class HttpApi:
    """Answers for one server; `profile` relays a start (True) or stop to the first stage, `limit` the size of a micro-batch."""

    def __init__(
        self,
        options: Options,
        board: Board,
        launch_command: str,
        started_ns: int,
        profile: ProfileCommand,
        limit: Callable[[int], None],
    ) -> None:
        self.options = options
        self._board, self._launch_command = board, launch_command
        self._startup_s = (time.monotonic_ns() - started_ns) / 1e9
        self.profile = profile
        self._limit = limit
        self._limit_now: int | None = None

    def serve(self, listener: socket.socket) -> None:
        """Answer on an already bound socket, in threads, until the process ends."""
        listener.listen(64)
        threading.Thread(target=_Server(listener, self).serve_forever, name="http", daemon=True).start()

    def set_internal_state(self, fields: dict[str, Any]) -> None:
        """Obey a change that SGLang allows; any other is refused by a line of the log alone, as there."""
        for name, value in dict(fields["server_args"]).items():
            most = answers.most_in_slot(self.options)
            if name != "pp_max_micro_batch_size":
                write_log(f"Updating {name} is not supported.")
            elif not 1 <= int(value) <= most:
                write_log(f"Updating {name} to {value} is rejected because it is out of the valid range [1, {most}].")
            else:
                self._limit_now = int(value)
                self._limit(self._limit_now)

    def answer(self, path: str) -> tuple[str, str] | None:
        """Return (content type, body) for a path, None for an unknown one."""
        if path in ("/server_info", "/get_server_info"):
            info = answers.server_info(
                self.options, self._board, self._launch_command, self._startup_s, self._limit_now
            )
            return "application/json", json.dumps(info)
        if path in ("/model_info", "/get_model_info"):
            return "application/json", json.dumps(answers.model_info())
        if path == "/v1/loads":
            return "application/json", json.dumps(answers.loads(self.options, self._board))
        if path == "/metrics":
            return "text/plain; version=0.0.4; charset=utf-8", metrics_page(self.options, self._board)
        if path in ("/health", "/health_generate"):
            return "text/plain", ""
        return None


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._respond()

    def do_POST(self) -> None:
        self._respond()

    def do_PUT(self) -> None:
        self._respond()

    def _respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urlsplit(self.path).path
        api = self.server.api
        if api.options.hang_path == path:
            time.sleep(HANG_S)
        if path in ("/start_profile", "/stop_profile"):
            self._profile(path == "/start_profile", body)
            return
        if path == "/set_internal_state" and self.command in ("POST", "PUT"):
            self._set_internal_state(body)
            return
        answer = api.answer(path)
        if answer is None:
            self._send(404, "application/json", '{"detail":"Not Found"}')
        else:
            self._send(200, *answer)

    def _profile(self, start: bool, body: bytes) -> None:
        try:
            fields = json.loads(body or b"{}")
            self.server.api.profile(start, fields)
        except (ValueError, TypeError, AttributeError) as error:
            self._send(422, "application/json", json.dumps({"detail": str(error)}))
            return
        self._send(200, "text/plain", "Start profiling.\n" if start else "Stop profiling. This will take some time.\n")

    def _set_internal_state(self, body: bytes) -> None:
        try:
            self.server.api.set_internal_state(json.loads(body))
        except (ValueError, TypeError, KeyError) as error:
            self._send(422, "application/json", json.dumps({"detail": str(error)}))
            return
        self._send(200, "application/json", "[true]")

    def _send(self, status: int, content_type: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Write uvicorn's access line."""
        host, port = self.client_address[:2]
        status = args[1] if len(args) > 1 else ""
        print(f'INFO:     {host}:{port} - "{self.requestline}" {status} OK', flush=True)

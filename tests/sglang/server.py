"""The real SGLang on CPU, by the kit: started, loaded, stopped."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.shared import KIT

HOME = Path(os.environ.get("SGLANG_CPU_HOME", Path.home() / ".cache" / "sglang-cpu"))
_PORTS = range(15_000, 25_000)
"""Below those that the kernel gives to connections (32,768 on): one of them may be taken while the server still loads.

0.5.15 puts its gRPC port 10 000 above the HTTP port and refuses one beyond 65 535.
"""


class ServerSpec(NamedTuple):
    """What to start. `layers` is one count a stage; it needs the model of eight layers."""

    version: str = "0.5.23"
    pp: int = 2
    tp: int = 1
    extra: str = ""
    layers: tuple[int, ...] = ()
    launch_prefix: str = ""


def _free_port() -> int:
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class SglangServer:
    """A running server of the kit."""

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self.port = _free_port()
        self.log = HOME / "log" / f"{spec.version}-{self.port}.log"
        self._pidfile = HOME / "run" / f"{self.port}.pid"
        self.environment = {
            **os.environ,
            "SGLANG_VERSION": spec.version,
            "SGLANG_CPU_HOME": str(HOME),
            "PP": str(spec.pp),
            "TP": str(spec.tp),
            "PORT": str(self.port),
            "EXTRA": spec.extra,
            "LAUNCH_PREFIX": spec.launch_prefix,
        }
        if spec.layers:
            self.environment["SGLANG_PP_LAYER_PARTITION"] = ",".join(map(str, spec.layers))
            self.environment |= {"LAYERS": str(sum(spec.layers)), "MODEL": str(HOME / f"model-{sum(spec.layers)}")}

    def recipe(self, *arguments: str, timeout_s: float = 400) -> str:
        """Run the kit's script; raises with its output when it fails."""
        # `python -m` looks into its folder first: in this one it would find ppscope's egg-info, and SGLang load the probe.
        done = subprocess.run(
            [str(KIT), *arguments], env=self.environment, capture_output=True, text=True, timeout=timeout_s, check=False,
            cwd="/",
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"recipe.sh {' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-3000:]}")
        return done.stdout

    def start(self) -> None:
        """Install what is missing, start, and wait until it answers."""
        self.recipe("install", timeout_s=900)
        self.recipe("start")

    def stop(self) -> None:
        """Stop the server and everything of it."""
        self.recipe("stop")

    @property
    def pid(self) -> int:
        """The launcher's pid."""
        return int(self._pidfile.read_text())

    def pids(self) -> dict[int, str]:
        """Every process of the server, pid → title."""
        lines = self.recipe("pids").splitlines()
        return {int(pid): title for pid, _, title in (line.strip().partition(" ") for line in lines)}

    @contextmanager
    def load(self, clients: int = 8, seconds: int = 20, tokens: int = 128) -> Iterator[subprocess.Popen[str]]:
        """Clients that ask all the time, for a bounded time, while the block runs."""
        command = [str(KIT), "load", str(clients), str(seconds), str(tokens)]
        process = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            yield process
        finally:
            try:
                process.wait(seconds + 30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()

    @staticmethod
    def end_load(process: subprocess.Popen[str]) -> None:
        """End the clients before their time: the whole group, for the script would leave the clients to a closed pipe."""
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


@contextmanager
def running(spec: ServerSpec) -> Iterator[SglangServer]:
    """A server for the length of a block."""
    server = SglangServer(spec)
    server.start()
    try:
        yield server
    finally:
        server.stop()

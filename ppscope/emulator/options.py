"""What one emulated server was asked to be; passed from the command line through a file in its private folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ppscope.emulator.scenarios import MODEL_PATH, SCENARIOS, Scenario

OPTIONS_FILE = "emulator.json"


@dataclass(frozen=True)
class Options:
    """Everything the launcher needs to know. `None` seconds mean never."""

    scenario_name: str
    pp_size: int
    tp_size: int
    port: int
    folder: str
    seconds: float | None = None
    load_seconds: float = 0.0
    kill_stage: int | None = None
    kill_after_s: float = 0.0
    hang_path: str | None = None
    end_with_stdin: bool = False
    gpus_told: bool = True
    listen_fd: int | None = None
    announce_fd: int | None = None

    @property
    def scenario(self) -> Scenario:
        """The scenario of that name."""
        return SCENARIOS[self.scenario_name]

    @property
    def gpus_file(self) -> str:
        """Path of the file of emulated GPUs, which PPSCOPE_EMULATED_GPUS names."""
        return str(Path(self.folder) / "gpus.json")

    @property
    def board_file(self) -> str:
        """Path of the counters that stages share with the launcher."""
        return str(Path(self.folder) / "board")

    @property
    def log_file(self) -> str:
        """Path of the server's log."""
        return str(Path(self.folder) / "server.log")

    def server_argv(self) -> list[str]:
        """Return the arguments after `python -m sglang.launch_server`."""
        argv = ["--model-path", MODEL_PATH, "--pp-size", str(self.pp_size)]
        if self.tp_size > 1:
            argv += ["--tp-size", str(self.tp_size)]
        return [*argv, "--host", "127.0.0.1", "--port", str(self.port), "--enable-metrics", *self.scenario.flags()]

    def write(self) -> None:
        """Store the options in the private folder."""
        (Path(self.folder) / OPTIONS_FILE).write_text(json.dumps(asdict(self)))


def read_options(folder: str) -> Options:
    """Return the options stored in a private folder."""
    return Options(**json.loads((Path(folder) / OPTIONS_FILE).read_text()))

"""An emulated server with secrets wherever a server has some: flags, environment, URLs, log, and local variables of its frames."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.terminal.terminal import PPSCOPE

SECRETS = {
    "api_key": "planted-api-4f1c9a",
    "admin": "planted-admin-77d0e2",
    "token": "hf_plantedTOKEN0123456789",
    "url": "planted-url-pass-1b2c",
    "bearer": "planted-bearer-99ff",
    "prompt": "planted prompt about my medical record",
    "ssl": "planted-ssl-pass-3c3c",
    "local": "planted local variable 5d5d",
    "argument": "planted-argument-6e6e",
}
HOME = "/home/planted-user-8a2f"
"""A folder whose name is a person's."""
FLAGS = (
    "--api-key", SECRETS["api_key"], f"--admin-api-key={SECRETS['admin']}", "--ssl-keyfile-password", SECRETS["ssl"],
    "--dist-init-addr", f"tcp://user:{SECRETS['url']}@10.0.0.1:5000", "--tokenizer-path", f"{HOME}/models/tok",
)  # fmt: skip
ENVIRONMENT = {
    "HF_TOKEN": SECRETS["token"],
    "SGLANG_API_KEY": SECRETS["api_key"],
    "HTTPS_PROXY": f"http://me:{SECRETS['url']}@proxy:3128",
}
LOG_LINES = (
    f"[2026-01-01 00:00:00 PP0] Error: request failed, api_key={SECRETS['api_key']} Authorization: Bearer {SECRETS['bearer']}",
    f"[2026-01-01 00:00:00 PP0] Receive: obj=GenerateReqInput(text='{SECRETS['prompt']}', rid=1)",
    f'[2026-01-01 00:00:00 PP0] Scheduler hit an exception: prompt="{SECRETS["prompt"]}"',
)
_LOCALS = f"""
        prompt = {SECRETS["prompt"]!r}
        messages = [{{"role": "user", "content": {SECRETS["prompt"]!r}}}]
        reqs = ({SECRETS["local"]!r}, b"{SECRETS["local"]}")
        cur_batch = {{"rid": {SECRETS["local"]!r}}}
        occupied = [{SECRETS["local"]!r}, None]
        tp_rank = dp_rank = {SECRETS["local"]!r}
"""
"""In the frame whose named locals are read: some under the very names."""
_PROGRAM = f"""
import runpy, shutil, sys
from pathlib import Path
from ppscope.emulator import bootstrap
from ppscope.emulator.options import Options

plain_argv, plain_folder = Options.server_argv, bootstrap.make_folder

def argv(self):
    return plain_argv(self) + {list(FLAGS)!r}

def folder():
    made = plain_folder()
    srt = Path(made, "sglang", "srt")
    srt.unlink()
    shutil.copytree(bootstrap.PACKAGE_DIR / "srt", srt)
    mixin = srt / "managers" / "scheduler_pp_mixin.py"
    begin = "        self.init_pp_loop_state()\\n"
    text = mixin.read_text()
    assert text.count(begin) == 1
    mixin.write_text(text.replace(begin, begin + {_LOCALS!r}))
    scheduler = srt / "managers" / "scheduler.py"
    text = scheduler.read_text()
    call = "        scheduler.run_event_loop()\\n"
    assert text.count(call) == 1
    scheduler.write_text(text.replace(call, "        display_dp_rank = {SECRETS["argument"]!r}\\n" + call))
    return made

Options.server_argv, bootstrap.make_folder = argv, folder
sys.argv = ["ppscope.emulator", "--scenario", "serial", "--pp", "4", "--die-with-parent", "--seconds", "300"]
runpy.run_module("ppscope.emulator", run_name="__main__")
"""


class Planted(NamedTuple):
    """The launcher, and the folder that its log lies in."""

    pid: int
    folder: Path

    def log_secrets(self) -> None:
        """Have the server write a line of each kind."""
        with (self.folder / "server.log").open("a") as log:
            log.write("".join(line + "\n" for line in LOG_LINES))


@contextmanager
def planted_server() -> Iterator[Planted]:
    """Run it until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENVIRONMENT},
    )
    assert process.stdout is not None
    ready = ""
    while not ready.startswith("ready"):
        ready = process.stdout.readline()
        assert ready
    found = re.search(r"pid=(\d+) .*folder=(\S+)", ready)
    assert found
    try:
        yield Planted(int(found[1]), Path(found[2]))
    finally:
        process.terminate()
        process.wait(20)


def recorded(server: Planted, path: Path) -> str:
    """Record the server for some seconds, its secrets in the log meanwhile; what the command said."""
    process = subprocess.Popen(
        [PPSCOPE, "record", str(server.pid), "-o", path, "--seconds", "6"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    time.sleep(2)
    server.log_secrets()
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 0, said
    return said

"""A stdout that is closed or full ends a command with one line, before it has looked for anything."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ppscope.snapshot.recorder import Recorder
from ppscope.target.errors import SUDO, for_command
from tests.kineto import Pipeline
from tests.recordings import recording
from tests.shared import ROOT

CLOSED, FULL = (">&-", "it is closed"), ("> /dev/full", "No space left on device")


@pytest.mark.parametrize(
    ("command", "to", "why"), [("--help", *CLOSED), ("check 1", *CLOSED), ("--help", *FULL), ("check --help", *FULL)]
)
def test_a_stdout_that_takes_nothing_is_one_line_and_3(command: str, to: str, why: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m ppscope {command} {to}', sys.executable], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (3, f"ppscope: cannot write to standard output: {why}\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    inside = tmp_path_factory.mktemp("piped")
    recorder = Recorder(inside / "r.pps", 1 << 30, 1e9)
    recorder.write(recording(30, 4))
    recorder.close()
    (inside / "t").mkdir()
    Pipeline([2_000_000, 2_000_000]).build().write(inside / "t")
    return inside


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "check --help",
        "open r.pps --json",
        "compare r.pps r.pps",
        "compare r.pps r.pps --json",
        "trace t --text",
        "trace t --json",
        *(f"export r.pps --to {kind}" for kind in ("html", "perfetto", "speedscope", "folded", "gpu-csv", "gpu-json")),
        "doctor",
        "rules",
    ],
)
def test_a_reader_that_is_gone_is_141_and_nothing_said(command: str, folder: Path) -> None:
    """1 would mean findings, and 0 that all is written."""
    reader, writer = os.pipe()
    os.close(reader)
    words = (
        command.split() if command != "rules" else ["rules", "--source", str(ROOT / "ppscope" / "emulator"), "--json"]
    )
    done = subprocess.run(
        [sys.executable, "-m", "ppscope", *words], stdout=writer, stderr=subprocess.PIPE, text=True, check=False, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "is used" not in line]) == (141, [])


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_enough_is_141(unbuffered: str, folder: Path) -> None:
    """Of more than a pipe holds, also where Python writes past its buffer, which takes what a pipe has room for to be all."""
    command = (
        f"{shlex.quote(sys.executable)} -m ppscope export r.pps --to gpu-json | head -c 1; echo ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered},
    )
    assert (done.stdout, done.stderr) == ("{141\n", "")


def test_complaints_that_nobody_reads_cost_no_report(folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "ppscope", "trace", "r.pps", "t", "--json"], stdout=subprocess.PIPE, stderr=writer, check=False,
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == 3
    assert json.loads(done.stdout)["ranks"]


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "ppscope", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split(",")[0], done.stderr) == (0, "ppscope", "")


def test_a_remedy_names_the_command_that_was_run() -> None:
    assert for_command(f"{SUDO} attach 7", "snapshot") == 'sudo env "PATH=$PATH" ppscope snapshot 7'
    assert for_command("ppscope doctor 7", "check") == "ppscope doctor 7"

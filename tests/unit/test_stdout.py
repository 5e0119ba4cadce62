"""A stdout that is closed or full ends a command with one line, before it has looked for anything."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ppscope.target.errors import SUDO, for_command

CLOSED, FULL = (">&-", "it is closed"), ("> /dev/full", "No space left on device")


@pytest.mark.parametrize(
    ("command", "to", "why"), [("--help", *CLOSED), ("check 1", *CLOSED), ("--help", *FULL), ("check --help", *FULL)]
)
def test_a_stdout_that_takes_nothing_is_one_line_and_3(command: str, to: str, why: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m ppscope {command} {to}', sys.executable], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (3, f"ppscope: cannot write to standard output: {why}\n")


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "ppscope", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split(",")[0], done.stderr) == (0, "ppscope", "")


def test_a_remedy_names_the_command_that_was_run() -> None:
    assert for_command(f"{SUDO} attach 7", "snapshot") == 'sudo env "PATH=$PATH" ppscope snapshot 7'
    assert for_command("ppscope doctor 7", "check") == "ppscope doctor 7"

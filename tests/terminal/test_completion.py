"""Tab in the shell: commands, flags, choices, files, and the pids of the servers that run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ppscope import emulator
from ppscope.cli import main
from tests.terminal.terminal import PPSCOPE, Terminal

SHELLS = ("bash", "zsh", "fish")
PYTHONLESS = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def ask(instruction: str, words: str = "", at: str = "") -> str:
    done = subprocess.run(
        [str(PPSCOPE)], capture_output=True, text=True, timeout=30, check=False,
        env={**PYTHONLESS, "_PPSCOPE_COMPLETE": instruction, "COMP_WORDS": words, "COMP_CWORD": at},
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


def offered(words: str) -> list[str]:
    """What bash is told for a line whose last word is being typed."""
    return [line.partition(",")[2] for line in ask("bash_complete", words, str(words.count(" "))).splitlines()]


def test_commands_and_the_flags_of_each() -> None:
    assert sorted(offered("ppscope ")) == sorted(main.commands)
    assert offered("ppscope ch") == ["check"]
    for name, command in main.commands.items():
        flags = [flag for option in command.params for flag in option.opts if flag.startswith("--")]
        assert set(flags) <= set(offered(f"ppscope {name} --"))
    assert offered("ppscope demo --scenario s") == ["serial", "slow-links", "spinning"]


@pytest.mark.parametrize("words", ["ppscope open ", "ppscope trace ", "ppscope record -o ", "ppscope rules --source "])
def test_files_are_left_to_the_shell(words: str) -> None:
    assert ask("bash_complete", words, str(words.count(" "))).startswith("file,")


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_a_script_that_it_can_read(shell: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(ask(f"{shell}_source"))
    assert "_PPSCOPE_COMPLETE" in script.read_text()
    found = shutil.which(shell)
    if found is not None:
        assert subprocess.run([found, "-n", str(script)], capture_output=True, check=False).returncode == 0


def test_pids_of_the_servers_that_run() -> None:
    with emulator.start("idle", 2) as server:
        for command in ("attach", "check", "doctor", "record", "rules", "snapshot"):
            assert str(server.pid) in offered(f"ppscope {command} ")
        zsh = ask("zsh_complete", "ppscope attach ", "2").splitlines()
        row = zsh.index(str(server.pid))
        assert zsh[row - 1] == "plain"
        assert "PP2×TP1" in zsh[row + 1]
    assert str(server.pid) not in offered("ppscope attach ")


def test_tab_in_bash() -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not here")
    environment = {"PS1": "$ ", "PATH": f"{PPSCOPE.parent}:{os.environ['PATH']}"}
    with Terminal([bash, "--norc", "-i"], env=environment) as terminal:
        terminal.wait_for("$ ")
        terminal.send('eval "$(_PPSCOPE_COMPLETE=bash_source ppscope)"; echo ready\r')
        terminal.wait_for("\nready")
        terminal.send("ppscope snap\t")
        terminal.wait_for("ppscope snapshot ")
        terminal.send("--red\t")
        terminal.wait_for("ppscope snapshot --redact-paths")
        terminal.send("\x15exit\r")
        terminal.wait()

"""Tab in the shell: commands, flags, choices, files, and the pids of the servers that run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ppscope import emulator
from ppscope.cli import main
from ppscope.completion import words_of
from tests.shared import ROOT
from tests.terminal.terminal import PPSCOPE, Terminal

SHELLS = ("bash", "zsh", "fish")
PYTHONLESS = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def ask(instruction: str, line: str = "") -> str:
    done = subprocess.run(
        [str(PPSCOPE)], capture_output=True, text=True, timeout=30, check=False,
        env={**PYTHONLESS, "_PPSCOPE_COMPLETE": instruction, "COMP_WORDS": line},
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


def offered(line: str) -> list[str]:
    """What bash is told for a line whose last word is being typed."""
    return [row.partition(",")[2] for row in ask("bash_complete", line).splitlines()]


def test_commands_and_the_flags_of_each() -> None:
    assert sorted(offered("ppscope ")) == sorted(main.commands)
    assert offered("ppscope ch") == ["check"]
    for name, command in main.commands.items():
        flags = [flag for option in command.params for flag in option.opts if flag.startswith("--")]
        assert set(flags) <= set(offered(f"ppscope {name} --"))
    assert offered("ppscope demo --scenario s") == ["serial", "slow-links", "spinning"]


@pytest.mark.parametrize("line", ["ppscope open ", "ppscope trace ", "ppscope record -o ", "ppscope rules --source "])
def test_files_are_left_to_the_shell(line: str) -> None:
    assert ask("bash_complete", line).startswith("file,")


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
        zsh = ask("zsh_complete", "ppscope attach ").splitlines()
        row = zsh.index(str(server.pid))
        assert zsh[row - 1] == "plain"
        assert "PP2×TP1" in zsh[row + 1]
    assert str(server.pid) not in offered("ppscope attach ")


SERVERS = 2
PROMPTS = {
    "bash": (".bashrc", "PS1='ready> '"),
    "zsh": (".zshrc", "PROMPT='ready> '"),
    "fish": (".config/fish/config.fish", "function fish_prompt; echo 'ready> '; end; set -g fish_greeting"),
}


def said_in_readme(shell: str) -> tuple[str, str]:
    """The file of a home and the line for it."""
    _, _, rest = (ROOT / "README.md").read_text(encoding="utf-8").partition("<!-- completion -->")
    row = re.search(rf"^\| {shell}, .*`~/(.+)` \| `(.+)` \|$", rest, re.MULTILINE)
    assert row is not None
    return row[1], row[2].replace("\\|", "|")


@contextmanager
def a_shell(shell: str, home: Path) -> Iterator[Terminal]:
    """A shell in a home where nothing but the line of the README was done; the prompt is ours."""
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    for file, line in (PROMPTS[shell], said_in_readme(shell)):
        target = home / file
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("a") as text:
            text.write(f"{line}\n")
    environment = {
        "HOME": str(home),
        "ZDOTDIR": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "PATH": f"{PPSCOPE.parent}:{os.environ['PATH']}",
    }
    with Terminal([found, "-i"], env=environment, columns=200) as terminal:
        terminal.wait_for(at_prompt)
        yield terminal
        clear(terminal)
        terminal.send("exit\r")
        terminal.wait()


def at_prompt(text: str) -> bool:
    return text.strip() == "ready>"


def clear(terminal: Terminal) -> None:
    terminal.send("\x15\x0c")
    terminal.wait_for(at_prompt)


def completed(terminal: Terminal, typed: str, line: str) -> None:
    """What was typed becomes this line by one tab."""
    terminal.send(f"{typed}\t")
    terminal.wait_for(lambda text: text.strip() == f"ready> {line}".strip())
    clear(terminal)


def listed(terminal: Terminal, typed: str, *wanted: str) -> str:
    """Tabs show a list with all of these: bash wants two, and any shell one more where what they begin with is typed first."""
    tab = "\t\t" if "bash" in str(terminal.process.args) else "\t"
    terminal.send(typed)
    for _ in range(5):
        terminal.send(tab)
        try:
            text = terminal.wait_for(lambda text: all(one in text for one in wanted), timeout_s=3)
        except AssertionError as error:
            missed = error
            continue
        clear(terminal)
        return text
    raise missed


@pytest.fixture(scope="module")
def servers() -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [str(stack.enter_context(emulator.start("idle", 2)).pid) for _ in range(SERVERS)]


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_as_the_readme_says(shell: str, servers: list[str], tmp_path: Path) -> None:
    with a_shell(shell, tmp_path) as terminal:
        completed(terminal, "ppscope att", "ppscope attach")
        pids = listed(terminal, "ppscope attach ", *servers)
        flags = listed(terminal, "ppscope check --", "--json", "--seconds", "--rate", "--help")
        commands = listed(terminal, "ppscope ", *main.commands)
        completed(terminal, "ppscope check --sec", "ppscope check --seconds")
        if shell != "bash":  # which shows no help texts
            assert pids.count("PP2×TP1") >= SERVERS
            assert "Stack samples a second, at most." in flags
            assert "What is wrong with the server that PID belongs to, and what to change; no screen." in commands


@pytest.mark.parametrize("shell", SHELLS)
def test_values_and_files(shell: str, tmp_path: Path) -> None:
    files = tmp_path / "f"
    files.mkdir()
    (files / "run one.pps").touch()
    (files / "sglang").mkdir()
    with a_shell(shell, tmp_path) as terminal:
        completed(terminal, "ppscope demo --scenario sl", "ppscope demo --scenario slow-links")
        completed(terminal, "ppscope demo --scenario=sl", "ppscope demo --scenario=slow-links")
        listed(terminal, "ppscope demo --scenario=s", "serial", "slow-links", "spinning")
        completed(terminal, f"ppscope open {files}/run", f"ppscope open {files}/run\\ one.pps")
        completed(terminal, f'ppscope open "{files}/run o', f'ppscope open "{files}/run one.pps"')
        completed(terminal, f"ppscope rules --source={files}/sg", f"ppscope rules --source={files}/sglang/")
        completed(terminal, "ppscope rules --set a=b --from=1:30 --sou", "ppscope rules --set a=b --from=1:30 --source")
        completed(terminal, f"ppscope launch -- python {files}/sg", f"ppscope launch -- python {files}/sglang/")


@pytest.mark.parametrize("shell", SHELLS)
def test_wherever_the_command_stands_in_the_line(shell: str, tmp_path: Path) -> None:
    with a_shell(shell, tmp_path) as terminal:
        completed(terminal, "PPSCOPE_API_KEY=x ppscope snap", "PPSCOPE_API_KEY=x ppscope snapshot")
        completed(terminal, "cd / && ppscope snap", "cd / && ppscope snapshot")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_command_that_is_called_by_its_path(shell: str, tmp_path: Path) -> None:
    (tmp_path / "bin").symlink_to(PPSCOPE.parent)
    with a_shell(shell, tmp_path) as terminal:
        for path in (str(PPSCOPE), "~/bin/ppscope"):
            completed(terminal, f"{path} snap", f"{path} snapshot")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ppscope ", ([], "")),
        ("ppscope att", ([], "att")),
        ("ppscope attach 12", (["attach"], "12")),
        ("A=1 B= /x/ppscope open ", (["open"], "")),
        ("ppscope open 'a b", (["open"], "a b")),
        ("ppscope open a\\ ", (["open"], "a ")),
        ("ppscope rules --set a=b --source=/x", (["rules", "--set", "a=b"], "--source=/x")),
    ],
)
def test_a_line_is_cut_at_the_cursor(line: str, words: tuple[list[str], str]) -> None:
    assert words_of(line) == words


def test_programs_are_offered_for_the_first_word_of_launch() -> None:
    assert "python3" in offered("ppscope launch -- python3") or "python" in offered("ppscope launch -- pyth")
    assert (
        offered("ppscope launch -- python ") == offered("ppscope launch -- python -m sglang.launch_server --x ") == [""]
    )

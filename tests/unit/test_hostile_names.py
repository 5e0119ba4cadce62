"""Names that a terminal would obey: no control character of a file's, a model's or a kernel's name reaches stdout or stderr."""

from __future__ import annotations

import ast
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ppscope import stdout
from ppscope.commands.record import _Recording
from ppscope.doctor.facts import Check
from ppscope.doctor.report import as_text
from ppscope.records import FrameDef, Server
from ppscope.snapshot.recorder import Recorder
from tests.kineto import Pipeline
from tests.recordings import recording
from tests.shared import ROOT

EVIL = "a\x1b]52;c;ZXZpbA==\x07\x9b2J\u202eb"
"""Sets the clipboard, clears the screen by a C1 character, turns the direction of writing."""


def said(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ppscope", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
    )
    return done.stdout + done.stderr


def obeyed(text: str) -> list[str]:
    return [char for char in text if char != "\n" and not char.isprintable()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every kind under such a name, and a package with such a rule."""
    inside = tmp_path_factory.mktemp("names") / EVIL
    (inside / "traces").mkdir(parents=True)
    (inside / "traces" / f"{EVIL}\n.json").write_text("no trace")
    (inside / f"{EVIL}.txt").write_text("nothing")
    recorder = Recorder(inside / "r.pps", 1 << 30, 1e9)
    recorder.write(
        FrameDef(item.id, EVIL, EVIL, item.line) if isinstance(item, FrameDef) else item
        for item in recording(3, 2, model=f"org/{EVIL}")
    )
    recorder.close()
    source = inside / "s" / "srt"
    source.mkdir(parents=True)
    (source / "server_args.py").write_text(
        "class ServerArgs:\n    pp_size: int = 2\n    disable_cuda_graph: bool = False\n\n    def __post_init__(self):\n"
        f'        if self.pp_size > 1:\n            logger.warning("{EVIL}")\n            self.disable_cuda_graph = True\n'
    )
    (source / f"{EVIL}.py").write_text("def broken(:\n")
    return inside


@pytest.mark.parametrize(
    "arguments",
    [
        ["trace", "traces"],
        ["trace", f"{EVIL}.json"],
        ["open", f"{EVIL}.txt", "--json"],
        ["open", f"{EVIL}.txt", f"{EVIL}.txt"],
        ["open", "r.pps", "--json"],
        ["compare", "r.pps", f"{EVIL}.txt"],
        ["compare", "r.pps", "r.pps"],
        ["export", "r.pps", "--to", "folded"],
        ["rules", "--source", "s"],
        ["rules", "--source", f"{EVIL}"],
        ["rules", "--source", "s", "--set", f"{EVIL}=1"],
        ["rules", "--source", "s", "--set", f"pp_size={EVIL}"],
        ["launch", "--", f"./{EVIL}"],
        ["launch", "--", f"./{EVIL}.txt"],
        [EVIL],
    ],
    ids=" ".join,
)
def test_no_name_steers_the_terminal(arguments: list[str], folder: Path) -> None:
    text = said(arguments, folder)
    assert "Traceback" not in text
    assert text
    assert obeyed(text) == []


def test_a_recording_names_its_model_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = next(item for item in recording(3, 2, model=EVIL) if isinstance(item, Server))
    recorder = Recorder(tmp_path / "r.pps", 1 << 30, 1e9)
    nobody: Any = SimpleNamespace(number=None)
    _Recording(nobody, recorder, 1.0, nobody, False)._take([server])
    recorder.close()
    heard = capsys.readouterr().err
    assert heard.startswith("ppscope: recording a?]52;c;")
    assert obeyed(heard) == []


def test_what_the_doctor_found_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    stdout.write_text(as_text([Check("process", "problem", f"it is {EVIL}", f"kill {EVIL}")]))
    assert obeyed(capsys.readouterr().out) == []


def test_json_says_the_name_whole(capsys: pytest.CaptureFixture[str]) -> None:
    stdout.write_json(msgspec.json.encode({"name": EVIL}))
    printed = capsys.readouterr().out
    assert obeyed(printed) == []
    assert json.loads(printed) == {"name": EVIL}


def test_a_path_is_exact_in_a_pipe_and_text_on_a_terminal(tmp_path: Path) -> None:
    program = f"from pathlib import Path; from ppscope import stdout; stdout.write_path(Path({EVIL!r}))"
    piped = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert piped.stdout == f"{EVIL}\n".encode()
    leader, follower = pty.openpty()
    subprocess.run([sys.executable, "-c", program], stdout=follower, check=True)
    os.close(follower)
    shown = os.read(leader, 4096).decode()
    os.close(leader)
    assert shown.startswith("a?]52;c;")
    assert obeyed(shown.replace("\r\n", "\n")) == []


SAFE = {
    "ppscope/complain.py",
    "ppscope/stdout.py",
    "ppscope/signals.py",  # a signal's name
    "ppscope/commands/demo.py",  # a pid
    "ppscope/commands/progress.py",  # ASCII text
    "ppscope/commands/export.py",  # a file's content where no terminal is
    "ppscope/trace/command.py",  # made harmless there; its progress line is ASCII
    "ppscope/sources/rules_child.py",  # to its parent
    "ppscope/probe/start.py",  # an error's repr
    "ppscope/probe/site/sitecustomize.py",  # an error's repr
}
WRITE = {"print", "click.echo", "sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write"}


def test_nothing_else_writes_to_a_standard_stream() -> None:
    """Whoever prints by itself prints names raw sooner or later."""
    found = set()
    for path in sorted((ROOT / "ppscope").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name.startswith(("ppscope/emulator/", "ppscope/widgets/")):
            continue
        calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        if WRITE & set(calls):
            found.add(name)
    assert found == SAFE


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recording and traces whose names are no UTF-8."""
    inside = tmp_path_factory.mktemp("bytes")
    recorder = Recorder(inside / "r.pps", 1 << 30, 1e9)
    recorder.write(recording(3, 2))
    recorder.close()
    os.rename(inside / "r.pps", os.fsencode(inside) + b"/\xff.pps")
    (inside / "t").mkdir()
    for number, path in enumerate(Pipeline([2_000_000, 2_000_000]).build().write(inside / "t")):
        os.rename(path, os.fsencode(inside / "t") + b"/\xff%d-" % number + os.fsencode(path.name))
    return inside


@pytest.mark.parametrize(
    "words",
    [
        *(f"export @.pps --to {kind}" for kind in ("html", "perfetto", "speedscope", "folded", "gpu-csv", "gpu-json")),
        *(f"export @.pps --to {kind} -o @.{kind}" for kind in ("html", "speedscope")),
        "open @.pps --json",
        "compare @.pps @.pps",
        "compare @.pps @.pps --json",
        "compare @.pps @.pps -o @c.html",
        "trace t --text",
        "trace t --json",
        "trace t -o @t.html",
    ],
)
def test_a_name_that_is_no_utf_8_is_no_error(words: str, odd: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ppscope", *(word.replace("@", "\udcff") for word in words.split())],
        capture_output=True,
        check=False,
        cwd=odd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert b"Traceback" not in done.stderr
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout or "-o" in words

"""A stdout of any encoding: every command that prints ends as it does with UTF-8, and its JSON says the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ppscope.records import FrameDef
from ppscope.snapshot.recorder import Recorder
from tests.kineto import Pipeline
from tests.recordings import recording

ENCODINGS = (
    "ascii",
    "latin-1",
    "cp1252",
    "gb2312",
    "shift_jis",
    "utf-16",
    "utf-8:strict",
    "ascii:strict",
    "ascii:surrogateescape",
)
JSON = (
    ("open", "{r}", "--json"),
    ("compare", "{r}", "{r}", "--json"),
    ("trace", "{t}", "--json"),
    ("doctor", "--json"),
)
TEXT = (
    ("compare", "{r}", "{r}"),
    ("trace", "{t}", "--text"),
    ("doctor",),
    ("--help",),
    *((command, "--help") for command in ("attach", "check", "rules", "export", "launch")),
    ("rules", "--source", "{s}"),
    ("rules", "--source", "{s}", "--json"),
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("läuft-模型-😀")
    recorder = Recorder(folder / "r.pps", 1 << 30, 1e9)
    recorder.write(
        FrameDef(r.id, f"前向_é😀_{r.function}", r.file, r.line) if isinstance(r, FrameDef) else r
        for r in recording(3, 2, model="org/模型-é😀-7B")
    )
    recorder.close()
    (folder / "t").mkdir()
    Pipeline([2_000_000, 2_000_000]).build().write(folder / "t")
    source = folder / "s" / "srt"
    source.mkdir(parents=True)
    (source / "server_args.py").write_text(
        "class ServerArgs:\n    pp_size: int = 1\n    disable_cuda_graph: bool = False\n\n    def __post_init__(self):\n"
        '        if self.pp_size > 1:\n            logger.warning("关闭 é😀")\n            self.disable_cuda_graph = True\n',
        encoding="utf-8",
    )
    return {"r": folder / "r.pps", "t": folder / "t", "s": folder / "s"}


def run(command: tuple[str, ...], files: dict[str, Path], encoding: str) -> tuple[int, bytes, str]:
    done = subprocess.run(
        [sys.executable, "-m", "ppscope", *(word.format(**files) for word in command)],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "COLUMNS": "100"},
    )
    said = done.stderr.decode(errors="replace")
    assert "Traceback" not in said
    assert "codec" not in said
    return done.returncode, done.stdout, said


@pytest.mark.parametrize("command", JSON, ids=" ".join)
def test_json_is_the_same_in_any_encoding(command: tuple[str, ...], files: dict[str, Path]) -> None:
    code, wanted, _ = run(command, files, "utf-8")
    document = json.loads(wanted)
    for encoding in ENCODINGS if command[0] == "open" else ENCODINGS[:1]:
        again, shown, _ = run(command, files, encoding)
        assert again == code
        got = json.loads(shown.decode(encoding.partition(":")[0]))
        assert got.keys() | {"made"} == document.keys() | {"made"}
        for said in (got, document):
            said.pop("made", None)  # the time is in it
        assert command[0] == "doctor" or got == document


@pytest.mark.parametrize("command", TEXT, ids=" ".join)
def test_text_ends_as_ever(command: tuple[str, ...], files: dict[str, Path]) -> None:
    code, wanted, _ = run(command, files, "utf-8")
    again, shown, _ = run(command, files, "ascii:strict")
    assert (again, bool(shown)) == (code, bool(wanted))

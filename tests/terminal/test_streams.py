"""A view whose standard streams are not all the terminal: it is drawn where stdout is, or there is none and that is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppscope.snapshot.recorder import Recorder
from tests.recordings import recording
from tests.terminal.terminal import PPSCOPE, Terminal


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("streams") / "r.pps"
    recorder = Recorder(path, 1 << 30, 1e9)
    recorder.write(recording(4))
    recorder.close()
    return path


@pytest.mark.parametrize(
    "to", ["2>/dev/null", "2>{log}", "2>&-", "2>/dev/full", "2>&1 | cat >/dev/null", ">/dev/null", "<&-"]
)
def test_the_screen_is_where_stdout_is(to: str, file: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Terminal(["sh", "-c", f'"$0" open "$1" {to.format(log=log)}', str(PPSCOPE), str(file)]) as terminal:
        if to.startswith("2>") and "cat" not in to:
            terminal.wait_for("Model-7B")
            terminal.resize(100, 30)
            terminal.send("5")
            terminal.wait_for("attention_backend")
            terminal.send("q")
            assert terminal.wait() == 0
            assert not log.exists() or log.read_bytes() == b""
        else:
            terminal.wait()
            assert b"\x1b[?1049h" not in terminal.raw
            assert "cat" in to or "is not a terminal, so there is no screen to draw" in terminal.text
        assert terminal.restored


@pytest.mark.parametrize("charset", ["ascii", "latin-1", "utf-8"])
def test_a_name_outside_of_the_terminals_characters_ends_nothing(charset: str, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.pps", 1 << 30, 1e9)
    recorder.write(recording(4, model="org/模型-7B"))
    recorder.close()
    with Terminal(
        [str(PPSCOPE), "open", str(tmp_path / "r.pps")], env={"PYTHONIOENCODING": charset, "PYTHONUTF8": "0"}
    ) as terminal:
        terminal.wait_for("-7B")
        terminal.send("q")
        assert terminal.wait() == 0
        assert "Traceback" not in terminal.text
        assert terminal.restored

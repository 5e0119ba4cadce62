"""record, open, snapshot, compare and export as a user runs them, against the emulator."""

from __future__ import annotations

import json
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ppscope import emulator
from ppscope.records import Server
from ppscope.signals import exit_code
from ppscope.snapshot.read import read_file
from tests.terminal.planted import Planted, planted_server, recorded
from tests.terminal.terminal import PPSCOPE, Terminal, all_gone


@pytest.fixture(scope="module")
def server() -> Iterator[Planted]:
    with planted_server() as planted:
        yield planted


def run(*arguments: str | Path | int, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PPSCOPE, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def files(server: Planted, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A recording, a snapshot of it and what the commands said, with secrets in the log meanwhile."""
    folder = tmp_path_factory.mktemp("files")
    said = recorded(server, folder / "r.pps")
    result = run("snapshot", server.pid, "-o", folder / "s.html", "--seconds", "4")
    assert result.returncode == 0, result.stderr
    return folder / "r.pps", folder / "s.html", said + result.stdout + result.stderr


def test_recording_and_snapshot_are_private_and_show_the_server(files: tuple[Path, Path, str]) -> None:
    for file in files[:2]:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        shown = run("open", file, "--json")
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.startswith('{"schema":"ppscope.snapshot/1"')
        document = json.loads(shown.stdout)
        assert document["view"]["server"]["model"] == "moonshotai/Kimi-K2-Instruct"
        assert len(document["view"]["stages"]) == 4
        assert {"pipeline.serial", "graphs.disabled_by_flag"} <= {
            finding["id"] for finding in document["view"]["findings"]
        }
        assert {tuple(track["rank"]) for track in document["tracks"]} == {(0, stage, 0) for stage in range(4)}
    assert sorted(path.name for path in files[0].parent.iterdir()) == ["r.pps", "s.html"]


@pytest.mark.parametrize("which", [0, 1], ids=["recording", "snapshot"])
def test_open_shows_the_same_screen_and_its_time_can_be_moved(files: tuple[Path, Path, str], which: int) -> None:
    with Terminal([str(PPSCOPE), "open", str(files[which])]) as terminal:
        text = terminal.wait_for(
            lambda text: len(re.findall(r"^[▸> ] +PP\d", text, re.MULTILINE)) == 4 and "pipeline.serial" in text
        )
        assert "Kimi-K2" in text
        assert "recording" in text
        for key in ("\x1b[D", "+", "-", "0", "5"):
            terminal.send(key)
        terminal.wait_for("attention_backend")
        terminal.send("q")
        assert terminal.wait() == 0
        assert "Traceback" not in terminal.text


def test_s_in_the_view_saves_the_last_minute(server: Planted, tmp_path: Path) -> None:
    with Terminal([str(PPSCOPE), "attach", str(server.pid)], env={"PPSCOPE_SNAPSHOT_DIR": str(tmp_path)}) as terminal:
        terminal.wait_for("graphs.disabled_by_flag", timeout_s=30)
        terminal.send("s")
        terminal.wait_for("snapshot: ")
        terminal.send("q")
        assert terminal.wait() == 0
    (file,) = tmp_path.iterdir()
    assert re.fullmatch(r"ppscope-Kimi-K2-Instruct-\d{8}-\d{6}\.html", file.name)
    assert any(isinstance(record, Server) for record in read_file(file).records)


def test_a_snapshot_says_how_far_it_is_where_somebody_looks(server: Planted, tmp_path: Path) -> None:
    command = [str(PPSCOPE), "snapshot", str(server.pid), "-o", str(tmp_path / "s.html"), "--seconds", "2"]
    with Terminal(command) as terminal:
        terminal.wait_for("looking, ")
        assert terminal.wait(40) == 0
        assert "looking" not in terminal.text, "the line is taken away"
        assert "s.html" in terminal.text
    quiet = run("snapshot", server.pid, "-o", tmp_path / "t.html", "--seconds", "0.5")
    assert (quiet.returncode, quiet.stderr) == (0, "")


def test_s_where_nothing_can_be_written_says_so(server: Planted, tmp_path: Path) -> None:
    with Terminal(
        [str(PPSCOPE), "attach", str(server.pid)], env={"PPSCOPE_SNAPSHOT_DIR": str(tmp_path / "none")}
    ) as terminal:
        terminal.wait_for("PP3")
        terminal.send("s")
        terminal.wait_for("no snapshot: ")
        terminal.send("q")
        assert terminal.wait() == 0


def test_compare_and_export(files: tuple[Path, Path, str], tmp_path: Path) -> None:
    compared = run("compare", files[0], files[1], "--json")
    assert compared.returncode == 1, "findings are still there"
    assert json.loads(compared.stdout)["schema"] == "ppscope.compare/1"
    assert run("compare", files[0], files[1], "-o", tmp_path / "c.html").returncode == 1
    assert run("export", files[1], "--to", "perfetto", "-o", tmp_path / "t.json").returncode == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert len({event["pid"] for event in events}) == 4
    assert stat.S_IMODE((tmp_path / "t.json").stat().st_mode) == 0o600


def test_record_interrupted_keeps_what_was_seen(server: Planted, tmp_path: Path) -> None:
    file = tmp_path / "r.pps"
    process = subprocess.Popen(
        [PPSCOPE, "record", str(server.pid), "-o", file], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 20
    while not (file.exists() and file.stat().st_size > 20_000):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    everything = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert out.strip() == str(file)
    assert "Traceback" not in err
    assert all_gone(everything) == []
    assert read_file(file).damage == ""


def test_parts_of_a_recording_open_as_one(server: Planted, tmp_path: Path) -> None:
    file = tmp_path / "r.pps"
    done = run("record", server.pid, "-o", file, "--seconds", "6", "--rotate", "2")
    assert done.returncode == 0, done.stderr
    parts = sorted(path.name for path in tmp_path.iterdir())
    assert parts[:2] == ["r.0001.pps", "r.0002.pps"]
    seconds = [
        json.loads(run("open", tmp_path / name, "--json").stdout)["window"]["seconds"]
        for name in ("r.pps", "r.0001.pps")
    ]
    assert seconds[0] > 4
    assert seconds[1] < 4
    last = json.loads(run("open", file, "--json", "--from", "-1.5").stdout)
    assert last["window"]["seconds"] == pytest.approx(1.5, abs=0.3)
    assert len(last["tracks"]) >= 4
    assert last["view"]["server"]["model"] == "moonshotai/Kimi-K2-Instruct"


@pytest.mark.parametrize("command", ["check", "record", "snapshot"])
def test_the_collector_killed_under_a_command_is_said(command: str, server: Planted, tmp_path: Path) -> None:
    output = tmp_path / ("r.pps" if command == "record" else "s.html")
    more = [] if command == "check" else ["-o", str(output)]
    process = subprocess.Popen(
        [PPSCOPE, command, str(server.pid), "--seconds", "60", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 40
    while True:
        everything = psutil.Process(process.pid).children(recursive=True)
        if any(child.name() == "py-spy" for child in everything if child.is_running()):
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    next(child for child in everything if "ppscope.collect.collector" in " ".join(child.cmdline())).kill()
    _, said = process.communicate(timeout=40)
    assert process.returncode == 3
    assert (
        sum(
            "the collector ended unexpectedly: killed by SIGKILL, as the out-of-memory" in line
            for line in said.splitlines()
        )
        == 1
    ), said
    assert "Traceback" not in said
    assert all_gone(everything) == []
    assert [path.name for path in tmp_path.iterdir()] == (["r.pps"] if command == "record" else [])
    assert command != "record" or read_file(output).records


def test_record_of_a_server_that_ends(tmp_path: Path) -> None:
    with emulator.start("serial", 2, extra=("--seconds", "4")) as short_lived:
        result = run("record", str(short_lived.pid), "-o", tmp_path / "r.pps", "--seconds", "60")
    assert result.returncode == 4
    assert "the server ended after" in result.stderr
    assert read_file(tmp_path / "r.pps").records


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("open", "nothing.html", "--json"), 3, "no such file"),
        (("open", "foreign.html", "--json"), 3, "neither"),
        (("open", "foreign.html"), 3, "neither"),
        (("open", "nothing.pps"), 3, "no such file"),
        (("open", "/dev/zero", "--json"), 3, "not a regular file"),
        (("compare", "foreign.html", "nothing.html"), 3, "neither"),
        (("export", "foreign.html", "--to", "folded"), 3, "neither"),
        (("export", "foreign.html", "--to", "word"), 2, "word"),
        (("record", "1", "-o", "/dev/null"), 2, "not a regular file"),
        (("record", "999999999", "-o", "r.pps"), 3, "no process"),
        (("snapshot", "999999999", "-o", "s.html"), 3, "no process"),
        (("snapshot", "1", "-o", "no/s.html"), 2, "not a folder"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    (tmp_path / "foreign.html").write_text("<html></html>")
    result = subprocess.run(
        [PPSCOPE, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    assert result.returncode == code, result.stderr
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign.html"]


def test_a_cut_recording_opens_and_says_so(files: tuple[Path, Path, str], tmp_path: Path) -> None:
    whole = files[0].read_bytes()
    (tmp_path / "cut.pps").write_bytes(whole[: len(whole) * 2 // 3])
    result = run("open", tmp_path / "cut.pps", "--json")
    assert result.returncode == 0
    assert "cut in the middle of a record" in result.stderr
    assert json.loads(result.stdout)["window"]["seconds"] > 1


SLOW_PAGE = """
import sys, time
from types import SimpleNamespace
from ppscope.commands import live
from ppscope.snapshot import save

def render(records, redact_paths=False):
    time.sleep(3)
    return b"page"

class View:
    return_code = None
    save_snapshot = save.Saver(SimpleNamespace(records=list))

    def run(self):
        self.save_snapshot()
        print("being written", flush=True)
        while self.return_code is None:
            time.sleep(0.05)

    def exit(self, return_code):
        self.return_code = return_code

live._LAST_S, save._PATIENCE_S, save.render = 1.0, 0.0, render
sys.exit(live.run_screen(View()))
"""


def test_a_snapshot_that_is_being_written_when_the_terminal_goes_is_written(tmp_path: Path) -> None:
    """The view ends in order, and what it waits for then may take longer than a view that does not end is given."""
    terminal = Terminal([sys.executable, "-c", SLOW_PAGE], env={"PPSCOPE_SNAPSHOT_DIR": str(tmp_path)})
    try:
        terminal.wait_for("being written")
        terminal.cut()
        assert terminal.process.wait(20) == exit_code(signal.SIGHUP)
    finally:
        terminal.close()
    (page,) = tmp_path.iterdir()
    assert page.read_bytes() == b"page"
    assert page.suffix == ".html"

"""No secret of a server gets out by any file or word of ours; with --redact-paths no path either."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from ppscope.snapshot.page_data import extract
from ppscope.sources.stacks_pyspy import find_pyspy
from tests.terminal.planted import HOME, SECRETS, Planted, planted_server, recorded
from tests.terminal.terminal import PPSCOPE, Terminal

KINDS = ("html", "perfetto", "speedscope", "folded", "gpu-csv", "gpu-json")


@pytest.fixture(scope="module")
def server() -> Iterator[Planted]:
    with planted_server() as planted:
        yield planted


class Files(NamedTuple):
    """A recording, a snapshot, and what the commands that wrote them said."""

    recording: Path
    snapshot: Path
    said: str


def run(*arguments: str | Path | int) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [PPSCOPE, *map(str, arguments)], capture_output=True, timeout=90, check=False, stdin=subprocess.DEVNULL
    )


def said_by(*arguments: str | Path | int) -> bytes:
    done = run(*arguments)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def files(server: Planted, tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("secrets")
    said = recorded(server, folder / "r.pps")
    said += said_by("snapshot", server.pid, "-o", folder / "s.html", "--seconds", "4").decode()
    return Files(folder / "r.pps", folder / "s.html", said)


def test_they_are_there_to_be_seen(server: Planted) -> None:
    server.log_secrets()
    launcher = psutil.Process(server.pid)
    words = "\n".join([*launcher.cmdline(), *launcher.environ().values(), (server.folder / "server.log").read_text()])
    scheduler = next(
        child for child in launcher.children(recursive=True) if "scheduler_PP0" in "".join(child.cmdline())
    )
    pyspy = find_pyspy()
    assert pyspy is not None
    for _ in range(5):
        dump = subprocess.run(
            [pyspy, "dump", "--json", "--locals", "--nonblocking", "-p", str(scheduler.pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        seen = [name for name, secret in SECRETS.items() if secret in words + dump.stdout]
        if len(seen) == len(SECRETS):
            break
    assert seen == list(SECRETS)


def outputs(server: Planted, files: Files, folder: Path, *options: str) -> dict[str, bytes]:
    """Everything that our commands write or say of the server, by name."""
    shown = {f"export {kind}": said_by("export", files.recording, "--to", kind, *options) for kind in KINDS}
    shown["open recording"] = said_by("open", files.recording, "--json", *options)
    shown["open snapshot"] = said_by("open", files.snapshot, "--json", *options)
    shown["compare"] = said_by("compare", files.recording, files.snapshot, *options)
    shown["compare json"] = said_by("compare", files.recording, files.snapshot, "--json", *options)
    page = folder / "c.html"
    said_by("compare", files.recording, files.snapshot, "-o", page, *options)
    pages = {"compare page": page.read_bytes(), "export html": shown["export html"]}
    for name, data in pages.items():
        start = data.index(b"<!doctype html>")
        shown[f"{name}, unpacked"] = json.dumps(unpacked(data[start:])).encode()
    shown["compare page"] = pages["compare page"]
    return shown


def unpacked(page: bytes) -> object:
    from ppscope.snapshot import page_data

    return [page_data._unpack(page, name) for name in (b"data", b"kept")]


def test_no_secret_gets_out(server: Planted, files: Files, tmp_path: Path) -> None:
    shown = outputs(server, files, tmp_path)
    shown["recording"] = files.recording.read_bytes()
    shown["snapshot"] = files.snapshot.read_bytes()
    shown["snapshot, unpacked"] = json.dumps(extract(shown["snapshot"])).encode()
    shown["said"] = files.said.encode()
    for command in ("check", "doctor", "rules"):
        seconds = ("--seconds", "2") if command == "check" else ()
        for form in ((), ("--json",)):
            # An emulated server has no rules: that is said, and ends with 3.
            done = run(command, server.pid, *form, *seconds)
            assert done.stdout or done.stderr
            shown[" ".join((command, *form))] = done.stdout + done.stderr
    shown["attach"] = attach(server, tmp_path)
    for name, secret in SECRETS.items():
        assert [where for where, data in shown.items() if secret.encode() in data] == [], name
    assert b"--api-key" in shown["open recording"]
    assert "«redacted»" in json.loads(run("open", files.recording, "--json").stdout)["view"]["server"]["launch_command"]


def attach(server: Planted, folder: Path) -> bytes:
    """Every panel of the view, and the snapshot that `s` writes."""
    with Terminal([str(PPSCOPE), "attach", str(server.pid)], env={"PPSCOPE_SNAPSHOT_DIR": str(folder)}) as terminal:
        terminal.wait_for("graphs.disabled_by_flag", timeout_s=40)
        for panel in "12345":
            terminal.send(panel)
            terminal.send("\t\r")
            time.sleep(0.2)
            terminal.send("\x1b")
            time.sleep(0.3)  # with the next key it would be one of Alt's
        terminal.wait_for("attention_backend")
        terminal.send("s")
        terminal.wait_for("snapshot: ")
        terminal.send("q")
        assert terminal.wait() == 0
    (page,) = folder.glob("ppscope-*.html")
    return bytes(terminal.raw) + page.read_bytes() + json.dumps(extract(page.read_bytes())).encode()


def test_paths_go_where_asked(server: Planted, files: Files, tmp_path: Path) -> None:
    private = {str(server.folder): "its folder", str(Path(sys.prefix)): "our Python", HOME: "a home folder"}
    plain = said_by("open", files.recording, "--json").decode()
    assert all(path in plain for path in private)
    shown = outputs(server, files, tmp_path, "--redact-paths")
    said_by("record", server.pid, "-o", tmp_path / "p.pps", "--seconds", "2", "--redact-paths")
    said_by("snapshot", server.pid, "-o", tmp_path / "p.html", "--seconds", "1", "--redact-paths")
    shown["recording"] = (tmp_path / "p.pps").read_bytes()
    shown["snapshot"] = json.dumps(extract((tmp_path / "p.html").read_bytes())).encode()
    shown["s in open"] = snapshot_out_of_open(files.recording, tmp_path)
    for path, name in private.items():
        assert [where for where, data in shown.items() if path.encode() in data] == [], name
    assert b"scheduler_pp_mixin.py" in shown["open recording"]


def snapshot_out_of_open(recording: Path, folder: Path) -> bytes:
    where = folder / "open"
    where.mkdir()
    command = [str(PPSCOPE), "open", str(recording), "--redact-paths"]
    with Terminal(command, env={**os.environ, "PPSCOPE_SNAPSHOT_DIR": str(where)}) as terminal:
        terminal.wait_for("pipeline.serial")
        terminal.send("s")
        terminal.wait_for("snapshot: ")
        terminal.send("q")
        assert terminal.wait() == 0
    (page,) = where.iterdir()
    return json.dumps(extract(page.read_bytes())).encode()

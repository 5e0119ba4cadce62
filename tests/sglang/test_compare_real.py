"""Before and after on the real SGLang: the default, which is serial, against --pp-max-micro-batch-size 2, under eight clients."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from ppscope.snapshot.page_data import extract
from tests.browser.chromium import BINARY, Chromium
from tests.sglang.server import ServerSpec, SglangServer, running
from tests.shared import needs_kit
from tests.terminal.terminal import PPSCOPE

pytestmark = needs_kit

PP = 2
SECONDS = 20
CLIENTS = 8


def run(*arguments: str | Path | int) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PPSCOPE, *map(str, arguments)], capture_output=True, text=True, timeout=180, check=False)


def seen(spec: ServerSpec, file: Path) -> dict[str, Any]:
    """A snapshot of a server under load; its document."""
    with running(spec) as server:
        return snapshot_under_load(server, file)


def snapshot_under_load(server: SglangServer, file: Path) -> dict[str, Any]:
    with server.load(clients=CLIENTS, seconds=3 * SECONDS + 12, tokens=128):
        time.sleep(6)
        result = run("snapshot", server.pid, "-o", file, "--seconds", SECONDS)
    assert result.returncode == 0, result.stderr
    return extract(file.read_bytes())


def test_serial_against_small_micro_batches(tmp_path: Path) -> None:
    files = tmp_path / "before.html", tmp_path / "after.html"
    before = seen(ServerSpec(pp=PP), files[0])
    after = seen(ServerSpec(pp=PP, extra="--pp-max-micro-batch-size 2"), files[1])
    for document in (before, after):
        assert {tuple(track["rank"]) for track in document["tracks"]} == {(0, stage, 0) for stage in range(PP)}
        assert document["view"]["server"]["version"] == "0.5.23"
        assert not document["view"]["server"]["emulated"]
    result = run("compare", *files, "--json")
    compared = json.loads(result.stdout)
    assert compared["comparable"], compared["refused"]
    assert {"name": "pp_max_micro_batch_size", "before": setting(before), "after": "2"} in compared["settings"]
    slots = next(figure for figure in compared["figures"] if figure["name"] == "micro-batch slots in use")
    assert slots["after"] is not None
    assert slots["before"] is None or slots["after"] >= slots["before"] - 0.3
    assert slots["after"] > 1.6, "two slots are in use once none takes all requests"
    said = run("compare", *files).stdout
    assert "pp_max_micro_batch_size" in said
    if BINARY is not None:
        page = tmp_path / "compared.html"
        assert run("compare", *files, "-o", page).returncode in (0, 1)
        with Chromium(tmp_path / "profile") as browser:
            for shown in (*files, page):
                browser.open(shown)
                assert browser.run("document.documentElement.dataset.ready") == "1"
                assert browser.run("document.querySelectorAll('[role=treeitem]').length") >= PP
            assert browser.said == []


def setting(document: dict[str, Any]) -> str | None:
    """What the server resolved `pp_max_micro_batch_size` to."""
    rows = {row["name"]: row["resolved"] for row in document["view"]["settings"]}
    value: str | None = rows["pp_max_micro_batch_size"]
    return value

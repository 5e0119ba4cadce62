"""Before and after on the real SGLang: the default, which is serial, against pp_max_micro_batch_size 2, under the same requests."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from ppscope.snapshot.page_data import extract
from tests.browser.chromium import BINARY, Chromium
from tests.sglang.batches import batches_of, post
from tests.sglang.server import ServerSpec, SglangServer, running
from tests.shared import needs_kit
from tests.terminal.terminal import PPSCOPE

pytestmark = needs_kit

PP = 4
PROMPTS = 8
SECONDS = 20


def run(*arguments: str | Path | int) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PPSCOPE, *map(str, arguments)], capture_output=True, text=True, timeout=180, check=False)


def seen(server: SglangServer, file: Path) -> dict[str, Any]:
    """A snapshot of the server under load; its document."""
    with batches_of(server, PROMPTS):
        time.sleep(3)
        result = run("snapshot", server.pid, "-o", file, "--seconds", SECONDS)
    assert result.returncode == 0, result.stderr
    return extract(file.read_bytes())


def test_serial_against_two_requests_a_slot(tmp_path: Path) -> None:
    files = tmp_path / "before.html", tmp_path / "after.html"
    with running(ServerSpec(pp=PP)) as server:
        before = seen(server, files[0])
        post(server, "/set_internal_state", {"server_args": {"pp_max_micro_batch_size": 2}})
        after = seen(server, files[1])
    for document in (before, after):
        assert {tuple(track["rank"]) for track in document["tracks"]} == {(0, stage, 0) for stage in range(PP)}
        assert document["view"]["server"]["version"] == "0.5.23"
        assert not document["view"]["server"]["emulated"]
    result = run("compare", *files, "--json")
    compared = json.loads(result.stdout)
    assert compared["comparable"], compared["refused"]
    assert compared["settings"] == [{"name": "pp_max_micro_batch_size", "before": setting(before), "after": "2"}]
    assert "pipeline.serial" in {finding["id"] for finding in compared["findings"]["resolved"]}
    figures = {figure["name"]: figure for figure in compared["figures"]}
    slots = figures["micro-batch slots in use"]
    assert slots["before"] <= 2.3
    assert slots["after"] > slots["before"] + 0.5
    assert slots["verdict"] == "better"
    assert figures["throughput"]["before"] > 0
    assert figures["throughput"]["after"] > 0
    assert figures["requests in a pass"]["after"] < figures["requests in a pass"]["before"]
    said = run("compare", *files).stdout
    assert "a pass carries " in said
    assert "resolved: pipeline.serial (it advised pp_max_micro_batch_size, which is 2 now)" in said
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

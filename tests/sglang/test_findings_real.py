"""The findings on the real SGLang on CPU, against what its own log and source say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.sglang.server import HOME, ServerSpec, SglangServer

PPSCOPE = Path(sys.executable).with_name("ppscope")
DEFAULT = ServerSpec("0.5.23", 4)
UNEVEN = ServerSpec("0.5.23", 4, extra="--pp-max-micro-batch-size 2", layers=(1, 1, 4, 2))
OLD = ServerSpec("0.5.11", 2)
RUNNING = re.compile(r"PP0\] Decode batch.*#running-req: (\d+)")


def post(server: SglangServer, path: str, body: object, timeout_s: float = 120.0) -> bytes:
    data = json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{path}", data=data, headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return bytes(answer.read())


def generate(server: SglangServer, prompts: int, tokens: int) -> None:
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    post(server, "/generate", {"text": [f"tale {i} of" for i in range(prompts)], "sampling_params": sampling})


@contextmanager
def batches_of(server: SglangServer, prompts: int, tokens: int = 128) -> Iterator[None]:
    """One batched request after the other while the block runs: its prompts arrive in one message."""
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            generate(server, prompts, tokens)

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(1.5)
    try:
        yield
    finally:
        stop.set()
        asking.join()


def check(server: SglangServer, *arguments: str, seconds: float = 6) -> dict[str, Any]:
    done = subprocess.run(
        [str(PPSCOPE), "check", str(server.pid), "--json", "--seconds", str(seconds), *arguments],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def by_id(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {finding["id"]: finding for finding in found["findings"]}


def sizes_in_log(server: SglangServer, since_bytes: int) -> list[int]:
    """Sizes of the first stage's decode micro-batches that its own log tells from there on."""
    return [int(size) for size in RUNNING.findall(server.log.read_text(errors="replace")[since_bytes:])]


def log_bytes(server: SglangServer) -> int:
    return len(server.log.read_text(errors="replace"))


def package(spec: ServerSpec) -> Path:
    (found,) = (HOME / f"venv-{spec.version}" / "lib").glob("python3*/site-packages/sglang")
    return found


def assert_names_the_torch_native_rule(spec: ServerSpec, finding: dict[str, Any]) -> None:
    """The first source of the finding is the write under `if attention_backend == "torch_native"` of the installed version."""
    place = finding["source"][0]
    lines = (package(spec) / place["file"]).read_text().splitlines()
    above = "\n".join(lines[place["line"] - 12 : place["line"]])
    assert "torch_native" in above, f"{place}: {above}"
    write = lines[place["line"] - 1]
    assert re.search(
        r"disable_cuda_graph|DISABLED|disabled|with_phase", "\n".join(lines[place["line"] - 3 : place["line"] + 2])
    ), write
    assert any("torch_native" in line for line in finding["evidence"])


def assert_serial_agrees(found: dict[str, Any], sizes: list[int]) -> None:
    """Eight requests: a log that shows them nearly all in one slot means serial, one that shows two each does not."""
    serial = "pipeline.serial" in by_id(found)
    assert sizes, "the log has decode lines"
    if max(sizes) >= 6:
        assert serial, (found["micro_batches"], sizes)
    elif max(sizes) <= 2:
        assert not serial, (found["micro_batches"], sizes)


@pytest.mark.parametrize("sglang_server", [DEFAULT], indirect=True, ids=str, scope="session")
class TestDefault:
    """PP 4 with SGLang's own micro-batch limit."""

    def test_eight_prompts_in_one_request_are_serial_and_the_remedy_mends_it(self, sglang_server: SglangServer) -> None:
        began = log_bytes(sglang_server)
        with batches_of(sglang_server, 8):
            found = check(sglang_server)
        assert_serial_agrees(found, sizes_in_log(sglang_server, began))
        findings = by_id(found)
        assert set(findings) >= {"pipeline.serial", "graphs.disabled_by_rule"}
        assert found["micro_batches"]["slots"] == 4
        assert found["micro_batches"]["samples"] >= 20
        assert found["micro_batches"]["occupied_mean"] <= 2.3
        assert 6 <= found["load"]["running"] <= 11, "inferred"
        assert_names_the_torch_native_rule(DEFAULT, findings["graphs.disabled_by_rule"])
        assert all(stage["busy_source"] == "host" for stage in found["stages"])
        assert found["graphs"]["decode"] == {"requested": None, "resolved": "off", "observed": "off"}
        # The command in the remedy, as it is pasted.
        body = re.search(r"-d '(\{.*\})'", findings["pipeline.serial"]["remedy"])
        assert body is not None
        assert json.loads(body[1]) == {"server_args": {"pp_max_micro_batch_size": 2}}
        post(sglang_server, "/set_internal_state", json.loads(body[1]))
        began = log_bytes(sglang_server)
        with batches_of(sglang_server, 8):
            time.sleep(2)
            began = log_bytes(sglang_server)
            found = check(sglang_server)
        assert_serial_agrees(found, sizes_in_log(sglang_server, began))
        assert "pipeline.serial" not in by_id(found)
        assert found["micro_batches"]["occupied_mean"] > 2.5
        post(sglang_server, "/set_internal_state", {"server_args": {"pp_max_micro_batch_size": 8}})

    def test_one_client_is_too_few_and_not_serial(self, sglang_server: SglangServer) -> None:
        with batches_of(sglang_server, 1):
            found = check(sglang_server)
        findings = by_id(found)
        assert "load.too_few_requests" in findings
        assert "pipeline.serial" not in findings
        assert found["load"]["running"] == 1

    def test_idle_is_no_finding(self, sglang_server: SglangServer) -> None:
        time.sleep(1)
        found = check(sglang_server, seconds=7)
        assert found["server"]["state"] == "idle"
        assert found["findings"] == []


@pytest.mark.parametrize("sglang_server", [UNEVEN], indirect=True, ids=str, scope="session")
class TestUneven:
    """Layers 1, 1, 4, 2, and two requests a slot from the command line."""

    def test_imbalance_names_the_stage_with_four_layers(self, sglang_server: SglangServer) -> None:
        with batches_of(sglang_server, 8):
            began = log_bytes(sglang_server)
            found = check(sglang_server, seconds=8)
        assert_serial_agrees(found, sizes_in_log(sglang_server, began))
        findings = by_id(found)
        assert "pipeline.serial" not in findings
        assert findings["pipeline.imbalance"]["stage"] == 2
        assert "SGLANG_PP_LAYER_PARTITION=" in findings["pipeline.imbalance"]["remedy"]
        busy = [stage["busy_fraction"] for stage in found["stages"]]
        assert max(busy) == busy[2]


@pytest.mark.parametrize("sglang_server", [OLD], indirect=True, ids=str, scope="session")
class TestOld:
    """The flags' dialect."""

    def test_the_rule_is_named_in_server_args(self, sglang_server: SglangServer) -> None:
        with batches_of(sglang_server, 8):
            found = check(sglang_server)
        findings = by_id(found)
        assert_names_the_torch_native_rule(OLD, findings["graphs.disabled_by_rule"])
        assert findings["graphs.disabled_by_rule"]["source"][0]["file"] == "srt/server_args.py"
        assert findings["graphs.disabled_by_rule"]["provenance"] == "exact"

"""The findings on the real SGLang on CPU, against what its own log and source say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.sglang.batches import batches_of, post
from tests.sglang.server import HOME, ServerSpec, SglangServer

PPSCOPE = Path(sys.executable).with_name("ppscope")
DEFAULT = ServerSpec("0.5.23", 4)
UNEVEN = ServerSpec("0.5.23", 4, extra="--pp-max-micro-batch-size 2", layers=(1, 1, 4, 2))
OLD = ServerSpec("0.5.11", 2)
OLDEST = ServerSpec("0.5.9", 2)
NEW = re.compile(r"PP0\] Prefill batch.*?#new-seq: (\d+)")


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


def slots_in_log(server: SglangServer, since_bytes: int, prompts: int) -> list[int]:
    """Into how many slots the prompts of each whole round went, by the first stage's own prefill lines from there on.

    Its decode lines come every so many launches: with two slots in turn they may tell of one of them alone.
    """
    rounds, parts, waiting = [], 0, prompts
    for new in NEW.findall(server.log.read_text(errors="replace")[since_bytes:]):
        parts, waiting = parts + 1, waiting - int(new)
        if waiting <= 0:
            rounds.append(parts)
            parts, waiting = 0, prompts
    return rounds


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


def assert_serial_agrees(found: dict[str, Any], rounds: list[int]) -> None:
    """At most half of the slots in every round means serial; more of them in every round does not."""
    serial = "pipeline.serial" in by_id(found)
    half = found["micro_batches"]["slots"] / 2
    assert rounds, "the log has whole rounds"
    if max(rounds) <= half:
        assert serial, (found["micro_batches"], rounds)
    elif min(rounds) > half:
        assert not serial, (found["micro_batches"], rounds)


@pytest.mark.parametrize("sglang_server", [DEFAULT], indirect=True, ids=str, scope="session")
class TestDefault:
    """PP 4 with SGLang's own micro-batch limit."""

    def test_eight_prompts_in_one_request_are_serial_and_the_remedy_mends_it(self, sglang_server: SglangServer) -> None:
        began = log_bytes(sglang_server)
        with batches_of(sglang_server, 8):
            found = check(sglang_server)
        assert_serial_agrees(found, slots_in_log(sglang_server, began, 8))
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
        size = -(-found["load"]["running"] // found["micro_batches"]["slots"])
        assert json.loads(body[1]) == {"server_args": {"pp_max_micro_batch_size": size}}
        assert size in (2, 3), "eight requests run, and the estimate may be a little above"
        post(sglang_server, "/set_internal_state", json.loads(body[1]))
        began = log_bytes(sglang_server)
        with batches_of(sglang_server, 8):
            time.sleep(2)
            found = check(sglang_server)
        assert_serial_agrees(found, slots_in_log(sglang_server, began, 8))
        assert "pipeline.serial" not in by_id(found)
        assert found["micro_batches"]["occupied_mean"] > 2.2
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
        began = log_bytes(sglang_server)
        with batches_of(sglang_server, 8):
            found = check(sglang_server, seconds=8)
        assert_serial_agrees(found, slots_in_log(sglang_server, began, 8))
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


@pytest.mark.parametrize("sglang_server", [OLDEST], indirect=True, ids=str, scope="session")
class TestOldest:
    """0.5.9 has few spans and prints little; what can be claimed is claimed, and says on what it rests."""

    def test_eight_prompts_then_one(self, sglang_server: SglangServer) -> None:
        began = log_bytes(sglang_server)
        with batches_of(sglang_server, 8):
            found = check(sglang_server, seconds=5)
        assert found["server"]["version"] == OLDEST.version
        assert found["micro_batches"]["slots"] == 2
        assert_serial_agrees(found, slots_in_log(sglang_server, began, 8))
        findings = by_id(found)
        assert_names_the_torch_native_rule(OLDEST, findings["graphs.disabled_by_rule"])
        assert findings["graphs.disabled_by_rule"]["source"][0]["file"] == "srt/server_args.py"
        assert findings["graphs.disabled_by_rule"]["provenance"] == "exact", "the settings and the source say so"
        assert found["graphs"]["decode"] == {"requested": None, "resolved": "off", "observed": "off"}
        if "pipeline.serial" in findings:
            assert findings["pipeline.serial"]["provenance"] == "sampled"
            assert any("inferred" in line for line in findings["pipeline.serial"]["evidence"])
        assert found["load"]["running_provenance"] == "inferred"
        assert all(stage["busy_source"] == "host" for stage in found["stages"])
        with batches_of(sglang_server, 1):
            found = check(sglang_server, seconds=5)
        findings = by_id(found)
        assert findings["load.too_few_requests"]["provenance"] == "inferred"
        assert "pipeline.serial" not in findings

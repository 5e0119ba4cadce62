"""Every scenario of the emulator yields exactly its findings: live through collector and session, and by `ppscope check`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from ppscope import emulator
from ppscope.collect.client import CollectorProcess, RecordedStream
from ppscope.session import Session
from ppscope.views import Finding, Screen
from tests.terminal.terminal import all_gone

PPSCOPE = Path(sys.executable).with_name("ppscope")
STAYS_S = 3.0
"""For so long all that is wanted was shown when the watching ends."""
NOTHING_S = 9.0
"""So long to see that nothing comes where nothing is wanted."""
AT_MOST_S = 60.0
"""A crowded machine sees everything, but later."""
CHECKED = ("serial", "imbalanced", "idle")
ALONE = "busy-host"
"""Its scheduler burns a core, which no other scenario may want meanwhile."""
EXPECTED: dict[str, tuple[set[str], set[str]]] = {
    "serial": (
        {"pipeline.serial", "graphs.disabled_by_flag", "gpu.idle_while_serving"},
        set(),
    ),
    "healthy": (set(), set()),
    "eager": ({"graphs.batch_over_captured"}, set()),
    "imbalanced": ({"pipeline.imbalance"}, set()),
    "spinning": (set(), {"gpu.spinning", "load.too_few_requests"}),
    "throttled": ({"gpu.throttled"}, set()),
    "idle": (set(), set()),
    "slow-links": ({"pipeline.bubbles"}, set()),
    "late-sync": ({"pipeline.last_stage_sync"}, set()),
    "unpadded": ({"graphs.eager_decode"}, set()),
    "blocked": ({"server.queue_blocked"}, set()),
    ALONE: ({"host.cpu_bound"}, set()),
}
"""Findings above info, and those of severity info (design: the table of demo scenarios)."""


class Watched:
    """What a live view of a scenario showed: every screen about twice a second, and what `check` said of the same server."""

    def __init__(self) -> None:
        self.screens: list[tuple[float, Screen]] = []
        self.checked: subprocess.CompletedProcess[str] | None = None
        self.error: BaseException | None = None

    @property
    def last(self) -> dict[str, Finding]:
        return {finding.id: finding for finding in self.screens[-1][1].findings} if self.screens else {}

    def ever(self) -> set[str]:
        return {finding.id for _, screen in self.screens for finding in screen.findings}


def run_check(pid: int, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PPSCOPE), "check", str(pid), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )


def watch(scenario: str) -> Watched:
    seen = Watched()
    try:
        with emulator.start(scenario, 8 if scenario == "serial" else 4) as server:
            session = Session(CollectorProcess(["--pid", str(server.pid)]))
            try:
                began = complete_s = time.monotonic()
                wanted = set.union(*EXPECTED[scenario])
                while (now := time.monotonic()) - began < AT_MOST_S:
                    session.poll()
                    seen.screens.append((now - began, session.screen()))
                    complete_s = complete_s if wanted <= set(seen.last) else now
                    if now - complete_s >= (STAYS_S if wanted else NOTHING_S):
                        break
                    time.sleep(0.25)
            finally:
                session.close()
            if scenario in CHECKED:
                seen.checked = run_check(server.pid, "--json", "--seconds", "4")
    except BaseException as error:  # noqa: BLE001  told by the test that looks at this scenario
        seen.error = error
    return seen


@pytest.fixture(scope="module")
def watched() -> dict[str, Watched]:
    """All scenarios, a few at a time: each is some sleepy processes."""
    together = [scenario for scenario in EXPECTED if scenario != ALONE]
    with ThreadPoolExecutor(2) as pool:
        seen = dict(zip(together, pool.map(watch, together), strict=True))
    return {**seen, ALONE: watch(ALONE)}


@pytest.mark.parametrize("scenario", EXPECTED)
def test_a_scenario_yields_exactly_its_row(watched: dict[str, Watched], scenario: str) -> None:
    seen = watched[scenario]
    assert seen.error is None, seen.error
    above, infos = EXPECTED[scenario]
    shown = seen.last
    assert {name for name, finding in shown.items() if finding.severity != "info"} == above
    assert {name for name, finding in shown.items() if finding.severity == "info"} == infos
    assert seen.ever() <= above | infos, "nothing else was ever shown"


@pytest.mark.parametrize("scenario", EXPECTED)
def test_no_finding_flickers(watched: dict[str, Watched], scenario: str) -> None:
    seen = watched[scenario]
    for name in seen.ever():
        present = [any(f.id == name for f in screen.findings) for _, screen in seen.screens]
        changes = sum(a != b for a, b in pairwise(present))
        assert changes <= 1, f"{name} appeared once and stayed"


@pytest.mark.parametrize("scenario", CHECKED)
def test_check_says_the_same_in_json(watched: dict[str, Watched], scenario: str) -> None:
    done = watched[scenario].checked
    assert done is not None
    above, infos = EXPECTED[scenario]
    assert done.returncode == (1 if above else 0), done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert next(iter(found)) == "schema"
    assert found["schema"] == "ppscope.check/1"
    assert {f["id"] for f in found["findings"]} == above | infos
    assert found["server"]["version"] == "0.5.23"
    stages = found["stages"]
    assert [stage["pp"] for stage in stages] == list(range(found["server"]["pp_size"]))
    assert all((stage["busy_fraction"] is None) == (stage["busy_source"] is None) for stage in stages)
    assert (stages[0]["busy_source"] == "metric") is (scenario == "imbalanced")
    assert all(rank["gpu"]["uuid"].startswith("GPU-") for stage in stages for rank in stage["ranks"])
    slots = found["micro_batches"]
    assert slots["slots"] == found["server"]["pp_size"]
    assert (slots["occupied_mean"] is None) is (scenario == "idle")
    for finding in found["findings"]:
        assert finding["evidence"]
        assert finding["provenance"] in ("exact", "sampled", "inferred")
        assert finding["remedy"]


class TestSerial:
    """The story of the demo, in words a user can paste."""

    def test_the_remedy_covers_every_request(self, watched: dict[str, Watched]) -> None:
        serial = watched["serial"].last["pipeline.serial"]
        assert "--pp-max-micro-batch-size 1 (at most 1 × 8 = 8" in serial.remedy
        assert "/set_internal_state" in serial.remedy
        assert serial.provenance == "sampled"

    def test_running_requests_are_inferred(self, watched: dict[str, Watched]) -> None:
        load = watched["serial"].screens[-1][1].header.load
        assert (load.running, load.running_provenance) == (8, "inferred")

    def test_no_number_is_predicted_without_busy_evidence(self, watched: dict[str, Watched]) -> None:
        assert "Predicted" not in watched["serial"].last["pipeline.serial"].remedy


def test_imbalance_names_the_stage_and_a_split(watched: dict[str, Watched]) -> None:
    found = [f for _, screen in watched["imbalanced"].screens for f in screen.findings if f.id == "pipeline.imbalance"]
    assert {finding.stage for finding in found} == {3}
    assert all("SGLANG_PP_LAYER_PARTITION=" in finding.remedy for finding in found)
    assert any("Predicted" in finding.remedy for finding in found), "not while a figure that it rests on is missing"


def test_text_fits_eighty_columns_and_can_be_pasted() -> None:
    with emulator.start("serial", 4) as server:
        done = run_check(server.pid, "--seconds", "3")
    assert done.returncode == 1, done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "eager launches" in done.stdout, "phases have the names that the view gives them"
    assert "recv_" not in done.stdout
    command = done.stdout[done.stdout.index("curl ") :].split("\n\n", maxsplit=1)[0]
    joined = " ".join(part.strip() for part in command.replace("\\\n", " ").splitlines())
    assert json.loads(joined.rpartition("-d '")[2].rstrip("'")) == {"server_args": {"pp_max_micro_batch_size": 2}}


def test_what_was_waited_for_in_vain_is_said() -> None:
    """Settings that never come: the look is longer, and ends; what rests on them is not claimed."""
    with emulator.start("serial", 2, extra=("--hang-http", "/server_info")) as server:
        found = json.loads(run_check(server.pid, "--json", "--seconds", "2").stdout)
        text = run_check(server.pid, "--seconds", "1").stdout
    assert "settings" in found["lacking"]
    assert found["graphs"]["decode"]["resolved"] is None
    assert "stopped without" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_no_server_is_one_line_and_exit_3() -> None:
    done = run_check(2**22 - 3)
    assert done.returncode == 3
    assert done.stdout == ""
    assert "no process" in done.stderr
    assert "ppscope attach" not in done.stderr, "the remedy is for this command"
    assert len(done.stderr.splitlines()) <= 2


def test_a_target_that_ends_is_exit_4() -> None:
    with emulator.start("serial", 2) as server:
        threading.Timer(2.5, lambda: os.kill(server.pid, signal.SIGTERM)).start()
        done = run_check(server.pid, "--seconds", "30")
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", ["check", "snapshot", "record"])
def test_a_signal_is_said_by_the_exit_code_and_leaves_nothing(
    tmp_path: Path, command: str, number: signal.Signals
) -> None:
    output = tmp_path / "run.pps"
    words = [] if command == "check" else ["-o", str(output)]
    with emulator.start("serial", 2) as server:
        process = subprocess.Popen(
            [str(PPSCOPE), command, str(server.pid), "--seconds", "30", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(2.5)
        everything = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        _, said = process.communicate(timeout=10)
    assert process.returncode == 128 + number
    assert len(everything) >= 2
    assert all_gone(everything) == []
    if command == "record":
        assert RecordedStream.open(output).drain()
    else:
        assert said == ("" if number == signal.SIGINT else f"ppscope: ended by {number.name}\n")
    assert [path for path in tmp_path.iterdir() if path != output or command != "record"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--set", "nonsense"], 2, "KEY=VALUE"),
        (["--source", "/nonexistent"], 3, "no such folder"),
        ([str(2**22 - 3)], 3, "no process"),
    ],
)
def test_rules_with_bad_input(arguments: list[str], code: int, words: str) -> None:
    done = subprocess.run([str(PPSCOPE), "rules", *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_rules_of_an_emulated_server_are_none() -> None:
    with emulator.start("idle", 2) as server:
        done = subprocess.run(
            [str(PPSCOPE), "rules", str(server.pid)], capture_output=True, text=True, timeout=30, check=False
        )
    assert (done.returncode, done.stdout) == (3, "")
    assert "emulator" in done.stderr

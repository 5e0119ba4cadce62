"""One burst from question to result, against a profiler that writes, refuses, hangs, dies or never ends."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ppscope.probe.ring import started_ticks
from ppscope.records import (
    AnyRecord,
    Burst,
    BurstRank,
    BurstReport,
    BurstStatus,
    Fact,
    Rank,
    RankKey,
    Server,
)
from ppscope.sources import burst_folder
from ppscope.sources.burst_folder import VARIABLE
from ppscope.sources.burst_http import Profiler, Refusal
from ppscope.sources.burst_run import BurstRun, Patience
from ppscope.sources.server_keys import Keys
from ppscope.views import Finding
from tests.kineto import Pipeline
from tests.unit.tiny_http import eventually, living, raw, reply, tiny_http

QUICK = Patience(look_s=0.02, window_s=0.3, quiet_s=0.6, retry_s=0.1)


def server(pids: tuple[int, ...] = (), port: int | None = 1, **changes: Any) -> Server:
    pids = pids or (os.getpid(), os.getpid())
    ranks = tuple(
        Rank(RankKey(0, pp, 0), pid, started_ticks(pid) or 0, f"sglang::scheduler_PP{pp}")
        for pp, pid in enumerate(pids)
    )
    facts = (Fact("port.owned", "yes", "socket"), Fact("port.same_network", True, "socket"))
    made = Server(
        0, os.getpid(), 1, "launch_server", "serving", ranks, len(pids), 1, 1, version="0.5.23", device="cuda",
        host="127.0.0.1", port=port, facts=facts, pp_loop_size=len(pids),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


class FakeProfiler(Profiler):
    """Obeys as SGLang does, but hears only what comes after `deaf` stops; `stages` write on their own when `full`, else when stopped."""

    def __init__(
        self,
        stages: tuple[int, ...] = (0, 1),
        full: bool = True,
        refusal: Refusal | None = None,
        deaf: int = 0,
    ) -> None:
        super().__init__(server())
        self.deaf = deaf
        self.stages, self.full, self.refusal = stages, full, refusal
        self.asked: list[dict[str, Any]] = []
        self.stops: list[float] = []
        self.pipeline = Pipeline([1_000_000, 2_000_000], leaks=[(1, 7, "late_kernel")]).build()

    def start(self, body: dict[str, Any]) -> Refusal | None:
        self.asked.append(body)
        if self.refusal is None and self.full:
            self._write()
        return self.refusal

    def stop(self, read_s: float = 180.0) -> str | None:
        self.stops.append(read_s)
        if len(self.stops) <= self.deaf:
            return "no answer"
        if not self.full:
            self._write()
        return None

    def _write(self) -> None:
        body = self.asked[-1]
        for stage in self.stages:
            name = f"{body['profile_prefix']}-1.5-TP-0-PP-{stage}.trace.json.gz"
            self.pipeline.traces[stage].write(Path(body["output_dir"]) / name)


class Told:
    """What a run said."""

    def __init__(self) -> None:
        self.records: list[AnyRecord] = []

    def __call__(self, record: AnyRecord) -> None:
        self.records.append(record)

    @property
    def states(self) -> list[BurstStatus]:
        return [record for record in self.records if isinstance(record, BurstStatus)]

    @property
    def ranks(self) -> list[BurstRank]:
        return [record for record in self.records if isinstance(record, BurstRank)]

    def text(self) -> str:
        return "\n".join(f"{status.state}: {status.message} {status.remedy}" for status in self.states)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(burst_folder, "PARENTS", ())
    return tmp_path


def run(
    profiler: Profiler,
    told: Told,
    of: Server | None = None,
    meanwhile: Callable[[BurstRun], None] | None = None,
    **wish: Any,
) -> BurstRun:
    burst = BurstRun(told, of or server(), Burst(**{"rounds": 2, **wish}), profiler, QUICK)
    burst.start()
    if meanwhile is not None:
        meanwhile(burst)
    assert eventually(lambda: not burst.active), told.text()
    return burst


def left(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def test_every_stage_is_read_once_its_file_is_whole_and_the_folder_goes(own_folder: Path) -> None:
    profiler, told = FakeProfiler(), Told()
    run(profiler, told)
    assert [status.state for status in told.states][-2:] == ["reading", "done"]
    assert told.states[-1].message == "2 of 2 ranks read"
    assert {state.state for state in told.states[-1].ranks} == {"done"}
    assert profiler.stops == [], "a profile that ended by itself is not stopped"
    assert left(own_folder) == []
    body = profiler.asked[0]
    assert body["num_steps"] == 4
    assert body["with_stack"] is False
    assert body["record_shapes"] is False
    assert body["activities"] == ["CPU", "GPU"]
    assert body["profile_id"] == body["profile_prefix"]
    assert [rank.rank.pp for rank in told.ranks] == [0, 1]
    second = told.ranks[1]
    assert len(second.steps) == 10
    assert [step.verdict for step in second.steps].count("leak") == 1
    assert [launch.kernel for launch in second.launches if not launch.expected] == ["late_kernel"]
    assert sum(second.gpu_unexpected) == 1
    assert max(*second.gpu_starts_ns, *second.host_starts_ns) <= second.end_ns - second.start_ns
    truth = profiler.pipeline.busy_fractions()
    assert [round(rank.busy_fraction or 0, 3) for rank in told.ranks] == [round(share, 3) for share in truth]
    report = next(record for record in told.records if isinstance(record, BurstReport))
    findings = msgspec.msgpack.decode(report.findings, type=list[Finding])
    assert "graphs.eager_leak" in {finding.id for finding in findings}


def test_times_are_put_on_the_monotonic_clock() -> None:
    profiler, told = FakeProfiler(), Told()
    before = time.monotonic_ns() - time.time_ns()
    run(profiler, told)
    shift = told.ranks[0].start_ns - min(start for start, _ in profiler.pipeline.work[0])
    assert abs(shift - before) < 1_000_000_000


def test_a_refusal_is_told_and_nothing_is_stopped(own_folder: Path) -> None:
    profiler, told = FakeProfiler(refusal=Refusal("a profile runs already", "stop it", started=False)), Told()
    run(profiler, told)
    assert told.states[-1].state == "failed"
    assert "a profile runs already" in told.text()
    assert profiler.stops == [], "it is somebody else's profile"
    assert left(own_folder) == []


def test_a_start_that_may_have_been_heard_is_stopped(own_folder: Path) -> None:
    profiler, told = FakeProfiler(refusal=Refusal("no answer within 60 s", "", started=None), full=False), Told()
    run(profiler, told)
    assert len(profiler.stops) == 1
    assert told.states[-1].state == "done"
    assert left(own_folder) == []


def test_a_window_that_does_not_fill_is_stopped_once_and_said(own_folder: Path) -> None:
    profiler, told = FakeProfiler(full=False), Told()
    run(profiler, told)
    assert len(profiler.stops) == 1
    assert told.states[-1].state == "done"
    assert "too little traffic" in told.states[-1].message
    assert left(own_folder) == []


@pytest.mark.parametrize("deaf", [1, 2])
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_stop_that_fails_is_asked_for_again(cancelled: bool, deaf: int, own_folder: Path) -> None:
    profiler, told = FakeProfiler(full=False, deaf=deaf), Told()

    def cancel(burst: BurstRun) -> None:
        assert eventually(lambda: bool(profiler.asked))
        if cancelled:
            burst.cancel()

    run(profiler, told, meanwhile=cancel)
    assert len(profiler.stops) == deaf + 1
    assert told.states[-1].state == ("cancelled" if cancelled else "done")
    assert left(own_folder) == []


def test_a_profile_that_was_not_seen_to_stop_is_told_in_the_end(own_folder: Path) -> None:
    profiler, told = FakeProfiler(full=False, deaf=1000), Told()
    run(profiler, told)
    assert len(profiler.stops) > 2
    assert profiler.stops[-1] == 10.0, "once more at the end"
    assert told.states[-1].state == "failed"
    assert "may profile on" in told.states[-1].message
    assert "/stop_profile" in told.states[-1].remedy
    assert len(left(own_folder)) == 1


def test_a_stage_that_writes_nothing_is_named_and_the_folder_stays_for_it(own_folder: Path) -> None:
    profiler, told = FakeProfiler(stages=(0,)), Told()
    run(profiler, told)
    assert [(state.rank.pp, state.state) for state in told.states[-1].ranks] == [(0, "done"), (1, "missing")]
    assert "1 of 2 ranks read" in told.states[-1].message
    assert len(left(own_folder)) == 1, "a stage may still write there, and dies when it cannot"


def test_no_file_at_all_is_a_failure() -> None:
    told = Told()
    run(FakeProfiler(stages=()), told)
    assert told.states[-1].state == "failed"
    assert "no stage wrote a trace" in told.states[-1].message


def test_cancelling_stops_the_profile_and_throws_its_files_away(own_folder: Path) -> None:
    profiler, told = FakeProfiler(full=False), Told()

    def cancel(burst: BurstRun) -> None:
        assert eventually(lambda: bool(profiler.asked))
        burst.cancel()

    run(profiler, told, meanwhile=cancel)
    assert len(profiler.stops) == 1
    assert told.states[-1].state == "cancelled"
    assert told.ranks == []
    assert left(own_folder) == []


def test_leaving_stops_the_profile_and_waits_for_nothing(own_folder: Path) -> None:
    profiler, told = FakeProfiler(stages=(), full=False), Told()

    def leave(burst: BurstRun) -> None:
        assert eventually(lambda: told.states != [] and told.states[-1].state == "running")
        burst.leave()

    run(profiler, told, meanwhile=leave)
    assert len(profiler.stops) == 1
    assert len(left(own_folder)) == 1


def test_a_scheduler_that_dies_after_its_trace_is_named() -> None:
    with subprocess.Popen(["sleep", "60"]) as stage:
        told, profiler = Told(), FakeProfiler()

        def kill(burst: BurstRun) -> None:
            assert eventually(lambda: bool(profiler.asked))
            stage.kill()
            stage.wait()

        run(profiler, told, of=server((os.getpid(), stage.pid)), meanwhile=kill)
    assert told.states[-1].state == "failed"
    assert f"stage 1 (pid {stage.pid}) ended after the profile" in told.states[-1].message
    assert len(told.ranks) == 2, "what it wrote is read all the same"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": "loading"}, "loading"),
        ({"kind": "node"}, "no API"),
        ({"port": None}, "no HTTP port"),
        ({"ranks": ()}, "no scheduler"),
        ({"facts": (Fact("port.owned", "no", "socket"),)}, "could not be traced"),
        ({"facts": (Fact("port.owned", "unknown", "socket"),)}, "could not be traced"),
        ({"facts": (Fact("port.same_network", False, "socket"),)}, "another network namespace"),
        (
            {"facts": (Fact("port.owned", "yes", "socket"), Fact("env.SGLANG_PROFILE_V2", "1", "env"))},
            "SGLANG_PROFILE_V2",
        ),
        ({"ranks": (Rank(RankKey(0, 0, 0), 1 << 22, 5, "gone"),)}, "gone"),
    ],
)
def test_an_unfit_server_is_not_asked(changes: dict[str, Any], words: str) -> None:
    profiler, told = FakeProfiler(), Told()
    run(profiler, told, of=server(**changes))
    assert told.states[-1].state == "failed"
    assert words in told.states[-1].message
    assert profiler.asked == []


def test_a_folder_that_cannot_be_made_is_said_before_the_server_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
    profiler, told = FakeProfiler(), Told()
    run(profiler, told)
    assert told.states[-1].state == "failed"
    assert "nowhere" in told.states[-1].message
    assert VARIABLE in told.states[-1].remedy
    assert profiler.asked == []


ANSWERS = [
    (reply("Start profiling.\n"), None, None),
    (reply("", "500 Internal Server Error"), False, "a profile runs already"),
    (reply("", "404 Not Found"), False, "no /start_profile"),
    (reply("", "422 Unprocessable Entity"), False, "does not take"),
    (reply("", "403 Forbidden"), False, "refuses the API key"),
    (raw(b"\x00\x01garbage\r\n\r\n"), None, "not HTTP"),
    (raw(b""), None, "closed"),
]


@pytest.mark.parametrize(("answer", "started", "words"), ANSWERS)
def test_answers_of_the_server(answer: Any, started: bool | None, words: str | None) -> None:
    with tiny_http(start_profile=answer) as http:
        keys = Keys({"PPSCOPE_API_KEY": "key", "PPSCOPE_ADMIN_KEY": "admin"})
        refusal = Profiler(server(port=http.port), keys).start({"num_steps": 4})
        if words is None:
            assert refusal is None
            return
        assert refusal is not None
        assert words in refusal.message
        assert refusal.started is started
        assert all("admin" not in text for text in (refusal.message, refusal.remedy) if "PPSCOPE" not in text)


def test_the_admin_key_is_sent_only_when_asked_for() -> None:
    def guarded(sock: Any, path: str, head: str) -> None:
        allowed = "Bearer admin" in head
        (reply("ok") if allowed else reply("", "401 Unauthorized"))(sock, path, head)

    with tiny_http(start_profile=guarded) as http:
        profiler = Profiler(
            server(port=http.port, **living()), Keys({"PPSCOPE_API_KEY": "key", "PPSCOPE_ADMIN_KEY": "admin"})
        )
        assert profiler.start({"num_steps": 4}) is None
        assert ["Bearer" in head for head in http.seen] == [False, True, True]


def test_a_start_under_way_can_be_aborted() -> None:
    with tiny_http() as http:
        http.routes["/start_profile"] = http.hang
        profiler = Profiler(server(port=http.port), Keys({}))
        found: list[Refusal | None] = []
        thread = threading.Thread(target=lambda: found.append(profiler.start({"num_steps": 4})))
        thread.start()
        assert eventually(lambda: bool(http.seen))
        profiler.abort()
        thread.join(10)
        assert found
        assert found[0] is not None
        assert found[0].started is None


def test_a_refused_connection_did_not_start_anything() -> None:
    with tiny_http() as http:
        port = http.port
    refusal = Profiler(server(port=port), Keys({})).start({})
    assert refusal is not None
    assert refusal.started is False
    assert json.dumps(refusal.message)

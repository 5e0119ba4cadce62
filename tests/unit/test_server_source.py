"""The whole source against a small HTTP server that has real answers, and one that misbehaves; every part fails alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from ppscope.probe.ring import started_ticks
from ppscope.records import (
    AnyRecord,
    BatchLog,
    Fact,
    LoadSample,
    LogNote,
    Metric,
    ReadServerInfo,
    Server,
    Settings,
    SourceStatus,
)
from ppscope.sources import server_scrape
from ppscope.sources.server import ServerSource
from ppscope.sources.server_keys import Keys
from ppscope.target.server_info import CONFIG_PROBLEM
from tests.unit.tiny_http import Answer, eventually, living, raw, reply, tiny_http

DATA = Path(__file__).parent / "data" / "server"
OWNED = (Fact("port.owned", "yes", "socket"),)
BARE = Server(1, 0, 0, "", "", (), pp_size=2, tp_size=1, dp_size=1)


def data(name: str) -> bytes:
    return (DATA / name).read_bytes()


def healthy() -> dict[str, Answer]:
    return {
        "model_info": reply("{}"),
        "server_info": reply(data("server_info-0.5.23.json")),
        "metrics": reply(data("metrics-0.5.23.txt"), kind="text/plain"),
    }


class Watched:
    """A source with what it emitted."""

    def __init__(self, server: Server, environment: dict[str, str]) -> None:
        self.records: list[AnyRecord] = []
        self.source = ServerSource(self.records.append, Keys(environment))
        self.source.start(server)

    def statuses(self, name: str) -> list[SourceStatus]:
        return [r for r in list(self.records) if isinstance(r, SourceStatus) and r.name == name]

    def wait_for(self, name: str, state: str, words: str = "") -> SourceStatus:
        def there() -> bool:
            return any(s.state == state and words in s.message for s in self.statuses(name))

        assert eventually(there), f"{name} never said {state} {words!r}: {self.statuses(name)}"
        return next(s for s in self.statuses(name) if s.state == state and words in s.message)

    def wait_kind(self, kind: type, count: int = 1) -> None:
        assert eventually(lambda: sum(isinstance(r, kind) for r in list(self.records)) >= count), kind


Watch = Callable[..., Watched]


@pytest.fixture
def watch() -> Iterator[Watch]:
    started: list[Watched] = []

    def begin(
        port: int | None, *, facts: tuple[Fact, ...] = OWNED, environment: dict[str, str] | None = None, **more: object
    ) -> Watched:
        fields: dict[str, object] = {"kind": "launch_server", "state": "serving", "launcher_pid": 2**22 + 1, **more}
        server = msgspec.structs.replace(BARE, host="127.0.0.1", port=port, facts=facts, **fields)
        started.append(Watched(server, environment or {}))
        return started[-1]

    yield begin
    for watched in started:
        watched.source.stop()
        watched.source.stop()
    assert eventually(lambda: not any(thread.name.startswith("ppscope-") for thread in threading.enumerate()))


def test_a_healthy_server_gives_settings_load_and_metrics_and_nothing_else_is_asked(watch: Watch) -> None:
    with tiny_http(**healthy()) as server:
        watched = watch(server.port, launch_command=("python", "-m", "sglang.launch_server", "--pp-size", "2"))
        watched.wait_for("http", "ok")
        watched.wait_for("metrics", "ok")
        watched.wait_kind(LoadSample, 3)
        assert eventually(
            lambda: [r.origin for r in list(watched.records) if isinstance(r, Settings)] == ["requested", "resolved"]
        )
        first = next(r for r in watched.records if isinstance(r, LoadSample) and r.source == "metrics")
        assert (first.stage, first.running, first.in_flight) == (None, None, 8)
        assert any(isinstance(r, Metric) and r.name == "sglang:cuda_graph_passes_total" for r in watched.records)
        before = server.paths().count("/server_info")
        watched.source.obey(ReadServerInfo())
        assert eventually(lambda: server.paths().count("/server_info") == before + 1 == 2)
        assert set(server.paths()) == {"/model_info", "/server_info", "/metrics"}
        assert not any("Authorization" in head for head in server.seen)


def test_a_config_file_is_asked_for_too_and_outlives_its_launcher(watch: Watch, tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("disable-cuda-graph: true\n")
    command = ("python", "-m", "sglang.launch_server", "--config", str(file))
    there = watch(None, launch_command=command, launcher_pid=os.getpid())
    file.unlink()
    gone = watch(None, launch_command=command)
    there.source.update(msgspec.structs.replace(BARE, launcher_pid=os.getpid(), launch_command=command))
    asked = [[r.values for r in w.records if isinstance(r, Settings)] for w in (there, gone)]
    assert asked[0] == [{"config": str(file), "disable_cuda_graph": True}]
    assert ["No such" in str(values[CONFIG_PROBLEM]) for values in asked[1]] == [True]


def test_without_metrics_the_load_comes_from_shared_memory_on_new_servers(watch: Watch) -> None:
    routes = healthy() | {"v1__loads": reply(data("loads-0.5.23.json"))}
    del routes["metrics"]
    with tiny_http(**routes) as server:
        watched = watch(server.port, version="0.5.23")
        assert "--enable-metrics" in watched.wait_for("metrics", "off").remedy
        assert eventually(lambda: any(isinstance(r, LoadSample) and r.source == "loads" for r in list(watched.records)))
        assert server.paths().count("/metrics") == 1


@pytest.mark.parametrize(
    ("status", "asked"), [("503 Service Unavailable", 5), ("500 Internal Server Error", 5), ("404 Not Found", 1)]
)
def test_a_load_that_fails_is_asked_for_again_but_not_for_ever(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, status: str, asked: int
) -> None:
    monkeypatch.setattr(server_scrape, "LOADS_EVERY_S", 0.02)
    monkeypatch.setattr(server_scrape, "OLD_LOADS_EVERY_S", 0.02)
    routes = healthy() | {"v1__loads": reply("", status)}
    del routes["metrics"]
    with tiny_http(**routes) as server:
        watched = watch(server.port, version="0.5.23")
        assert eventually(lambda: server.paths().count("/v1/loads?include=core") == asked)
        time.sleep(0.3)
        assert server.paths().count("/v1/loads?include=core") == asked
        watched.wait_for("http", "ok")


def test_a_load_that_failed_once_comes_again(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_scrape, "OLD_LOADS_EVERY_S", 0.5)
    routes = healthy() | {"v1__loads": reply("", "503 Service Unavailable")}
    del routes["metrics"]
    with tiny_http(**routes) as server:
        watched = watch(server.port, version="0.5.23")
        assert eventually(lambda: "/v1/loads?include=core" in server.paths())
        server.routes["/v1/loads"] = reply(data("loads-0.5.23.json"))
        assert eventually(lambda: any(isinstance(r, LoadSample) and r.source == "loads" for r in list(watched.records)))


@pytest.mark.parametrize("version", ["0.5.9", "0.5.11", "0.5.14"])
def test_without_metrics_old_servers_are_not_asked_for_a_round_trip_that_they_log(watch: Watch, version: str) -> None:
    with tiny_http(model_info=reply("{}"), server_info=reply(f'{{"version": "{version}"}}')) as server:
        watched = watch(server.port, version=version)
        watched.wait_for("metrics", "off")
        watched.wait_kind(Settings)
        watched.wait_for("http", "ok")
        assert set(server.paths()) == {"/model_info", "/server_info", "/metrics"}


def test_a_server_info_that_hangs_is_degraded_and_the_rest_goes_on(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppscope.sources.server_ask.INFO_SLOW_S", 0.2)
    with tiny_http(**healthy()) as server:
        server.routes["/server_info"] = server.hang
        watched = watch(server.port)
        assert "has not answered for" in watched.wait_for("http", "degraded", "/server_info").message
        watched.wait_for("metrics", "ok")
        watched.wait_kind(Metric)
        assert server.paths().count("/server_info") == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (reply("oops", "500 Internal Server Error"), "answered 500"),
        (raw(b"garbage"), "not HTTP"),
        (raw(b""), "closed"),
        (reply("[1, 2"), "not JSON"),
        (reply("[]"), "not what SGLang answers"),
        (reply('{"x": "' + "y" * (9 << 20) + '"}'), "larger than 8 MB"),
    ],
    ids=["500", "garbage", "closed", "half", "not an object", "huge"],
)
def test_a_server_info_gone_wrong_is_one_line_of_status(watch: Watch, answer: Answer, words: str) -> None:
    with tiny_http(**healthy() | {"server_info": answer}) as server:
        watched = watch(server.port)
        assert watched.wait_for("http", "degraded", words).message.startswith("/server_info")
        watched.wait_for("metrics", "ok")
        assert not any(isinstance(r, Settings) for r in watched.records)


@pytest.mark.parametrize(("state_kb", "asked"), [(20, 1), (200, 1)])
def test_the_settings_of_many_data_parallel_ranks_are_read_and_too_many_are_not_asked_for_again(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, state_kb: int, asked: int
) -> None:
    """Each rank's state repeats them: 64 of 20 kB (0.5.23)."""
    monkeypatch.setattr("ppscope.sources.server_ask.INFO_RETRY_S", (0.05,))
    state = {"x": "y" * (state_kb << 10)}
    info = json.dumps({"version": "0.5.23", "pp_size": 2, "internal_states": [state] * 64})
    with tiny_http(**healthy() | {"server_info": reply(info)}) as server:
        watched = watch(server.port)
        if state_kb == 20:
            watched.wait_kind(Settings)
        else:
            watched.wait_for("http", "degraded", "larger than 8 MB")
        time.sleep(0.5)
        assert server.paths().count("/server_info") == asked


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (reply("x", "503 Service Unavailable"), "answered 503"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"), "closed"),
        (reply(b"sglang:num_queue_reqs 1\n" + b"# padding\n" * (1 << 20), kind="text/plain"), "larger than 8 MB"),
        (reply("<html></html>"), "no scheduler's figures"),
    ],
    ids=["503", "cut", "huge", "html"],
)
def test_metrics_gone_wrong_leave_http_alone(watch: Watch, answer: Answer, words: str) -> None:
    with tiny_http(**healthy() | {"metrics": answer}) as server:
        watched = watch(server.port)
        watched.wait_for("metrics", "degraded", words)
        watched.wait_for("http", "ok")
        watched.wait_kind(Settings)


def locked(key: str) -> dict[str, Answer]:
    def guard(name: str) -> Answer:
        inner = healthy()[name]

        def answer(sock: object, path: str, head: str) -> None:
            open_door = f"Authorization: Bearer {key}" in head or name == "metrics"
            (inner if open_door else reply("{}", "401 Unauthorized"))(sock, path, head)  # type: ignore[arg-type]

        return answer

    return {name: guard(name) for name in healthy()}


@pytest.mark.parametrize(
    "environment", [{"PPSCOPE_API_KEY": "k"}, {"PPSCOPE_API_KEY": "old", "PPSCOPE_ADMIN_KEY": "k"}]
)
def test_a_key_from_the_environment_opens_the_server(watch: Watch, environment: dict[str, str]) -> None:
    with tiny_http(**locked("k")) as server:
        watched = watch(server.port, environment=environment, **living())
        watched.wait_for("http", "ok")
        watched.wait_kind(Settings)
        assert "Authorization" not in server.seen[0] or "/metrics" in server.seen[0]


@pytest.mark.parametrize("how", ["told", "not yet told"])
def test_whoever_takes_the_port_of_a_server_that_ended_gets_no_key(watch: Watch, how: str) -> None:
    launcher = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ticks = started_ticks(launcher.pid) or 0
    with tiny_http(**locked("k")) as server:
        there = {"launcher_pid": launcher.pid, "launcher_started_ticks": ticks}
        watched = watch(server.port, environment={"PPSCOPE_API_KEY": "k"}, **there)
        watched.wait_for("http", "ok")
        watched.wait_kind(Settings)
        launcher.communicate(b"\n")
        asked = len(server.seen)
        if how == "told":
            gone = msgspec.structs.replace(BARE, port=server.port, state="gone", facts=OWNED, **there)
            watched.source.update(gone)
            watched.wait_for("http", "off", "the server is gone")
            time.sleep(0.3)  # one answer may be under way
            asked = len(server.seen)
            time.sleep(2.5)
            assert len(server.seen) == asked, "it is not asked at all"
        else:
            assert eventually(lambda: len(server.seen) > asked + 1)
            assert not any("Authorization" in head for head in server.seen[asked + 1 :])


@pytest.mark.parametrize(
    ("environment", "facts", "remedy"),
    [
        ({}, OWNED, "set PPSCOPE_API_KEY"),
        ({"PPSCOPE_API_KEY": "wrong"}, OWNED, "check PPSCOPE_API_KEY"),
        ({"PPSCOPE_API_KEY": "k"}, (), "run as the server's user"),
        ({"PPSCOPE_API_KEY": "k"}, (Fact("port.owned", "unknown", "socket"),), "run as the server's user"),
    ],
    ids=["none", "wrong", "unverified", "unknown"],
)
def test_without_the_right_key_the_remedy_is_named_and_metrics_still_come(
    watch: Watch, environment: dict[str, str], facts: tuple[Fact, ...], remedy: str
) -> None:
    with tiny_http(**locked("k")) as server:
        watched = watch(server.port, environment=environment, facts=facts, launch_command=("x", "--api-key", "k"))
        assert remedy in watched.wait_for("http", "degraded", "API key").remedy
        watched.wait_for("metrics", "ok")
        assert facts or not any("Authorization" in head for head in server.seen)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"facts": (Fact("port.owned", "no", "socket"),)}, "another process"),
        ({"facts": (Fact("port.owned", "no", "socket"),), "state": "loading"}, "does not listen"),
        ({"facts": (*OWNED, Fact("port.same_network", False, "socket"))}, "network namespace"),
        ({"state": "gone"}, "gone"),
        ({"kind": "node"}, "no API"),
    ],
)
def test_a_port_that_is_not_the_server_s_is_never_connected_to(
    watch: Watch, more: dict[str, object], words: str
) -> None:
    with tiny_http(**healthy()) as server:
        watched = watch(server.port, **more)
        watched.wait_for("http", "off", words)
        if more.get("kind") == "node":
            watched.wait_for("metrics", "ok")
            assert set(server.paths()) == {"/metrics"}
        else:
            watched.wait_for("metrics", "off", words)
            assert server.paths() == []


def test_a_server_that_comes_up_later_is_asked_then(watch: Watch) -> None:
    with tiny_http(**healthy()) as server:
        watched = watch(None, state="loading")
        watched.wait_for("http", "off", "no HTTP port")
        changed = Server(
            2, 5, 5, "launch_server", "serving", (), 2, 1, 1, host="0.0.0.0", port=server.port, facts=OWNED
        )
        watched.source.update(changed)
        watched.wait_for("http", "ok")
        watched.wait_kind(Settings)


@pytest.fixture
def logging_process(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    path = tmp_path / "server.log"
    with path.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=file, stderr=file)
    yield process.pid, path
    process.communicate(b"\n")


def test_the_log_is_followed_while_http_is_dead(watch: Watch, logging_process: tuple[int, Path]) -> None:
    pid, path = logging_process
    path.write_bytes(data("log-0.5.11.txt"))
    watched = watch(None, launcher_pid=pid)
    watched.wait_for("log", "ok")
    watched.wait_kind(BatchLog)
    history = list(watched.records)
    assert sum(isinstance(r, BatchLog) for r in history) >= 6
    assert any(isinstance(r, LogNote) and r.kind == "graph_disabled" for r in history)
    assert not any(isinstance(r, LoadSample) for r in history), "history is no present load"
    with path.open("ab") as file:
        file.write(
            b"[2026-11-29 23:54:22 PP0] Decode batch, #running-req: 3, #token: 5, token usage: 0.06, cuda graph: True, "
        )
        file.write(b"gen throughput (token/s): 12.50, #queue-req: 2\n")
    watched.wait_kind(LoadSample, 2)
    stage, whole = (r for r in watched.records if isinstance(r, LoadSample))
    assert (stage.stage, stage.running, stage.tokens_per_s) == (0, 3, 12.5)
    assert (whole.stage, whole.running, whole.queued, whole.tokens_per_s) == (None, None, 2, 12.5)


def test_lines_of_an_earlier_run_in_the_same_file_are_left_out(watch: Watch, logging_process: tuple[int, Path]) -> None:
    pid, path = logging_process
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time() + 1)).encode()
    rest = b" PP0] Decode batch, #running-req: %d, #queue-req: 0\n"
    path.write_bytes(b"[2020-01-01 00:00:00" + rest % 1 + b"[" + now + rest % 2)
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    watched = watch(None, launcher_pid=pid, launcher_started_ticks=ticks)
    watched.wait_for("log", "ok")
    assert [r.running for r in watched.records if isinstance(r, BatchLog)] == [2]


def test_a_fault_of_ours_is_said_and_the_others_go_on(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("ppscope.sources.server_scrape.to_metrics", broken)
    with tiny_http(**healthy()) as server:
        watched = watch(server.port)
        watched.wait_for("metrics", "degraded", "planted")
        watched.wait_for("http", "ok")


def test_stopping_does_not_wait_for_a_request_that_hangs(watch: Watch) -> None:
    with tiny_http() as server:
        for path in ("/model_info", "/metrics"):
            server.routes[path] = server.hang
        watched = watch(server.port)
        assert eventually(lambda: len(server.seen) == 2)
        watched.source.stop()
        assert eventually(lambda: not any(thread.name.startswith("ppscope-") for thread in threading.enumerate()))
        assert not server.released.is_set()
        assert watched.statuses("http") == watched.statuses("metrics") == [], "an answer that we cut is no trouble"

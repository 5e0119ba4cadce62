"""The emulated server as its neighbours see it: processes, stacks, HTTP, log, profiles, and how it ends."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import ppscope.emulator
from ppscope.emulator import EmulatedServer, EmulatorError

PYSPY = shutil.which("py-spy") or str(Path(sys.executable).parent / "py-spy")
LOG_LINE = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d PP(\d+)\] Decode batch, #running-req: (\d+), #token: (\d+), token usage: (\d\.\d\d), "
    r"cuda graph: (True|False), gen throughput \(token/s\): (\d+\.\d\d), #queue-req: (\d+)"
)


def wait_until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    """Wait for something that has to happen; the limit only ends a hopeless wait."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not seen: {what}"
        time.sleep(0.05)


def get(server: EmulatedServer, path: str, body: dict[str, Any] | None = None) -> str:
    """Answer of the server to a GET, or a POST with `body`."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(server.url + path, data=data), timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def titles(server: EmulatedServer) -> dict[str, psutil.Process]:
    """Children of the launcher by command line, without padding."""
    found: dict[str, psutil.Process] = {}
    for child in psutil.Process(server.pid).children():
        try:
            found[" ".join(child.cmdline()).strip()] = child
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def gone(processes: list[psutil.Process]) -> bool:
    """Whether all are gone, or zombies that somebody else has to reap."""
    return all(not p.is_running() or p.status() == psutil.STATUS_ZOMBIE for p in processes)


def everything(server: EmulatedServer) -> list[psutil.Process]:
    """The launcher and all below it."""
    launcher = psutil.Process(server.pid)
    return [launcher, *launcher.children(recursive=True)]


@pytest.fixture(scope="module")
def serial() -> Iterator[EmulatedServer]:
    """The default scenario, PP 3."""
    with ppscope.emulator.start("serial", pp=3) as server:
        yield server


def dump(pid: int) -> list[dict[str, Any]]:
    """Frames of a process's main thread, innermost first; the caller repeats a failed or torn reading."""
    command = [PYSPY, "dump", "--json", "--locals", "--nonblocking", "--full-filenames", "--pid", str(pid)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return []
    threads = json.loads(result.stdout)
    frames: list[dict[str, Any]] = next((t["frames"] for t in threads if t["thread_name"] == "MainThread"), [])
    return frames


def frames_until(pid: int, wanted: Callable[[list[dict[str, Any]]], bool], what: str) -> list[dict[str, Any]]:
    """Dump until a stack is as wanted."""
    seen: list[dict[str, Any]] = []

    def look() -> bool:
        seen[:] = dump(pid)
        return bool(seen) and wanted(seen)

    wait_until(look, what)
    return seen


def names(frames: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(function without its class, end of the file's path) of each frame."""
    return [(frame["name"].rpartition(".")[2], "/".join(frame["filename"].split("/")[-2:])) for frame in frames]


def values(frames: list[dict[str, Any]], function: str) -> dict[str, str]:
    """Locals of a function's frame."""
    frame = next(frame for frame in frames if frame["name"].rpartition(".")[2] == function)
    return {local["name"]: local["repr"] for local in frame["locals"]}


def test_process_tree_looks_like_sglangs(serial: EmulatedServer) -> None:
    """Launcher with its own command line; titled, padded schedulers whose environment is wiped; truncated thread names."""
    launcher = psutil.Process(serial.pid)
    assert launcher.cmdline()[1:3] == ["-m", "sglang.launch_server"]
    assert "--pp-size 3" in " ".join(launcher.cmdline())
    assert f"--port {serial.port}" in " ".join(launcher.cmdline())
    assert launcher.environ()["PPSCOPE_EMULATED_GPUS"] == f"{serial.folder}/gpus.json"
    assert launcher.environ()["CUDA_VISIBLE_DEVICES"] == "0,1,2"
    found = titles(serial)
    for title in ("sglang::scheduler_PP0", "sglang::scheduler_PP1", "sglang::scheduler_PP2", "sglang::detokenizer"):
        child = found[title]
        raw = Path(f"/proc/{child.pid}/cmdline").read_bytes()
        assert raw.startswith(title.encode() + b"  ")
        assert Path(f"/proc/{child.pid}/comm").read_text().strip() == title[:15]
        assert not Path(f"/proc/{child.pid}/environ").read_bytes().strip(b"\0 ")
    assert any("resource_tracker" in title for title in found)
    assert len(found) == 5
    assert os.readlink(f"/proc/{serial.pid}/fd/1") == f"{serial.folder}/server.log"
    listening = {c.laddr.port for c in launcher.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert listening == {serial.port}


@pytest.mark.skipif(not Path(PYSPY).exists(), reason="py-spy is not installed")
def test_stacks_are_sglangs(serial: EmulatedServer) -> None:
    """Function and file names of the loop, the rank's arguments, and the micro-batch numbers, all readable from outside."""
    pid = titles(serial)["sglang::scheduler_PP1"].pid
    eager = frames_until(pid, lambda f: ("execute", "runner/eager_runner.py") in names(f), "an eager forward pass")
    seen = names(eager)
    order = [
        ("execute", "runner/eager_runner.py"),
        ("forward", "model_executor/model_runner.py"),
        ("forward_batch_generation", "managers/tp_worker.py"),
        ("run_batch", "managers/scheduler.py"),
        ("_pp_launch_batch", "managers/scheduler_pp_mixin.py"),
        ("event_loop_pp", "managers/scheduler_pp_mixin.py"),
        ("_dispatch_event_loop_once", "managers/scheduler.py"),
        ("dispatch_event_loop", "managers/scheduler.py"),
        ("run_event_loop", "managers/scheduler.py"),
        ("run_scheduler_process", "managers/scheduler.py"),
    ]
    positions = [seen.index(frame) for frame in order]
    assert positions == sorted(positions)
    loop = values(eager, "event_loop_pp")
    assert (loop["mb_id"], loop["next_mb_id"], loop["server_is_idle"]) == ("0", "1", "False")
    assert loop["cur_batch"] != "None"
    rank = values(eager, "run_scheduler_process")
    assert (rank["gpu_id"], rank["pp_rank"], rank["tp_rank"], rank["dp_rank"]) == ("1", "1", "0", "None")
    waiting = frames_until(pid, lambda f: ("recv_object", "distributed/parallel_state.py") in names(f), "a receive")
    assert ("_pp_recv_dict_from_prev_stage", "managers/scheduler_pp_mixin.py") in names(waiting) or (
        "_pp_recv_proxy_tensors",
        "managers/scheduler_pp_mixin.py",
    ) in names(waiting)


def test_only_one_slot_has_a_batch(serial: EmulatedServer) -> None:
    """The log says it: every decode batch holds all eight requests, eager, on every stage."""
    log = Path(serial.folder) / "server.log"
    wait_until(lambda: len({m[1] for m in LOG_LINE.finditer(log.read_text())}) == 3, "a decode line of every stage")
    assert {(m[2], m[5], m[7]) for m in LOG_LINE.finditer(log.read_text())} == {("8", "False", "0")}


def test_http_answers(serial: EmulatedServer) -> None:
    """Every path a tool asks, in shape; unknown paths are 404."""
    info = json.loads(get(serial, "/server_info"))
    assert (info["version"], info["pp_size"], info["port"]) == ("0.5.23", 3, serial.port)
    assert info["cuda_graph_config"]["decode"]["backend"] == "disabled"
    assert info["launch_command"].startswith("python -m sglang.launch_server")
    assert json.loads(get(serial, "/model_info"))["model_path"] == "moonshotai/Kimi-K2-Instruct"
    assert json.loads(get(serial, "/v1/loads"))["loads"][0]["dp_rank"] == 0
    assert get(serial, "/health") == ""
    passes = r'sglang:cuda_graph_passes_total\{.*pp_rank="2".*mode="decode_none"\} ([1-9]\d*)\.0'
    wait_until(lambda: re.search(passes, get(serial, "/metrics")), "eager decode steps of the last stage")
    assert re.search(r'sglang:cuda_graph_passes_total\{.*mode="decode_cuda_graph"\} 0\.0', get(serial, "/metrics"))
    with pytest.raises(urllib.error.HTTPError) as unknown:
        get(serial, "/nothing")
    assert unknown.value.code == 404
    with pytest.raises(urllib.error.HTTPError) as malformed:
        get(serial, "/start_profile", {"num_steps": "many"})
    assert malformed.value.code == 422


def test_gpus_file_is_always_whole(serial: EmulatedServer) -> None:
    """A reader never sees half a file, and every GPU belongs to its stage."""
    pids = [titles(serial)[f"sglang::scheduler_PP{rank}"].pid for rank in range(3)]
    for _ in range(200):
        gpus = json.loads(Path(serial.folder, "gpus.json").read_text())
        assert [gpu["pids"] for gpu in gpus] == [[pid] for pid in pids]
    assert all(gpu["power_limit_w"] == 600 and 70 < gpu["power_w"] < 200 for gpu in gpus)


def whole_traces(folder: Path, count: int) -> list[dict[str, Any]]:
    """Traces in a folder once `count` of them are whole."""
    traces: list[dict[str, Any]] = []

    def whole() -> bool:
        traces.clear()
        for path in sorted(folder.glob("*.trace.json.gz")):
            try:
                with gzip.open(path, "rt") as file:
                    traces.append(json.load(file))
            except (EOFError, ValueError):
                return False
        return len(traces) == count

    wait_until(whole, f"{count} whole traces")
    return traces


def steps_of(trace: dict[str, Any]) -> list[str]:
    """Names of the decode and prefill steps of a trace, in order."""
    spans = [event for event in trace["traceEvents"] if event["name"].startswith("step[")]
    return [span["name"] for span in sorted(spans, key=lambda span: float(span["ts"]))]


def test_profile_writes_a_trace_for_every_stage(serial: EmulatedServer, tmp_path: Path) -> None:
    """As many steps as asked, the same ones on every stage, launched eager, one file a stage with the part in its name."""
    body = {"num_steps": 3, "output_dir": str(tmp_path / "deep"), "profile_id": "abc", "profile_prefix": "pre"}
    assert get(serial, "/start_profile", body) == "Start profiling.\n"
    traces = whole_traces(tmp_path / "deep", 3)
    assert [path.name for path in sorted((tmp_path / "deep").iterdir())] == [
        f"pre-abc-TP-0-PP-{rank}.trace.json.gz" for rank in range(3)
    ]
    assert [trace["distributedInfo"]["rank"] for trace in traces] == [0, 1, 2]
    assert len(steps_of(traces[0])) == 3
    assert steps_of(traces[0]) == steps_of(traces[1]) == steps_of(traces[2])
    for trace in traces:
        launches = {event["name"] for event in trace["traceEvents"] if event.get("cat") == "cuda_runtime"}
        assert launches == {"cudaLaunchKernel", "cudaLaunchKernelExC"}


def test_healthy_replays_and_overlaps(tmp_path: Path) -> None:
    """Decode replays graphs, and the stages' kernels run at the same time."""
    with ppscope.emulator.start("healthy", pp=3) as server:
        replayed = r'pp_rank="2".*mode="decode_cuda_graph"\} ([1-9]\d*)\.0'
        wait_until(lambda: re.search(replayed, get(server, "/metrics")), "a replayed decode step")
        get(server, "/start_profile", {"num_steps": 9, "output_dir": str(tmp_path)})
        traces = whole_traces(tmp_path, 3)
    spans: list[list[tuple[float, float]]] = []
    for trace in traces:
        events = trace["traceEvents"]
        assert any(event["name"] == "cudaGraphLaunch" for event in events)
        kernels = [event for event in events if event.get("cat") == "kernel" and event["tid"] == 7]
        base = trace["baseTimeNanoseconds"] / 1e3
        spans.append([(base + kernel["ts"], kernel["dur"]) for kernel in kernels])
    start = max(min(ts for ts, _ in stage) for stage in spans)
    end = min(max(ts + dur for ts, dur in stage) for stage in spans)
    busy = [sum(dur for ts, dur in stage if start <= ts <= end) / (end - start) for stage in spans]
    assert sum(busy) > 1.5, f"stages take turns: {busy}"


def test_tensor_parallel_ranks(tmp_path: Path) -> None:
    """Titles name both ranks, and every rank gets the requests of its stage's first."""
    with ppscope.emulator.start("healthy", pp=2, tp=2) as server:
        found = titles(server)
        assert {f"sglang::scheduler_PP{pp}_TP{tp}" for pp in (0, 1) for tp in (0, 1)} <= set(found)
        get(server, "/start_profile", {"num_steps": 2, "output_dir": str(tmp_path)})
        traces = whole_traces(tmp_path, 4)
    assert {tuple(steps_of(trace)) for trace in traces} == {tuple(steps_of(traces[0]))}
    assert sorted(trace["distributedInfo"]["rank"] for trace in traces) == [0, 1, 2, 3]


@pytest.mark.parametrize("how", ["stop", "sigterm", "sigint", "kill", "kill scheduler"])
def test_nothing_is_left(how: str) -> None:
    """However it ends, no process and no file remain."""
    server = ppscope.emulator.start("serial", pp=2)
    processes = everything(server)
    assert len(processes) == 5
    try:
        if how == "stop":
            assert server.stop() == 0
        elif how == "kill scheduler":
            os.kill(titles(server)["sglang::scheduler_PP1"].pid, signal.SIGKILL)
            assert server.process.wait(20) == 1
        else:
            number = {"sigterm": signal.SIGTERM, "sigint": signal.SIGINT, "kill": signal.SIGKILL}[how]
            os.kill(server.pid, number)
            assert server.process.wait(20) == (-number if how == "kill" else 0)
        wait_until(lambda: gone(processes), "the end of every process")
        wait_until(lambda: not Path(server.folder).exists(), "the removal of the private folder")
    finally:
        server.stop()


def test_it_ends_with_the_process_that_started_it() -> None:
    """The starter is killed without a chance to stop its server."""
    code = (
        "import ppscope.emulator, time; s = ppscope.emulator.start('serial', pp=2); "
        "print(s.pid, s.folder, flush=True); time.sleep(600)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd="/")
    assert starter.stdout is not None
    with starter.stdout:
        pid, folder = starter.stdout.readline().split()
        launcher = psutil.Process(int(pid))
        processes = [launcher, *launcher.children(recursive=True)]
        starter.kill()
        starter.wait()
    wait_until(lambda: gone(processes), "the end of every process")
    wait_until(lambda: not Path(folder).exists(), "the removal of the private folder")


def test_a_folder_left_by_a_killed_group_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start removes it, and touches no other folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    first = ppscope.emulator.start("serial", pp=2)
    for process in everything(first)[::-1]:
        process.kill()
    first.stop()
    (tmp_path / "ppscope-emulator-mine").mkdir()
    assert Path(first.folder).exists()
    with ppscope.emulator.start("serial", pp=2) as second:
        assert {path.name for path in tmp_path.iterdir()} == {"ppscope-emulator-mine", Path(second.folder).name}


def test_a_loading_server_has_untitled_children_and_no_port() -> None:
    """Spawned, without titles, nothing listening; ready later."""
    with ppscope.emulator.start("healthy", pp=2, wait_until="started", extra=("--load-seconds", "2")) as server:
        spawned = [title for title in titles(server) if "spawn_main" in title]
        assert len(spawned) >= 2
        with pytest.raises(urllib.error.URLError):
            get(server, "/model_info")
        server.wait_for("ready")
        assert "sglang::scheduler_PP1" in titles(server)
        assert get(server, "/health") == ""


def test_a_killed_stage_leaves_the_others_waiting() -> None:
    """The stage is gone for good; the launcher and the other stage stay, and HTTP answers."""
    with ppscope.emulator.start("serial", pp=2, extra=("--kill-stage-after", "0:1")) as server:
        launcher = psutil.Process(server.pid)
        wait_until(lambda: "sglang::scheduler_PP1" not in titles(server), "the stage's end")
        time.sleep(1.2)  # longer than the launcher's own look at its children
        assert launcher.is_running()
        assert "sglang::scheduler_PP0" in titles(server)
        assert get(server, "/health") == ""


def test_a_restart_has_the_same_port_and_new_processes() -> None:
    """The second launcher has another pid; stopping ends supervisor and server."""
    with ppscope.emulator.start("serial", pp=2, extra=("--restart-after", "1")) as server:
        first, port, old = server.pid, server.port, everything(server)
        server.wait_for("ready")
        assert server.pid != first
        assert server.port == port
        assert gone(old)
        new = everything(server)
        assert get(server, "/health") == ""
    wait_until(lambda: gone(new), "the end of every process")
    assert server.process.returncode == 0


def test_a_path_can_hang() -> None:
    """The others answer meanwhile."""
    with ppscope.emulator.start("serial", pp=2, extra=("--hang-http", "/server_info")) as server:
        with pytest.raises(TimeoutError):
            urllib.request.urlopen(server.url + "/server_info", timeout=0.3)
        assert get(server, "/health") == ""


def test_a_taken_port_is_one_line(serial: EmulatedServer) -> None:
    """No traceback, status 1; the handle raises."""
    command = [sys.executable, "-m", "ppscope.emulator", "--port", str(serial.port)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "cannot start" in result.stderr
    with pytest.raises(EmulatorError):
        ppscope.emulator.start("serial", pp=2, port=serial.port)


def test_serve_only_ends_with_its_server() -> None:
    """A launcher that somebody killed leaves nothing to keep up."""
    command = [sys.executable, "-m", "ppscope", "demo", "--scenario", "healthy", "--pp", "2", "--serve-only"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        os.kill(int(demo.stdout.readline()), signal.SIGKILL)
        _, said = demo.communicate(timeout=20)
    assert (demo.returncode, said) == (4, "ppscope: the emulated server ended\n")


def test_a_live_limit_is_told_by_the_running_server() -> None:
    """The demo's own fix: answered as SGLang answers, and seen in its state."""
    with ppscope.emulator.start("serial", pp=2) as server:
        assert json.loads(get(server, "/set_internal_state", {"server_args": {"pp_max_micro_batch_size": 4}})) == [True]
        state = json.loads(get(server, "/server_info"))["internal_states"][0]
        assert state["pp_max_micro_batch_size"] == 4
        with pytest.raises(urllib.error.HTTPError, match="422"):
            get(server, "/set_internal_state", {"args": {}})

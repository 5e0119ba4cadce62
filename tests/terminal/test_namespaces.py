"""A server in PID, mount and network namespaces of its own, looked at from outside and from inside, with the real kernel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from ppscope.collect.client import RecordedStream
from ppscope.records import (
    AnyRecord,
    BatchLog,
    GpuSample,
    HostSamples,
    LoopSample,
    RankKey,
    Server,
    SourceStatus,
    StackDef,
    StackSpans,
)
from tests.fake_nvml import fake_nvml_env
from tests.terminal.faults_tools import collector_of, leave, live
from tests.terminal.terminal import PPSCOPE, Terminal
from tests.unit.tiny_http import TinyHttp, reply

STAGES = 3
UNSHARE = shutil.which("unshare")


def _can_unshare() -> bool:
    if os.geteuid() != 0 or UNSHARE is None or shutil.which("nsenter") is None:
        return False
    return subprocess.run([UNSHARE, "--fork", "--pid", "--mount-proc", "--net", "true"], check=False).returncode == 0


pytestmark = pytest.mark.skipif(not _can_unshare(), reason="needs root, unshare and nsenter")


@contextmanager
def isolated(private: Path, *options: str, network: bool = False) -> Iterator[int]:
    """An emulated server in its own PID and mount namespaces, its folder and shared memory where only it sees them; yields the
    launcher's pid here.
    """
    namespaces = ["--fork", "--kill-child", "--pid", "--mount", "--mount-proc", *(["--net"] if network else [])]
    safe = "-P " if sys.version_info >= (3, 11) else ""
    server = f"exec {sys.executable} {safe}-m ppscope.emulator --scenario serial --pp {STAGES} --seconds 120 {' '.join(options)}"
    net = "ip link set lo up && " if network else ""
    script = (
        f"mount -t tmpfs tmpfs {private} && mount -t tmpfs tmpfs /dev/shm && {net}cd / && TMPDIR={private} {server}"
    )
    assert UNSHARE is not None
    outer = subprocess.Popen(
        [UNSHARE, *namespaces, "sh", "-c", script], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    assert outer.stdout is not None
    try:
        for line in outer.stdout:
            if line.startswith("ready "):
                assert "pid=1 " in line  # the launcher is the first process of its namespace
                break
        yield psutil.Process(outer.pid).children()[0].pid
    finally:
        outer.kill()  # unshare waits for its child and heeds nothing else; its child, first of its namespace, ends with it
        outer.wait(10)
        outer.stdout.close()


@contextmanager
def chrooted(root: Path) -> Iterator[int]:
    """An emulated server whose root is a folder: the kernel names its files from our root, under that folder."""
    safe = "-P " if sys.version_info >= (3, 11) else ""
    server = (
        f"{sys.executable} {safe}-m ppscope.emulator --scenario serial --pp {STAGES} --seconds 120 --die-with-parent"
    )
    assert UNSHARE is not None
    outer = subprocess.Popen(
        [UNSHARE, "--mount", "sh", "-c", f"mount --rbind / {root} && exec chroot {root} {server}"],
        stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert outer.stdout is not None
    try:
        for line in outer.stdout:
            if line.startswith("ready "):
                break
        yield outer.pid
    finally:
        outer.terminate()
        outer.communicate(timeout=10)


def scheduler_pids(launcher: int) -> dict[int, int]:
    """Pipeline rank → pid as it is here."""
    found = {}
    for process in psutil.Process(launcher).children(recursive=True):
        title = "".join(process.cmdline())
        if "scheduler_PP" in title:
            found[int(title.split("scheduler_PP", 1)[1][0])] = process.pid
    return found


def inner_pid(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("NSpid")).split()[-1])


def recorded(path: Path, *command: str, env: dict[str, str] | None = None) -> list[AnyRecord]:
    """What `ppscope record` writes in a few seconds."""
    done = subprocess.run(
        [*command, "-o", str(path), "--seconds", "4"], capture_output=True, text=True, timeout=60, check=False,
        stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return RecordedStream.open(path).drain()


def last_server(records: list[AnyRecord]) -> Server:
    return [record for record in records if isinstance(record, Server)][-1]


def keys_of(records: list[AnyRecord], kind: type[HostSamples] | type[LoopSample] | type[StackSpans]) -> set[RankKey]:
    return {record.rank for record in records if isinstance(record, kind)}


EVERY_RANK = {RankKey(0, pp, 0) for pp in range(STAGES)}


def check_everything_is_seen(records: list[AnyRecord]) -> None:
    """Stacks of every main thread, dumps with micro-batches, run times, lines of the log."""
    server = last_server(records)
    # The kernel's number of a main thread is its process's, here as there; taken from /proc, not from what we say ourselves.
    main = {rank.key: rank.pid for rank in server.ranks}
    assert {rank.key: rank.main_tid for rank in server.ranks} == main
    assert {(record.rank, record.tid) for record in records if isinstance(record, HostSamples)} == set(main.items())
    stacks = {record.id for record in records if isinstance(record, StackDef)}
    spans = [record for record in records if isinstance(record, StackSpans) and record.tid == main[record.rank]]
    assert {record.rank for record in spans} == EVERY_RANK
    assert all(set(record.stacks) <= stacks for record in spans)
    dumps = [record for record in records if isinstance(record, LoopSample)]
    assert {record.rank for record in dumps} == EVERY_RANK
    assert any(record.mb_id is not None for record in dumps)
    for key in EVERY_RANK:
        rows = [record for record in records if isinstance(record, HostSamples) and record.rank == key]
        assert rows[-1].run_ns[-1] > rows[0].run_ns[0]
    assert any(isinstance(record, BatchLog) for record in records)


def test_from_outside_pids_stacks_log_and_gpus_are_right(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    with isolated(private) as launcher:
        assert list(private.iterdir()) == []  # its log and its GPUs' file cannot be seen under their names here
        pids = scheduler_pids(launcher)
        records = recorded(tmp_path / "outside.pps", str(PPSCOPE), "record", str(pids[1]))
        server = last_server(records)
        assert server.launcher_pid == launcher
        assert {rank.key.pp: rank.pid for rank in server.ranks} == pids
        assert {rank.key.pp: rank.ns_pid for rank in server.ranks} == {pp: inner_pid(pid) for pp, pid in pids.items()}
        check_everything_is_seen(records)
        assert {record.index for record in records if isinstance(record, GpuSample)} == set(range(STAGES))
        assert {rank.key.pp: rank.gpu.index if rank.gpu else None for rank in server.ranks} == {0: 0, 1: 1, 2: 2}
        metrics = [record for record in records if isinstance(record, SourceStatus) and record.name == "metrics"]
        assert metrics[-1].state == "ok"  # the port is shared: it is asked


def test_no_file_more_is_open_as_time_goes_by(tmp_path: Path) -> None:
    """Where nothing is as it is on a machine that runs tests: no folder of a probe in the shared memory, no key, no other server."""
    private = tmp_path / "private"
    private.mkdir()
    with isolated(private) as launcher, Terminal([str(PPSCOPE), "attach", str(launcher)]) as terminal:
        terminal.wait_for(live())
        collector = collector_of(terminal)

        def fewest() -> int:
            """Between windows of py-spy and pages, which come and go."""
            counts = []
            for _ in range(40):
                counts.append(collector.num_fds())
                time.sleep(0.05)
            return int(min(counts))

        before = fewest()
        time.sleep(6.0)
        assert fewest() < before + STAGES
        leave(terminal)


def test_a_server_whose_root_is_a_folder(tmp_path: Path) -> None:
    """Its package and version are found all the same; stacks are not looked at, since py-spy finds no libpython in a chroot."""
    root = tmp_path / "root"
    root.mkdir()
    with chrooted(root) as launcher:
        assert os.readlink(f"/proc/{launcher}/exe").startswith(f"{root}/")
        server = last_server(recorded(tmp_path / "chroot.pps", str(PPSCOPE), "record", str(launcher)))
        assert server.launcher_pid == launcher
        assert server.version == "0.5.23"
        assert {rank.key for rank in server.ranks} == EVERY_RANK


def test_pids_that_nvml_names_join_ranks_of_another_namespace(tmp_path: Path) -> None:
    """NVML names the host's pids: from outside they are the ranks' own, whatever order the GPUs are in."""
    private = tmp_path / "private"
    private.mkdir()
    with isolated(private, "--no-gpus") as launcher:
        pids = scheduler_pids(launcher)
        placed = {0: 2, 1: 0, 2: 1}
        env = fake_nvml_env("healthy", gpus=4, pids=" ".join(f"{gpu}:{pids[pp]}" for pp, gpu in placed.items()))
        server = last_server(recorded(tmp_path / "nvml.pps", str(PPSCOPE), "record", str(launcher), env=env))
        joined = {rank.key.pp: (rank.gpu.index, rank.gpu.source) if rank.gpu else None for rank in server.ranks}
        assert joined == {pp: (gpu, "nvml_pid") for pp, gpu in placed.items()}


def test_from_inside_the_hosts_pids_that_nvml_names_join_nothing_wrong(tmp_path: Path) -> None:
    """In a container NVML names strangers; one of them may even be the number of a rank in here."""
    private = tmp_path / "private"
    private.mkdir()
    with isolated(private, "--no-gpus") as launcher:
        pids = scheduler_pids(launcher)
        env = fake_nvml_env("healthy", gpus=4, pids=" ".join(f"{3 - pp}:{pid}" for pp, pid in pids.items()))
        enter = ["nsenter", "--target", str(launcher), "--pid", "--mount"]
        records = recorded(tmp_path / "inside.pps", *enter, str(PPSCOPE), "record", env=env)
        server = last_server(records)
        assert {rank.key.pp: rank.pid for rank in server.ranks} == {pp: inner_pid(pid) for pp, pid in pids.items()}
        check_everything_is_seen(records)
        for rank in server.ranks:
            assert rank.gpu is None or rank.gpu.source != "nvml_pid"
            assert rank.gpu is None or rank.gpu.cuda_ordinal == rank.key.pp


def test_another_network_is_said_and_its_port_here_is_never_asked(tmp_path: Path) -> None:
    """The same port number is somebody else's here."""
    private = tmp_path / "private"
    private.mkdir()
    stranger = TinyHttp({"/model_info": reply("{}"), "/metrics": reply(""), "/server_info": reply("{}")})
    with isolated(private, "--port", str(stranger.port), network=True) as launcher:
        with Terminal([str(PPSCOPE), "attach", str(launcher)], columns=200) as terminal:
            terminal.wait_for("PP2")
            time.sleep(3.0)
            terminal.send("q")
            assert terminal.wait() == 0
        records = recorded(tmp_path / "network.pps", str(PPSCOPE), "record", str(launcher))
        check_everything_is_seen(records)
        said = {record.name: record for record in records if isinstance(record, SourceStatus)}
        assert said["http"].state == said["metrics"].state == "off"
        assert "another network namespace" in said["http"].message
        pasted = said["http"].remedy.replace("ppscope attach", f"{PPSCOPE} doctor --json")
        assert pasted.startswith("nsenter --net ")
        inside = subprocess.run(["sh", "-c", pasted], capture_output=True, text=True, check=False, timeout=60)
        states = {check["id"]: check["state"] for check in json.loads(inside.stdout)["checks"]}
        assert states["http.port"] == states["http.metrics"] == states["target.memory"] == "ok", inside.stdout
        doctor = subprocess.run([str(PPSCOPE), "doctor", str(launcher)], capture_output=True, text=True, check=False)
        assert doctor.returncode == 1
        assert "another network namespace" in doctor.stdout
        assert "PID namespace of its own (its launcher is 1 there)" in doctor.stdout
    assert stranger.seen == []

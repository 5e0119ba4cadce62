"""The host source against real processes: run time, states, stops and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ppscope.records import HostSamples, Rank, RankExit, RankKey
from ppscope.sources import host
from ppscope.sources.host import HostSource, sample_rate_hz
from ppscope.sources.proc_stat import cpu_seconds, parse_schedstat, read_stat
from tests.unit.gpu_host_tools import Gathered, server_of

BUSY = "print(flush=True)\nwhile True: pass"
IDLE = "print(flush=True); input()"
THREADS = (
    "import threading; [threading.Thread(target=threading.Event().wait).start() for _ in range(4)]; print(flush=True)"
)

Spawn = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    processes: list[subprocess.Popen[bytes]] = []

    def start(program: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        processes.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def gathered() -> Gathered:
    return Gathered()


@pytest.fixture
def source(gathered: Gathered) -> Iterator[HostSource]:
    made = HostSource(gathered)
    yield made
    made.stop()
    assert made._thread is None or not made._thread.is_alive()
    assert watched_descriptors() == []


def watched_descriptors() -> list[str]:
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue
    return [link for link in links if link.endswith(("/stat", "/schedstat"))]


def rank_of(process: subprocess.Popen[bytes], pp: int = 0) -> Rank:
    stat = read_stat(process.pid)
    assert stat is not None
    return Rank(RankKey(0, pp, 0), process.pid, stat.started_ticks, "sglang::scheduler")


def needs_schedstat() -> None:
    try:
        exact = parse_schedstat(Path("/proc/self/schedstat").read_bytes()) is not None
    except OSError:
        exact = False
    if not exact:
        pytest.skip("this kernel keeps no schedstat")


def test_run_time_of_a_busy_and_an_idle_rank_agrees_with_schedstat(
    spawn: Spawn, source: HostSource, gathered: Gathered
) -> None:
    needs_schedstat()
    busy, idle = spawn(BUSY), spawn(IDLE)
    source.start(server_of((rank_of(busy, 0), rank_of(idle, 1))))
    gathered.wait(HostSamples, lambda record: record.rank.pp == 0 and len(record.at_ns) > 10, count=2)
    source.stop()
    after = parse_schedstat(Path(f"/proc/{busy.pid}/schedstat").read_bytes())
    rows = {pp: [r for r in gathered.of(HostSamples) if r.rank.pp == pp] for pp in (0, 1)}
    first, last = rows[0][0], rows[0][-1]
    elapsed_ns = last.at_ns[-1] - first.at_ns[0]
    run_ns = last.run_ns[-1] - first.run_ns[0]
    wait_ns = last.wait_ns[-1] - first.wait_ns[0]
    # It always wants to run: whatever else this box does, running and waiting for a core are all its time.
    assert 0.8 * elapsed_ns < run_ns + wait_ns < 1.2 * elapsed_ns
    assert after is not None
    assert last.run_ns[-1] <= after[0]
    idle_run_ns = rows[1][-1].run_ns[-1] - rows[1][0].run_ns[0]
    assert idle_run_ns < run_ns / 10
    assert set(rows[1][-1].states) == {"S"}
    assert set(last.states) <= {"R"}
    for record in gathered.of(HostSamples):
        rows_in = len(record.at_ns)
        assert rows_in == len(record.run_ns) == len(record.wait_ns) == len(record.states) == len(record.processors)
        assert record.at_ns == sorted(record.at_ns)
        assert all(0 <= core < (os.cpu_count() or 1) for core in record.processors)
    assert gathered.statuses()[0] == ("ok", "50 Hz")


def test_a_batch_ends_with_the_figures_of_the_whole_process(
    spawn: Spawn, source: HostSource, gathered: Gathered
) -> None:
    process = spawn(THREADS)
    source.start(server_of((rank_of(process),)))
    record = gathered.wait(HostSamples)[0]
    assert record.tid == process.pid
    assert record.threads == 5
    assert record.rss_bytes is not None
    assert record.rss_bytes > 1_000_000
    used_s = cpu_seconds(process.pid)
    assert record.process_cpu_ns is not None
    assert used_s is not None
    assert record.process_cpu_ns <= used_s * 1e9


def test_a_killed_rank_is_noticed_once_and_the_others_go_on(
    spawn: Spawn, source: HostSource, gathered: Gathered
) -> None:
    dying, living = spawn(IDLE), spawn(IDLE)
    server = server_of((rank_of(dying, 0), rank_of(living, 1)))
    source.start(server)
    gathered.wait(HostSamples, count=2)
    dying.kill()
    ended = gathered.wait(RankExit)[0]
    assert (ended.rank.pp, ended.pid) == (0, dying.pid)
    assert ended.reason in ("zombie", "gone")
    source.update(server)
    gathered.wait(HostSamples, lambda record: record.at_ns[0] > ended.at_ns, count=2)
    assert len(gathered.of(RankExit)) == 1
    assert {r.rank.pp for r in gathered.of(HostSamples) if r.at_ns[0] > ended.at_ns} == {1}
    living.kill()
    gathered.status("off", "no rank is running")


def test_zombie_and_gone_are_told_apart(spawn: Spawn) -> None:
    process = spawn(IDLE)
    watched = host._Watched(rank_of(process), "/proc")
    watched.sample()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    watched._countdown = 0
    with pytest.raises(host._Ended, match="zombie"):
        watched.sample()
    process.wait()
    with pytest.raises(host._Ended, match="gone"):
        watched.sample()
    batch = watched.batch()
    assert batch is not None
    assert (len(batch.at_ns), batch.process_cpu_ns, batch.threads) == (1, None, None)
    watched.close()


@pytest.mark.parametrize(("shift", "reason"), [(1, "pid_reused"), (-1, "pid_reused")])
def test_another_process_of_the_same_pid_is_not_taken_for_the_rank(
    spawn: Spawn, source: HostSource, gathered: Gathered, shift: int, reason: str
) -> None:
    rank = rank_of(spawn(IDLE))
    stranger = Rank(rank.key, rank.pid, rank.started_ticks + shift, rank.title)
    source.start(server_of((stranger,)))
    assert gathered.wait(RankExit)[0].reason == reason
    assert gathered.of(HostSamples) == []


def test_a_rank_stopped_by_somebody_is_told_and_so_is_its_return(
    spawn: Spawn, source: HostSource, gathered: Gathered
) -> None:
    process = spawn(IDLE)
    source.start(server_of((rank_of(process),)))
    gathered.wait(HostSamples)
    os.kill(process.pid, signal.SIGSTOP)
    assert gathered.wait(RankExit)[0].reason == "stopped"
    os.kill(process.pid, signal.SIGCONT)
    assert [record.reason for record in gathered.wait(RankExit, count=2)] == ["stopped", "resumed"]
    gathered.wait(HostSamples, lambda record: "T" in record.states)


@pytest.mark.parametrize(
    ("states", "told"),
    [
        ("S" + "t" * 24 + "S", []),  # a py-spy dump of somebody else
        ("tS" * 40, []),  # many of them
        ("T" * 26 + "S", ["stopped", "resumed"]),
        ("T" * 60 + "S" + "t" * 60, ["stopped", "resumed", "stopped"]),
    ],
)
def test_only_a_stop_that_lasts_is_told(states: str, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading every ten milliseconds: a quarter of a second makes a stop."""
    gathered, rank = Gathered(), Rank(RankKey(0, 0, 0), 7, 1, "sglang::scheduler")
    watched = SimpleNamespace(rank=rank, stopped_ns=None, stop_told=False)
    source = HostSource(gathered)
    for number, state in enumerate(states):
        monkeypatch.setattr(time, "monotonic_ns", lambda number=number: number * 10_000_000)
        watched.sample = lambda state=state: state
        source._sample((7, 1), watched)  # type: ignore[arg-type]
    assert [record.reason for record in gathered.of(RankExit)] == told


def test_ranks_come_and_go_with_the_server(spawn: Spawn, source: HostSource, gathered: Gathered) -> None:
    one, two = rank_of(spawn(IDLE), 0), rank_of(spawn(IDLE), 1)
    source.start(server_of((one,)))
    gathered.wait(HostSamples, lambda record: record.rank.pp == 0)
    source.update(server_of((two,)))
    came = gathered.wait(HostSamples, lambda record: record.rank.pp == 1)[0]
    later = gathered.wait(HostSamples, lambda record: record.at_ns[0] > came.at_ns[-1])[0]
    assert later.rank.pp == 1
    assert gathered.of(RankExit) == []


def test_without_schedstat_run_time_falls_back_to_ticks(spawn: Spawn, gathered: Gathered, tmp_path: Path) -> None:
    process = spawn(BUSY)
    task = tmp_path / str(process.pid) / "task" / str(process.pid)
    task.mkdir(parents=True)
    (task / "stat").symlink_to(f"/proc/{process.pid}/task/{process.pid}/stat")
    (tmp_path / str(process.pid) / "stat").symlink_to(f"/proc/{process.pid}/stat")
    source = HostSource(gathered, proc=str(tmp_path))
    source.start(server_of((rank_of(process),)))
    record = gathered.wait(HostSamples, lambda record: len(record.at_ns) > 10 and record.run_ns[-1] > 0)[0]
    source.stop()
    assert record.wait_ns == []
    assert record.run_ns == sorted(record.run_ns)
    assert len(record.run_ns) == len(record.at_ns)
    gathered.status("degraded", "no schedstat")


def test_a_main_thread_that_is_not_there_by_that_number_falls_back_to_the_pid(spawn: Spawn) -> None:
    process = spawn(IDLE)
    rank = rank_of(process)
    inner = Rank(rank.key, rank.pid, rank.started_ticks, rank.title, main_tid=1)
    watched = host._Watched(inner, "/proc")
    assert watched.tid == process.pid
    watched.close()


def test_an_error_in_the_thread_becomes_a_status(
    spawn: Spawn, source: HostSource, gathered: Gathered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "parse_thread", lambda line: 1 / 0)
    source.start(server_of((rank_of(spawn(IDLE)),)))
    gathered.status("dead", "ZeroDivisionError")


@pytest.mark.parametrize(("ranks", "hz"), [(0, 50), (1, 50), (4, 50), (8, 25), (16, 12.5), (64, 5), (1000, 5)])
def test_the_rate_falls_as_ranks_grow(ranks: int, hz: float) -> None:
    assert sample_rate_hz(ranks) == hz


def test_stop_before_start_and_stop_twice_do_nothing(gathered: Gathered) -> None:
    source = HostSource(gathered)
    source.stop()
    source.stop()
    assert gathered.records == []

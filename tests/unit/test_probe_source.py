"""The source over real rings: two views at once, dormant probes woken and left to sleep, and every reason why there is nothing exact."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from ppscope.probe import layout
from ppscope.records import AnyRecord, Fact, ProbeSpans, Rank, RankKey, Server, SourceStatus
from ppscope.sources import probe
from ppscope.sources.probe import ProbeSource
from tests.shared import ROOT
from tests.unit.probe_tools import KEY, batch, fresh, this_rank

LOOP = """
import sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.unit.probe_tools import batch, fresh
scheduler, _, recorder = fresh(Path({base!r}), always={always})
loop = scheduler(lambda turn: batch("DECODE", 3))
loop.init_pp_loop_state()
print("ready", flush=True)
while True:
    for mb_id in range(3):
        loop.recv_requests()
        loop._pp_launch_batch(mb_id, loop.get_next_batch_to_run())
    time.sleep(0.002)
"""


@contextmanager
def looping(base: Path, *, always: bool) -> Iterator[Rank]:
    script = LOOP.format(root=str(ROOT), base=str(base), always=always)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield this_rank(process.pid)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def server_of(*ranks: Rank) -> Server:
    return Server(0, 1, 1, "launch_server", "serving", ranks, len(ranks), 1, 1)


class View:
    """A source and what it said."""

    def __init__(self, base: Path, *ranks: Rank) -> None:
        self.heard: list[AnyRecord] = []
        self.source = ProbeSource(self.heard.append, (), str(base))
        self.source.start(server_of(*ranks))

    def spans(self) -> list[ProbeSpans]:
        return [record for record in self.heard if isinstance(record, ProbeSpans)]

    def status(self) -> list[tuple[str, str]]:
        return [(r.state, r.message) for r in self.heard if isinstance(r, SourceStatus)]

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        self.source.stop()


def until(seen: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_views_of_one_server_see_the_same(tmp_path: Path) -> None:
    with looping(tmp_path, always=True) as rank, View(tmp_path, rank) as one, View(tmp_path, rank) as other:
        until(lambda: len(one.spans()) > 2 and len(other.spans()) > 2)
        assert one.status() == other.status() == [("ok", "exact host spans")]
        numbers = []
        for view in (one, other):
            expected = view.spans()[0].sequence
            for record in view.spans():
                assert record.rank == KEY
                assert (record.sequence, record.lost) == (expected, 0)
                assert set(record.micro_batches) <= {-1, 0, 1, 2}
                expected += len(record.starts_ns)
            numbers.append({r.sequence + i: s for r in view.spans() for i, s in enumerate(r.starts_ns)})
        shared = numbers[0].keys() & numbers[1].keys()
        assert shared
        assert all(numbers[0][number] == numbers[1][number] for number in shared)


def test_a_dormant_probe_wakes_for_a_view_and_sleeps_when_the_last_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with looping(tmp_path, always=False) as rank:
        until(lambda: list(tmp_path.glob("*/wanted-*")))
        assert not list(tmp_path.glob("*/ring-*"))
        with View(tmp_path, rank) as view:
            until(lambda: view.spans() and view.status()[-1:] == [("ok", "exact host spans")])
        wanted = next(tmp_path.glob("*/wanted-*"))
        os.utime(wanted, ns=(1, 1))  # as it is three seconds after a view was killed
        ring = next(tmp_path.glob("*/ring-*"))
        until(lambda: not layout.FLAGS.unpack_from(ring.read_bytes(), layout.FLAGS_OFFSET)[0] & layout.AWAKE)


def test_ranks_with_and_without_a_probe(tmp_path: Path) -> None:
    with looping(tmp_path, always=True) as rank:
        without = Rank(RankKey(0, 1, 0), os.getpid(), this_rank().started_ticks, "sglang::scheduler_PP1")
        with View(tmp_path, rank, without) as view:
            until(lambda: view.spans() and view.status())
            assert view.status()[-1] == ("degraded", "1 of 2 ranks exact: no probe in this server")


@pytest.mark.parametrize("case", ["no_folder", "gone"])
def test_without_a_probe_it_is_off_and_says_how_to_get_one(tmp_path: Path, case: str) -> None:
    rank = this_rank()
    if case == "gone":
        rank = Rank(KEY, 2**22 - 3, 1, "sglang::scheduler")
    with View(tmp_path, rank) as view:
        until(view.status)
    [status] = [record for record in view.heard if isinstance(record, SourceStatus)]
    assert (status.state, status.message) == ("off", "no probe in this server")
    assert "ppscope launch" in status.remedy


@pytest.mark.parametrize("facts", [(), ("always",), ("wanted",), ("off",)])
@pytest.mark.parametrize("case", ["no_shm", "no_folder", "empty"])
def test_a_probe_that_was_asked_for_and_made_no_ring_is_not_no_probe(
    facts: tuple[str, ...], case: str, tmp_path: Path
) -> None:
    if case != "no_shm":
        folder = tmp_path / "dev" / "shm" / layout.FOLDER.format(uid=os.getuid())
        (folder if case == "empty" else folder.parent).mkdir(parents=True)
        folder.parent.chmod(0o755)
    if case == "empty":
        folder.chmod(0o700)
    heard: list[AnyRecord] = []
    source = ProbeSource(heard.append, ("dev", "shm"), str(tmp_path))
    ranks = [this_rank(), msgspec.structs.replace(this_rank(os.getppid()), key=RankKey(0, 1, 0))]
    found = tuple(Fact("env.PPSCOPE_PROBE", value, "env") for value in facts)
    source.update(msgspec.structs.replace(server_of(*ranks), facts=found))
    source._look()
    [status] = [record for record in heard if isinstance(record, SourceStatus)]
    assert status.state == "off"
    if facts and facts[0] != "off":
        assert "PPSCOPE_PROBE is set and there is no ring" in status.message
        assert "df -h /proc/1/root/dev/shm" in status.remedy
    else:
        assert (status.message, status.remedy) == ("no probe in this server", "ppscope launch -- CMD...")


def test_a_dormant_probe_that_makes_no_ring_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = tmp_path / layout.FOLDER.format(uid=os.getuid())
    private.mkdir(mode=0o700)
    (private / f"{layout.WANTED}-1-{os.getpid()}-{this_rank().started_ticks}").touch()
    heard: list[AnyRecord] = []
    source = ProbeSource(heard.append, (), str(tmp_path))
    source.update(server_of(this_rank()))
    source._look()
    monkeypatch.setattr(probe, "_ANSWER_S", 0.0)
    source._search_at = 0.0
    source._look()
    told = [(record.state, record.message) for record in heard if isinstance(record, SourceStatus)]
    assert told[0] == ("off", "the probe is dormant until the loop turns")
    assert told[1][0] == "off"
    assert "/dev/shm is full" in told[1][1]
    source._forget(this_rank())


@pytest.mark.parametrize(
    "case", ["no_shm", "no_folder", "link", "for_all", "file", "no_files", "no_ring", "short", "garbage"]
)
def test_looking_again_and_again_keeps_no_file_open(tmp_path: Path, case: str) -> None:
    """A server without the probe is looked at every second for as long as a view is open: a descriptor a look ends it."""
    private = tmp_path / "dev" / "shm" / layout.FOLDER.format(uid=os.getuid())
    (tmp_path / "dev" if case == "no_shm" else private.parent).mkdir(parents=True)
    if case == "link":
        private.symlink_to(tmp_path)
    elif case == "file":
        private.touch()
    elif case not in ("no_shm", "no_folder"):
        private.mkdir(mode=0o755 if case == "for_all" else 0o700)
    if case in ("no_ring", "short", "garbage"):
        end = f"-1-{os.getpid()}-{this_rank().started_ticks}"
        (private / (layout.WANTED + end)).touch()
        if case != "no_ring":
            (private / (layout.RING + end)).write_bytes(b"x" if case == "short" else bytes(1 << 20))
    source = ProbeSource(lambda record: None, ("dev", "shm"), str(tmp_path))
    source.update(server_of(this_rank()))
    source._look()
    before = os.listdir("/proc/self/fd")
    for _ in range(20):
        source._search_at = 0.0
        source._look()
    assert len(os.listdir("/proc/self/fd")) == len(before)
    source._forget(this_rank())


def test_a_server_that_ends_takes_nothing_down(tmp_path: Path) -> None:
    with looping(tmp_path, always=True) as rank:
        view = View(tmp_path, rank)
        until(view.spans)
    view.source.update(server_of())
    count = len(view.heard)
    time.sleep(0.5)
    view.source.stop()
    assert not [record for record in view.heard[count:] if isinstance(record, SourceStatus) and record.state == "dead"]


def test_a_probe_that_gave_up_says_so_with_its_last_error(tmp_path: Path) -> None:
    scheduler, _, recorder = fresh(tmp_path)
    scheduler(lambda turn: batch("DECODE", 1)).event_loop_pp(3)
    with View(tmp_path, this_rank()) as view:
        until(view.status)
        assert view.status() == [("ok", "exact host spans")]
        for _ in range(100):
            recorder.fail(KeyError("reqs"))
        until(lambda: len(view.status()) > 1)
        assert view.status()[1:] == [("degraded", "the probe gave up: KeyError: 'reqs'")]


def test_a_loss_is_said_for_a_minute_and_then_all_is_well_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, _, recorder = fresh(tmp_path)
    scheduler(lambda turn: batch("DECODE", 1)).event_loop_pp(3)
    heard: list[AnyRecord] = []
    source = ProbeSource(heard.append, (), str(tmp_path))
    source.update(server_of(this_rank()))
    real_ns, later_s = time.monotonic_ns, [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: real_ns() + later_s[0] * 10**9)

    def states() -> list[str]:
        for _ in range(2):
            source._search_at = 0.0
            source._look()
        return [record.state for record in heard if isinstance(record, SourceStatus)]

    def overrun() -> None:
        for _ in range(2 * layout.CAPACITY):
            recorder.write(layout.SEND, 1, 2, 0, 0)
        recorder.live()

    assert states() == ["ok"]
    overrun()
    assert states() == ["ok", "degraded"]
    later_s[0] = 50
    overrun()
    assert states() == ["ok", "degraded"]
    later_s[0] = 100
    assert states() == ["ok", "degraded"], "a minute after the last loss, not the first"
    later_s[0] = 111
    assert states() == ["ok", "degraded", "ok"]
    assert sum(record.lost for record in heard if isinstance(record, ProbeSpans)) > 2 * layout.CAPACITY
    source._forget(this_rank())

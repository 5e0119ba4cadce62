"""The ring between writer and reader: whole records only, every loss told, nobody else's file read, nothing left behind."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppscope.probe import layout
from ppscope.probe import ring as probe_ring
from ppscope.probe.ring import Ring, name_of, open_folder, pid_namespace, started_ticks, sweep
from ppscope.sources.probe_folder import NoProbeError, RefusedError
from ppscope.sources.probe_folder import open_folder as open_reading
from ppscope.sources.probe_ring import RingReader
from tests.shared import ROOT
from tests.unit.probe_tools import KEY, reader, rows, this_rank
from tests.unit.tiny_http import eventually

LATER = 1 << 62
SMALL = 1024


class Writer:
    """A ring and a hand that writes into it as the recorder does."""

    def __init__(self, base: Path, capacity: int = SMALL) -> None:
        folder = open_folder(str(base))
        self.ring = Ring(folder, ranks=(-1, 1, 0), slots=2, flags=layout.AWAKE, capacity=capacity)
        os.close(folder)
        self.seq = 0

    def put(self, count: int, *, tell: bool = True) -> None:
        for _ in range(count):
            self.seq += 1
            record = layout.RECORD.pack(
                self.seq, self.seq * 10, self.seq * 10 + 5, 0, 0, 0, 0, layout.SEND, 0, 0, 0, 0, self.seq & 0xFFFFFFFF
            )
            at = layout.HEADER_BYTES + self.seq % self.ring.capacity * layout.RECORD.size
            self.ring.map[at : at + layout.RECORD.size] = record
        if tell:
            layout.LIVE.pack_into(self.ring.map, layout.LIVE_OFFSET, self.seq, 0, 0, 0, 0, -1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3 * SMALL), st.booleans()), max_size=8))
def test_every_record_is_read_once_or_counted_as_lost(writes: list[tuple[int, bool]]) -> None:
    with tempfile.TemporaryDirectory() as base:
        writer, ring = Writer(Path(base)), reader(Path(base))
        assert ring.read(KEY, LATER) is None
        expected = 1
        for count, tell in [*writes, (0, True), (0, True)]:
            writer.put(count, tell=tell)
            while (spans := ring.read(KEY, LATER)) is not None:
                assert spans.sequence == expected + spans.lost
                expected = spans.sequence + len(spans.starts_ns)
                assert [start // 10 for start in spans.starts_ns] == list(range(spans.sequence, expected))
        assert expected - 1 == writer.seq
        ring.close()


def test_a_record_being_written_is_left_for_later(tmp_path: Path) -> None:
    writer, ring = Writer(tmp_path), reader(tmp_path)
    writer.put(10)
    at = layout.HEADER_BYTES + 10 * layout.RECORD.size
    whole = writer.ring.map[at : at + layout.RECORD.size]
    for cut in range(0, layout.RECORD.size, 8):  # the old record's bytes from some point on
        writer.ring.map[at : at + layout.RECORD.size] = whole[:cut] + bytes(layout.RECORD.size - cut)
        spans = ring.read(KEY, LATER)
        assert spans is None or len(spans.starts_ns) == 9
    writer.ring.map[at : at + layout.RECORD.size] = whole
    assert [row["start"] for row in rows(ring.read(KEY, LATER))] == [100]


def test_the_newest_record_waits_while_it_is_young(tmp_path: Path) -> None:
    writer, ring = Writer(tmp_path), reader(tmp_path)
    writer.put(3)
    assert len(rows(ring.read(KEY, 40))) == 2
    assert len(rows(ring.read(KEY, LATER))) == 1


def damage(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.parametrize(
    ("offset", "data", "reason"),
    [
        (0, b"NOTARING", "wrong magic"),
        (8, b"\x07\0\0\0", "writes version 7, this ppscope reads version 1"),
        (12, b"\x08\0\0\0", "sizes do not fit"),
        (16, b"\xff\xff\xff\x7f", "sizes do not fit"),
        (16, b"\0\0\0\0", "sizes do not fit"),
    ],
)
def test_a_foreign_ring_is_refused_with_the_reason(tmp_path: Path, offset: int, data: bytes, reason: str) -> None:
    Writer(tmp_path)
    damage(next(tmp_path.glob("*/ring-*")), offset, data)
    with pytest.raises(RefusedError, match=reason):
        reader(tmp_path)


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=6000))
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        try:
            ring = RingReader(os.dup(file.fileno()))
        except RefusedError:
            return
        ring.head()
        ring.read(KEY, LATER)


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=8, max_size=400), st.integers(0, layout.HEADER_BYTES + 200))
def test_a_damaged_ring_never_raises(data: bytes, offset: int) -> None:
    with tempfile.TemporaryDirectory() as base:
        writer = Writer(Path(base), capacity=64)
        writer.put(40)
        damage(next(Path(base).glob("*/ring-*")), offset, data)
        try:
            ring = reader(Path(base))
        except RefusedError:
            return
        ring.head()
        for _ in range(3):
            ring.read(KEY, LATER)
        ring.close()


def test_another_users_ring_is_refused_politely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Writer(tmp_path)
    mine = os.getuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(RefusedError, match=f"belong to user {mine}, this is user {mine + 1}") as refused:
        reader(tmp_path)
    assert "as the server's user" in refused.value.remedy


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")
def test_the_folder_of_a_rootless_container_has_the_number_its_user_has_inside(tmp_path: Path) -> None:
    inside = subprocess.Popen(["unshare", "--user", "sleep", "60"])
    try:
        mapping = Path(f"/proc/{inside.pid}/uid_map")
        if not eventually(lambda: Path(f"/proc/{inside.pid}/comm").read_text() == "sleep\n"):
            pytest.skip("no user namespaces here")
        mapping.write_text("7 0 1\n")
        private = tmp_path / layout.FOLDER.format(uid=7)
        private.mkdir(mode=0o700)
        os.close(open_reading(this_rank(inside.pid), (), str(tmp_path)))
        private.rename(tmp_path / layout.FOLDER.format(uid=0))
        with pytest.raises(NoProbeError):
            open_reading(this_rank(inside.pid), (), str(tmp_path))
        # From inside, where both numbers are the container's own, nothing is translated.
        code = "from ppscope.sources.probe_folder import _own_number as own; import os; print(own(os.getppid(), 7))"
        enter = ["nsenter", "--user", "--preserve-credentials", f"--target={inside.pid}"]
        said = subprocess.run(
            [*enter, "sh", "-c", f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}; true"],
            capture_output=True, text=True, check=False, cwd=ROOT,
        )  # fmt: skip
        assert said.stdout == "7\n", said.stderr
    finally:
        inside.kill()
        inside.wait()


@pytest.mark.parametrize("trap", ["link_folder", "link_file", "open_folder", "fifo"])
def test_no_link_is_followed_and_no_open_folder_trusted(tmp_path: Path, trap: str) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir(mode=0o700)
    name = name_of(layout.RING, pid_namespace(), os.getpid(), started_ticks() or 0)
    (folder / "secret").write_text("secret")
    private = tmp_path / layout.FOLDER.format(uid=os.getuid())
    if trap == "link_folder":
        private.symlink_to(folder)
    else:
        private.mkdir(mode=0o700)
    if trap == "link_file":
        (private / name).symlink_to(folder / "secret")
    elif trap == "fifo":
        os.mkfifo(private / name)
    elif trap == "open_folder":
        private.chmod(0o755)
    with pytest.raises(RefusedError):
        reader(tmp_path)


def test_the_next_start_removes_what_the_dead_left(tmp_path: Path) -> None:
    Writer(tmp_path)
    child = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    folder = next(tmp_path.iterdir())
    dead, here = int(child.stdout), pid_namespace()
    kept = [f"ring-{here + 1}-{dead}-1", "ring-notours", "notes.txt", f"other-{here}-{dead}-1"]
    gone = [f"ring-{here}-{dead}-1", f"wanted-{here}-{dead}-1", f"ring-{here}-{os.getpid()}-1"]
    for name in kept + gone:
        (folder / name).write_bytes(b"x")
    fd = open_folder(str(tmp_path))
    assert sweep(fd) == len(gone)
    os.close(fd)
    left = {path.name for path in folder.iterdir()}
    assert set(kept) <= left
    assert not left & set(gone)
    assert reader(tmp_path).head().pid == os.getpid(), "the living keep theirs"


ELSEWHERE = """
import os, sys, time
sys.path.insert(0, {root!r})
from types import SimpleNamespace
from ppscope.probe import dormancy, ring
from ppscope.probe.hook import Hook
from ppscope.probe.recorder import Recorder
ring.pid_namespace = dormancy.pid_namespace = lambda: {namespace}
recorder = Recorder(always=False, base={base!r})
Hook(recorder).install()
recorder.begin(SimpleNamespace())
recorder.wake()
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize(("theirs", "ours"), [(77, None), (0, 0), (0, None), (77, 0)])
def test_another_pid_namespace_keeps_its_files_while_it_lives_and_no_longer(
    theirs: int, ours: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers with --ipc=host share /dev/shm: their pids say nothing here. 0: the namespace cannot be read."""
    if ours is not None:
        monkeypatch.setattr(probe_ring, "pid_namespace", lambda: ours)
    script = ELSEWHERE.format(root=str(ROOT), base=str(tmp_path), namespace=theirs)
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    folder = open_folder(str(tmp_path))
    files = {path.name.partition("-")[0]: path for path in tmp_path.glob("*/*")}
    assert set(files) == {"ring", "wanted"}
    older = [files["ring"].with_name(f"{kind}-{theirs}-{owner.pid}-1") for kind in ("ring", "wanted")]
    for path in older:
        path.write_bytes(bytes(layout.HEADER_BYTES))  # as a ppscope that locks nothing leaves them, alive or not
    view, asking = RingReader(os.open(files["ring"], os.O_RDONLY)), os.open(files["wanted"], os.O_RDWR)
    try:
        # Its pid and start time mean another process here, or none.
        monkeypatch.setattr(probe_ring, "started_ticks", lambda pid: None)
        assert sweep(folder) == 0
        owner.kill()
        owner.wait()
        assert eventually(lambda: sweep(folder) > 0 or not files["ring"].exists()), "the child it forked holds nothing"
        sweep(folder)
        assert sorted(tmp_path.glob("*/*")) == sorted(older)
    finally:
        os.kill(child, signal.SIGKILL)
        view.close()
        os.close(asking)
        os.close(folder)
        owner.stdout.close()


def test_where_nothing_can_be_locked_nothing_of_others_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(fd: int, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refused)
    Writer(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(probe_ring, "pid_namespace", lambda: 77)
    folder = open_folder(str(tmp_path))
    assert sweep(folder) == 0
    os.close(folder)
    assert reader(tmp_path).head().pid == os.getpid()

"""Recordings on disk: bounded, in parts that stand alone, readable up to a cut; and files nobody else can read or redirect."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ppscope.collect.stream import MAGIC, encode
from ppscope.records import SCHEMA, AnyRecord, End, Hello, StackSpans
from ppscope.snapshot import save
from ppscope.snapshot.document import build
from ppscope.snapshot.files import open_private, why_not_writable, write_new, write_private
from ppscope.snapshot.page_data import SCHEMA as PAGE_SCHEMA
from ppscope.snapshot.read import UnreadableFile, read_file
from ppscope.snapshot.recorded import session_of
from ppscope.snapshot.recorder import Recorder, part_paths
from ppscope.snapshot.window import RecordWindow
from ppscope.snapshot.write import page
from tests.recordings import head, recording, second

BIG = 1 << 30


def recorded(path: Path, records: list[AnyRecord]) -> Path:
    recorder = Recorder(path, BIG, 1e9)
    recorder.write(records)
    recorder.close(End(0, "quit"))
    return path


def test_recording_is_the_stream(tmp_path: Path) -> None:
    records = recording(3)
    file = recorded(tmp_path / "r.pps", records)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    back = read_file(file)
    assert back.damage == ""
    window, again = RecordWindow(), RecordWindow()
    window.add(records)
    again.add(back.records)
    assert again.records() == window.records()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, bytes]:
    folder = tmp_path_factory.mktemp("cut")
    return folder, recorded(folder / "w.pps", recording(2, 2)).read_bytes(), page(build(recording(2, 2)))


def opens_or_says_why(file: Path) -> None:
    said = ""
    try:
        assert read_file(file).records
    except UnreadableFile as error:
        said = str(error)
    assert said == "" or (str(file) in said and "\n" not in said)


@given(st.data())
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_recording_cut_anywhere_opens_up_to_the_cut(whole: tuple[Path, bytes, bytes], data: st.DataObject) -> None:
    folder, recording_, _ = whole
    cut = data.draw(st.integers(0, len(recording_)))
    file = folder / "c.pps"
    file.write_bytes(recording_[:cut])
    if cut > 2000:
        assert session_of(read_file(file).records).screen().header.model == "org/Model-7B"
    else:
        opens_or_says_why(file)


@given(st.data())
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_recording_opens_or_says_so(whole: tuple[Path, bytes, bytes], data: st.DataObject) -> None:
    folder, recording_, _ = whole
    damaged = bytearray(recording_)
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    file = folder / "d.pps"
    file.write_bytes(damaged)
    opens_or_says_why(file)


@given(st.data())
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_page_cut_within_its_data_is_refused(whole: tuple[Path, bytes, bytes], data: st.DataObject) -> None:
    folder, _, page_ = whole
    end = page_.rindex(b"</script>")
    file = folder / "c.html"
    file.write_bytes(page_[: data.draw(st.integers(1, end))])
    with pytest.raises(UnreadableFile) as told:
        read_file(file)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"GIF89a" * 50, "neither"),
        (b"\x1f\x8b\x08\x00", "neither"),
        (b"<html><body>hello</body></html>", "neither"),
        (MAGIC, "cut before"),
        (MAGIC + encode(Hello(SCHEMA + 1, "9.0", "h", 1, 1, 1)), "newer than this one reads"),
        (MAGIC + encode(Hello(SCHEMA - 1, "0.0.1", "h", 1, 1, 1)), "older than this one reads"),
        (page({**build(recording(1, 2)), "schema": "ppscope.snapshot/7"}), "newer ppscope"),
        (page({**build(recording(1, 2)), "schema": "ppscope.snapshot/0"}), "older ppscope"),
        (page({"schema": "ppscope.compare/1", "comparison": {}}), "is a comparison"),
        (page({"schema": PAGE_SCHEMA}), "another form"),
    ],
)
def test_foreign_and_other_versions_are_told_apart(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "f"
    file.write_bytes(content)
    with pytest.raises(UnreadableFile, match=said):
        read_file(file)


def test_what_is_no_file_is_told_as_what_it_is(tmp_path: Path) -> None:
    loop, dangling, plain = tmp_path / "loop", tmp_path / "dangling", tmp_path / "plain"
    loop.symlink_to(loop)
    dangling.symlink_to(tmp_path / "nothing")
    plain.write_bytes(b"x")
    for path, said in (
        (tmp_path, "is a folder"),
        (tmp_path / "nothing", "no such file"),
        (dangling, "no such file"),
        (loop, "Too many levels of symbolic links"),
        (plain / "below", "Not a directory"),
        (tmp_path / ("n" * 300), "File name too long"),
    ):
        with pytest.raises(UnreadableFile, match=said):
            read_file(path)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_every_part_of_a_rotated_recording_stands_alone(tmp_path: Path) -> None:
    clock = Clock()
    recorder = Recorder(tmp_path / "r.pps", BIG, 3.0, clock)
    recorder.write(head())
    for at in range(10):
        clock.now = float(at)
        recorder.write(second(at))
    recorder.close(End(0, "quit"))
    assert sum(isinstance(record, StackSpans) for record in read_file(tmp_path / "r.pps").records) == 40
    parts = [*part_paths(tmp_path / "r.pps"), tmp_path / "alone.pps"]
    (tmp_path / "r.pps").rename(parts[-1])
    assert [part.name for part in parts] == ["r.0001.pps", "r.0002.pps", "r.0003.pps", "alone.pps"]
    spans = 0
    for part in parts:
        opened = read_file(part)
        session = session_of(opened.records)
        assert session.screen().header.other_share == 0.0, "no stack without a definition"
        assert len(session.screen().gpus) == 4
        spans += sum(isinstance(record, StackSpans) for record in opened.records)
        assert stat.S_IMODE(part.stat().st_mode) == 0o600
    assert spans == 40


def test_a_recording_stays_within_its_size_and_keeps_the_newest(tmp_path: Path) -> None:
    limit = 120_000
    earlier = tmp_path / "r.0007.pps"
    earlier.write_bytes(b"of another day")
    recorder = Recorder(tmp_path / "r.pps", limit, 1e9)
    recorder.write(head())
    for at in range(60):
        recorder.write(second(at))
        on_disk = sum(path.stat().st_size for path in tmp_path.iterdir() if path != earlier)
        assert on_disk <= limit * 1.1
    recorder.close()
    assert earlier.read_bytes() == b"of another day"
    newest = [record for record in read_file(tmp_path / "r.pps").records if isinstance(record, StackSpans)]
    assert newest[-1].end_ns == max(r.end_ns for r in second(59) if isinstance(r, StackSpans))
    assert min(int(part.suffixes[0][1:]) for part in part_paths(tmp_path / "r.pps") if part != earlier) > 8


def test_nothing_is_written_before_a_server_is_known(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.pps", BIG, 1e9)
    recorder.write(second(0))
    recorder.close(End(0, "attach_failed"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", [write_private, lambda path, data: os.write(open_private(path), data)])
def test_a_link_is_replaced_and_not_followed(tmp_path: Path, write: object) -> None:
    assert callable(write)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    link = tmp_path / "out.html"
    link.symlink_to(victim)
    old = os.umask(0)
    try:
        write(link, b"ours")
    finally:
        os.umask(old)
    assert victim.read_text() == "precious"
    assert not link.is_symlink()
    assert link.read_bytes() == b"ours"
    assert stat.S_IMODE(link.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html", "victim"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "out.html"
    file.write_text("before")

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_private(file, b"after")
    assert file.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["out.html"]


@pytest.mark.parametrize(
    "name", ["/dev/stdout", "/dev/fd/1", "/dev/new.html", "/proc/self/fd/1", "/proc/new.html", "/sys/new.html"]
)
def test_nothing_replaces_what_is_the_machines_own(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link is replaced and not followed, and /dev/stdout is one, whatever stdout is: a terminal, a pipe, or a file."""
    before = os.lstat("/dev/stdout").st_ino
    (tmp_path / "out").write_text("")
    saved = os.dup(1)
    out = os.open(tmp_path / "out", os.O_WRONLY)
    monkeypatch.setattr(os, "replace", lambda *_: pytest.fail("replaced"))
    os.dup2(out, 1)
    try:
        why = why_not_writable(Path(name))
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(out)
    assert why is not None
    with pytest.raises(OSError, match=r".+"):
        write_private(Path(name), b"x")
    assert os.lstat("/dev/stdout").st_ino == before


def test_what_cannot_be_written_is_told_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    assert why_not_writable(tmp_path / "new.html") is None
    assert "not a regular file" in (why_not_writable(fifo) or "")
    assert "is a folder" in (why_not_writable(tmp_path) or "")
    assert "is not a folder" in (why_not_writable(tmp_path / "no" / "x.html") or "")
    assert why_not_writable(Path("/dev/null")) is not None
    folder, device = tmp_path / "folder", tmp_path / "device"
    folder.symlink_to(tmp_path)
    device.symlink_to("/dev/null")
    assert "is a folder" in (why_not_writable(folder) or "")
    assert "not a regular file" in (why_not_writable(device) or "")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "symbolic links" in (why_not_writable(loop) or "")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert why_not_writable(Path("x.html")) == ". has been removed"
    with pytest.raises(OSError, match="not a regular file"):
        write_private(fifo, b"x")
    assert stat.S_ISFIFO(fifo.lstat().st_mode)


def test_a_name_that_ppscope_chose_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.html"
    old = os.umask(0)
    try:
        written = [write_new(path, b"%d" % number) for number in range(3)]
        (tmp_path / "s-4.html").symlink_to(tmp_path / "nothing")
        written.append(write_new(path, b"3"))
    finally:
        os.umask(old)
    assert [file.name for file in written] == ["s.html", "s-2.html", "s-3.html", "s-5.html"]
    for number, file in enumerate(written):
        assert file.read_bytes() == b"%d" % number
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not (tmp_path / "nothing").exists()
    before = sorted(tmp_path.iterdir())
    for call in ("fsync", "replace"):
        with monkeypatch.context() as full:
            full.setattr(os, call, no_space)
            with pytest.raises(OSError, match="No space"):
                write_new(path, b"x")
        assert sorted(tmp_path.iterdir()) == before, "neither half a page nor an empty one"


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_snapshots_of_one_second_lie_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPSCOPE_SNAPSHOT_DIR", str(tmp_path))
    monkeypatch.setattr(save, "file_name", lambda _: "s.html")
    saver = save.Saver(RecordWindow())
    assert [saver() for _ in range(3)] == [str(tmp_path / name) for name in ("s.html", "s-2.html", "s-3.html")]
    assert len(list(tmp_path.iterdir())) == 3

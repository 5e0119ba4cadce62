"""Where a recording lies while it is written: any name, a name that somebody else uses, and files that are taken away under it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from ppscope import cli, exits, signals
from ppscope.collect.stream import MAGIC, encode
from ppscope.commands import record as command
from ppscope.records import AnyCommand, AnyRecord, End, ServerGone, StackSpans
from ppscope.snapshot.files import why_in_use
from ppscope.snapshot.read import UnreadableFile, read_file
from ppscope.snapshot.recorder import Recorder, part_paths
from tests.recordings import head, second
from tests.shared import ROOT

BIG = 1 << 30


class Writer:
    """A recording that is rotated every three of its seconds."""

    def __init__(self, path: Path) -> None:
        self.now = 0
        self.said: list[str] = []
        self.recorder = Recorder(path, BIG, 3.0, lambda: float(self.now), self.said.append)
        self.recorder.write(head())

    def write(self, seconds: int) -> None:
        for _ in range(seconds):
            self.recorder.write(second(self.now))
            self.now += 1


@pytest.mark.parametrize("name", ["run", "run.pps", ".run", "run.0001", "run.1234.pps", "run.v2.pps", "a.b.c", "läuft"])
def test_a_recording_is_begun_again_under_any_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for _ in range(3):
        writer = Writer(path)
        writer.write(7)
        writer.recorder.close(End(0, "quit"))
    parts = part_paths(path)
    assert len(parts) == 6, "the parts of the earlier recordings are still there"
    assert len(list(tmp_path.iterdir())) == 7
    spans = sum(isinstance(record, StackSpans) for record in read_file(path).records)
    assert spans == (6 + 6 + 7) * 4, "each begins by replacing the last part of the one before"


def not_listed(path: Path) -> Iterator[Path]:
    raise PermissionError(errno.EACCES, "Permission denied", str(path))


def test_a_folder_that_cannot_be_listed_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "iterdir", not_listed)
    monkeypatch.setattr(command, "CollectorProcess", lambda *_: pytest.fail("a collector was started"))
    done = CliRunner().invoke(cli.main, ["record", "1", "-o", str(tmp_path / "r.pps")])
    assert done.exit_code == exits.USAGE
    assert done.stderr == f"ppscope: {tmp_path}/r.pps: its folder cannot be listed: Permission denied\n"


def test_a_recording_in_such_a_folder_opens_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path / "r.pps")
    writer.write(2)
    writer.recorder.close()
    monkeypatch.setattr(Path, "iterdir", not_listed)
    opened = read_file(tmp_path / "r.pps")
    assert opened.records
    assert opened.damage == "shown alone: its folder cannot be listed: Permission denied"


def spans_in(folder: Path) -> int:
    """Every span once, whatever file it lies in."""
    files = [path for path in folder.iterdir() if path.read_bytes() != b"precious"]
    found = {
        (record.rank, record.start_ns)
        for path in files
        for record in read_file(path).records
        if isinstance(record, StackSpans)
    }
    return len(found)


@pytest.mark.parametrize(
    "then", ["moved", "moved and replaced", "removed", "removed and replaced", "a link", "a folder"]
)
def test_a_file_that_is_taken_away_ends_nothing_and_nothing_of_others_is_lost(tmp_path: Path, then: str) -> None:
    path = tmp_path / "run.pps"
    elsewhere = tmp_path / "elsewhere"
    writer = Writer(path)
    writer.write(5)
    if then.startswith("moved"):
        path.rename(tmp_path / "kept.pps")
    else:
        path.unlink()
    if "replaced" in then:
        path.write_bytes(b"precious")
    elif then == "a link":
        elsewhere.write_bytes(b"precious")
        path.symlink_to(elsewhere)
    elif then == "a folder":
        path.mkdir()
    writer.write(9)
    writer.recorder.close(End(0, "quit"))
    assert len(writer.said) == 1, writer.said
    assert "\n" not in writer.said[0]
    if then in ("moved", "removed"):
        assert writer.recorder.path == path
        assert "was moved or removed" in writer.said[0]
    else:
        assert writer.recorder.path == tmp_path / "run-2.pps"
        assert str(writer.recorder.path) in writer.said[0]
    if "replaced" in then:
        assert path.read_bytes() == b"precious"
    if then == "a link":
        assert elsewhere.read_bytes() == b"precious"
    if then == "a folder":
        path.rmdir()
    if then.startswith("moved"):
        assert spans_in(tmp_path) == 14 * 4
    else:
        assert spans_in(tmp_path) == (3 + 8) * 4, "all but what lay in the file that was removed"


def test_a_part_that_was_replaced_is_not_thrown_away(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.pps", 120_000, 1e9)
    recorder.write(head())
    at = 0
    while not part_paths(tmp_path / "r.pps"):
        recorder.write(second(at))
        at += 1
    (first,) = part_paths(tmp_path / "r.pps")
    other = tmp_path / "other"
    other.write_bytes(b"precious")
    other.replace(first)
    for later in range(at, at + 60):
        recorder.write(second(later))
    recorder.close()
    assert first.read_bytes() == b"precious"


def test_a_second_writer_is_refused_and_the_first_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.pps"
    writer = Writer(path)
    monkeypatch.setattr(command, "CollectorProcess", lambda *_: pytest.fail("a collector was started"))
    for seconds in (2, 4):
        writer.write(seconds)
        assert why_in_use(path) == "another ppscope is recording into it"
        done = CliRunner().invoke(cli.main, ["record", "1", "-o", str(path)])
        assert done.exit_code == exits.USAGE
        assert done.stderr == f"ppscope: {path}: another ppscope is recording into it; choose another name\n"
    writer.recorder.close(End(0, "quit"))
    assert why_in_use(path) is None
    assert spans_in(tmp_path) == 6 * 4
    assert writer.said == []


def test_two_that_begin_at_once_are_told_apart_when_the_first_has_a_file(tmp_path: Path) -> None:
    first, other = (Recorder(tmp_path / "run.pps", BIG, 3.0) for _ in range(2))
    first.write([*head(), *second(0)])
    with pytest.raises(OSError, match="another ppscope is recording into it"):
        other.write([*head(), *second(0)])
    first.close()


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A folder that every user may write to."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


def as_nobody(script: str) -> str:
    """What a script prints without the rights of root, which go once all is imported."""
    command = "import os, sys; from pathlib import Path; from ppscope.snapshot.recorder import Recorder;"
    command += "from ppscope.snapshot.read import UnreadableFile, read_file; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
    done = subprocess.run(
        [sys.executable, "-c", command + script], capture_output=True, text=True, check=False, cwd="/", env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_recording_of_another_user_is_neither_replaced_nor_read(everybodys: Path) -> None:
    path = everybodys / "run.pps"
    writer = Writer(path)
    writer.write(2)
    said = as_nobody(
        f"try: Recorder(Path({str(path)!r}), 1 << 30, 3.0)\nexcept OSError as error: print(error.strerror)"
    )
    assert said == "belongs to user root and may be in use; choose another name\n"
    said = as_nobody(f"try: read_file(Path({str(path)!r}))\nexcept UnreadableFile as error: print(error)")
    assert said == f"{path}: Permission denied, it belongs to user root\n"
    writer.write(4)
    writer.recorder.close(End(0, "quit"))
    assert writer.said == []
    assert spans_in(everybodys) == 6 * 4


def test_a_file_that_cannot_be_read_may_be_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.pps"
    path.write_bytes(b"precious")

    def refused(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(OSError, match="cannot be read and may be in use; choose another name"):
        Recorder(path, BIG, 3.0)
    uid = path.stat().st_uid + 1
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    with pytest.raises(OSError, match=r"belongs to user .* and may be in use; choose another name"):
        Recorder(path, BIG, 3.0)


class Stream:
    """A collector that sends what it is given, and then its end."""

    def __init__(self, batches: list[list[AnyRecord]]) -> None:
        self.batches = batches
        self.before: dict[int, Callable[[], None]] = {}
        """What happens before so many batches are left to give."""

    def drain(self) -> list[AnyRecord]:
        self.before.get(len(self.batches), lambda: None)()
        return self.batches.pop(0) if self.batches else []

    def wait(self, timeout_s: float) -> bool:
        return bool(self.batches)

    def send(self, command: AnyCommand) -> None:
        """Nobody listens."""

    def close(self) -> None:
        """Nothing to end."""


def test_the_command_names_no_file_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.pps"
    stream = Stream([[*head()], [*second(0)], [*second(1), End(0, "quit")]])
    stream.before[1] = lambda: os.rename(path, tmp_path / "kept.pps")
    monkeypatch.setattr(command, "CollectorProcess", lambda *_: stream)
    done = CliRunner().invoke(cli.main, ["record", "1", "-o", str(path)])
    assert done.exit_code == 0
    assert done.stdout == ""
    assert done.stderr.endswith(f"ppscope: {path} was moved, removed or replaced while it was written\n")
    assert read_file(tmp_path / "kept.pps").damage == ""


def test_a_reader_that_is_gone_is_no_fault_of_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a `tee` that the same ctrl-c ended."""
    path = tmp_path / "run.pps"
    stream = Stream([[*head()], [*second(0)], [*second(1), End(0, "quit")]])

    def write_path(_: Path) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    monkeypatch.setattr(command, "CollectorProcess", lambda *_: stream)
    monkeypatch.setattr("ppscope.stdout.write_path", write_path)
    done = CliRunner().invoke(cli.main, ["record", "1", "-o", str(path)])
    assert (done.exit_code, "Broken pipe" in done.stderr) == (141, False)
    assert read_file(path).damage == ""


def test_a_recording_goes_on_without_its_terminal_also_where_there_is_something_to_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As below nohup, where the terminal may go long before the recording ends."""
    path = tmp_path / "run.pps"
    gone = ServerGone(0, 1)
    stream = Stream([[*head()], [*second(0)], [*second(1)], [*second(2), gone]])
    stream.before[2] = lambda: os.rename(path, tmp_path / "kept.pps")
    monkeypatch.setattr(command, "CollectorProcess", lambda *_: stream)
    monkeypatch.setattr(signals, "listen", lambda _: None)
    master, slave = os.openpty()
    os.close(master)
    terminal = open(slave, "w", buffering=1, encoding="utf-8")  # noqa: SIM115  closing it fails as well
    monkeypatch.setattr(sys, "stderr", terminal)
    code = command.record(1, path, seconds=None, max_bytes=BIG, rotate_s=0.0, rate_hz=None)
    monkeypatch.undo()
    with pytest.raises(OSError, match="Input/output error"):
        terminal.close()
    assert code == exits.TARGET_ENDED
    assert capfd.readouterr().out == f"{path}\n"
    assert spans_in(tmp_path) == 3 * 4
    assert any(isinstance(record, End) for record in read_file(path).records)


@pytest.mark.parametrize(
    ("seconds", "together"),
    [
        (3, ""),
        (5, "the recording is in 2 files, which belong together: run.0001.pps, run.pps"),
        (13, "the recording is in 5 files, which belong together: run.0001.pps … run.pps"),
    ],
)
def test_the_command_names_the_files_that_belong_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int, together: str
) -> None:
    path = tmp_path / "run.pps"
    stream = Stream([[*head(), *second(0)], *(second(at) for at in range(1, seconds)), [End(0, "quit")]])
    monkeypatch.setattr(command, "CollectorProcess", lambda *_: stream)
    whole = len(stream.batches)

    def made(path: Path, max_bytes: int, rotate_s: float, tell: Callable[[str], None]) -> Recorder:
        return Recorder(path, max_bytes, rotate_s, lambda: float(whole - len(stream.batches)), tell)

    monkeypatch.setattr(command, "Recorder", made)
    done = CliRunner().invoke(cli.main, ["record", "1", "-o", str(path), "--rotate", "3"])
    assert done.exit_code == 0
    assert done.stdout == f"{path}\n"
    assert done.stderr.partition("\n")[2] == (f"ppscope: {together}\n" if together else "")
    assert len(read_file(path).index.chunks) > 0
    assert read_file(path).damage == ""


MINUTE = 60


def rotated(path: Path) -> list[Path]:
    """Ten minutes in three parts, of which every sixth second was seen; the closed ones."""
    writer = Writer(path)
    for at in range(0, 10 * MINUTE, 6):
        writer.recorder.write(second(at, 1))
        writer.now = at // 70
    writer.recorder.close(End(0, "quit"))
    return part_paths(path)


def test_a_later_part_alone_says_so(tmp_path: Path) -> None:
    path = tmp_path / "run.pps"
    parts = rotated(path)
    assert len(parts) == 2
    assert read_file(path).damage == ""
    assert read_file(parts[0]).damage == "", "it begins at the beginning"
    assert read_file(parts[1]).damage == "a later part of a recording; the 3 min before it are not in this file"
    parts[0].unlink()
    assert read_file(path).damage == "", "the oldest parts go beyond --max-size"
    path.rename(tmp_path / "kept.pps")
    said = "a later part of a recording; the 7 min before it are not in this file"
    assert read_file(tmp_path / "kept.pps").damage == said
    done = CliRunner().invoke(cli.main, ["open", str(tmp_path / "kept.pps"), "--json"])
    assert done.exit_code == 0
    assert done.stderr == f"ppscope: {tmp_path}/kept.pps is {said}\n"


@pytest.mark.parametrize("late_s", [0, 25, 59])
def test_a_slow_attach_is_no_later_part(tmp_path: Path, late_s: int) -> None:
    recorder = Recorder(tmp_path / "run.pps", BIG, 1e9)
    recorder.write([*head(1), *second(late_s, 1)])
    recorder.close()
    assert read_file(tmp_path / "run.pps").damage == ""


@pytest.mark.parametrize("state", ["missing", "empty"])
def test_without_the_named_file_its_parts_are_opened(tmp_path: Path, state: str) -> None:
    path = tmp_path / "run.pps"
    # Of another day: its stream begins with other words.
    (tmp_path / "run.0001.pps").write_bytes(MAGIC + encode(msgspec.structs.replace(head()[0], wall_ns=1)))
    parts = rotated(path)[1:]
    assert [part.name for part in parts] == ["run.0002.pps", "run.0003.pps"]
    os.mkfifo(tmp_path / "run.0099.pps")
    path.write_bytes(b"") if state == "empty" else path.unlink()
    opened = read_file(path)
    assert opened.damage == f"{state}; what its parts run.0002.pps, run.0003.pps hold is shown"
    whole = [record for part in parts for record in read_file(part).records if isinstance(record, StackSpans)]
    assert [record for record in opened.records if isinstance(record, StackSpans)] == whole
    for part in parts:
        part.write_bytes(b"")
    with pytest.raises(UnreadableFile, match="cut before it says"):
        read_file(path)

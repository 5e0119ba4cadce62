"""The key s: what the page holds of what is shown, and a page that could not be written after all."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from ppscope import signals
from ppscope.commands import live
from ppscope.records import AnyRecord
from ppscope.snapshot import save
from ppscope.snapshot.save import Saver
from tests.fake_feed import SECOND, FakeFeed
from tests.recordings import recording
from tests.screen.pilots import Running, running


class Window:
    """What is kept of a stream."""

    def records(self) -> list[AnyRecord]:
        return recording(2)


class Disk:
    """Where a page is written to: it waits until it is told how that goes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: Exception | None = None
        self.go = threading.Event()
        self.written: list[Path] = []
        monkeypatch.setattr(save, "write_new", self._write)
        monkeypatch.setattr(save, "_PATIENCE_S", 0.2)

    def _write(self, path: Path, _data: bytes) -> Path:
        assert self.go.wait(20)
        if self.error is not None:
            raise self.error
        self.written.append(path)
        return path


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Disk:
    monkeypatch.setenv("PPSCOPE_SNAPSHOT_DIR", str(tmp_path))
    return Disk(monkeypatch)


FULL = OSError(errno.ENOSPC, "No space left on device")


def wait(saver: Saver) -> None:
    assert saver._thread is not None
    saver._thread.join(20)


@pytest.mark.parametrize("error", [FULL, ValueError("no such model"), MemoryError()])
async def test_a_page_that_fails_late_is_said_while_the_view_goes_on(disk: Disk, error: Exception) -> None:
    saver = Saver(Window())
    async with running(FakeFeed, (160, 50), save_snapshot=saver) as run:
        await run.press("s")
        assert "(being written)" in run.text("footer")
        await run.press("s")
        assert "no snapshot: the snapshot before is still being written" in run.text("footer")
        disk.error = error
        disk.go.set()
        wait(saver)
        run.app._tick()
        await run.settle()
        assert "no snapshot: " in run.text("footer")
        assert (str(error.args[-1]) if error.args else "MemoryError") in run.text("footer")
        run.app.say("something else")
        run.app._tick()
        assert "something else" in run.text("footer"), "told once"


def test_the_next_one_is_written_and_tells_of_the_one_before(disk: Disk) -> None:
    saver = Saver(Window())
    disk.error = FULL
    saver()
    disk.go.set()
    wait(saver)
    disk.error = None
    said = saver()
    assert str(disk.written[0]) in said
    assert "the one before was not written: No space left on device" in said
    assert "before" not in saver()


def test_one_that_fails_at_once_is_an_error(disk: Disk) -> None:
    disk.error = FULL
    disk.go.set()
    with pytest.raises(OSError, match="No space left"):
        Saver(Window())()


@pytest.mark.parametrize("fails", [False, True])
def test_a_view_that_ends_waits_for_its_page_and_says_what_became_of_it(
    disk: Disk, fails: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended:
        save_snapshot = Saver(Window())
        return_code = 0

        def run(self) -> None:
            self.save_snapshot()
            disk.error = FULL if fails else None
            threading.Timer(0.3, disk.go.set).start()

    monkeypatch.setattr(signals, "listen", lambda _: None)
    assert live.run_screen(Ended()) == 0  # type: ignore[arg-type]
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "ppscope: the snapshot is still being written"
    assert len(said) == 1 + fails
    assert not fails or said[1].startswith("ppscope: no snapshot: No space left on device")
    assert len(disk.written) == 1 - fails


def long() -> FakeFeed:
    return FakeFeed(seconds=600)


async def said_after(run: Running, *keys: str) -> str:
    await run.press(*keys)
    run.app._message = None
    await run.press("s")
    return run.text("footer")


async def test_the_line_says_what_the_page_holds_of_what_is_shown(disk: Disk) -> None:
    disk.go.set()
    async with running(long, (160, 50), save_snapshot=Saver(Window())) as run:
        assert "the last minute as a snapshot: " in await said_after(run)
        assert "nothing of what is shown, as a snapshot: " in await said_after(run, "home")
        assert "the last minute as a snapshot: " in await said_after(run, "0")
        assert "not all that is shown, as a snapshot: " in await said_after(run, *["minus"] * 5)
        assert "the last minute as a snapshot: " in await said_after(run, "0", *["plus"] * 5)
        await run.press("space")
        run.feed.at_ns += 120 * SECOND
        assert "nothing of what is shown, as a snapshot: " in await said_after(run)


async def test_of_a_young_server_all_that_is_shown_is_held(disk: Disk) -> None:
    disk.go.set()
    async with running(FakeFeed, (160, 50), save_snapshot=Saver(Window())) as run:
        for keys in ((), ("minus",) * 6, ("home",)):
            assert "the last minute as a snapshot: " in await said_after(run, *keys)

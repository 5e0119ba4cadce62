"""What stays of a burst whose traces were to be kept: what there is to keep, and nothing for ever that nobody wants."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ppscope.sources import burst_folder
from ppscope.sources.burst_folder import VARIABLE
from ppscope.sources.burst_run import BurstRun
from tests.unit.test_burst_run import FakeProfiler, Told, left, run
from tests.unit.tiny_http import eventually


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(burst_folder, "PARENTS", ())
    return tmp_path


def traces(folder: Path) -> list[Path]:
    return list(folder.glob("*.trace.json.gz"))


def later(folder: Path) -> None:
    """A burst after hours in which nothing changed in this folder."""
    os.utime(folder, (0, 0))
    run(FakeProfiler(), Told())


def test_files_are_kept_when_asked_for(own_folder: Path) -> None:
    told = Told()
    run(FakeProfiler(), told, keep=True)
    (folder,) = left(own_folder)
    assert len(traces(folder)) == 2
    assert str(folder) in told.states[-1].message


def test_kept_files_outlive_every_later_burst(own_folder: Path) -> None:
    told = Told()
    run(FakeProfiler(), told, keep=True)
    (kept,) = left(own_folder)
    os.utime(kept, (0, 0))
    for keep in (False, True):
        run(FakeProfiler(), Told(), keep=keep)
    assert len(traces(kept)) == 2
    assert f"the traces are in {kept}" in told.states[-1].message


def test_kept_files_stay_where_they_could_not_be_read(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    told = Told()
    run(FakeProfiler(), told, keep=True)
    (kept,) = left(own_folder)
    assert len(traces(kept)) == 2
    assert told.states[-1].state == "failed"
    assert str(kept) in told.states[-1].remedy
    later(kept)
    assert len(traces(kept)) == 2


def test_kept_files_stay_where_one_stage_has_not_written_its_own(own_folder: Path) -> None:
    told = Told()
    run(FakeProfiler(stages=(0,)), told, keep=True)
    (kept,) = left(own_folder)
    assert f"the traces are in {kept}" in told.states[-1].message
    later(kept)
    assert len(traces(kept)) == 1


@pytest.mark.parametrize("cancelled", [False, True])
def test_what_nobody_keeps_of_a_burst_that_was_to_be_kept_is_swept_by_a_later_one(
    cancelled: bool, own_folder: Path
) -> None:
    """A stage may still write when it ends, so the folder is left; nothing of it is wanted."""
    profiler, told = FakeProfiler(stages=(0,) if cancelled else (), full=False), Told()

    def cancel(burst: BurstRun) -> None:
        assert eventually(lambda: bool(profiler.asked))
        if cancelled:
            burst.cancel()

    run(profiler, told, meanwhile=cancel, keep=True)
    assert told.states[-1].state == ("cancelled" if cancelled else "failed")
    (unwanted,) = left(own_folder)
    run(FakeProfiler(), Told())
    assert left(own_folder) == [unwanted], "not before its time"
    later(unwanted)
    assert left(own_folder) == []

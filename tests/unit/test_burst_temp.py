"""The room that an export needs is looked for where the server's torch writes first."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from ppscope.doctor.gather_target import _no_export
from ppscope.records import Burst
from ppscope.sources.burst_folder import FolderError
from ppscope.sources.burst_run import BurstRun
from ppscope.sources.burst_temp import check_temp
from tests.unit.test_burst_run import QUICK, FakeProfiler, Told, server
from tests.unit.tiny_http import eventually

MB = 1 << 20
SCHEDULER, LAUNCHER = 7, 8


def target(folder: Path, scheduler: Mapping[str, str] | None, launcher: Mapping[str, str] | None) -> str:
    """A server in a file tree of its own, which holds /tmp, /big and a link /link to /small."""
    proc, tree = folder / "proc", folder / "tree"
    for name in ("tmp", "big", "small"):
        (tree / name).mkdir(parents=True)
    (tree / "link").symlink_to("/small")
    for pid, environ in ((SCHEDULER, scheduler), (LAUNCHER, launcher)):
        (proc / str(pid) / "ns").mkdir(parents=True)
        (proc / str(pid) / "ns" / "mnt").symlink_to("mnt:[2]")
        (proc / str(pid) / "root").symlink_to(tree)
        if environ is not None:
            (proc / str(pid) / "environ").write_bytes(b"".join(f"{k}={v}\0".encode() for k, v in environ.items()))
    (proc / "self" / "ns").mkdir(parents=True)
    (proc / "self" / "ns" / "mnt").symlink_to("mnt:[1]")
    return str(proc)


def rooms(monkeypatch: pytest.MonkeyPatch, free: Mapping[str, int]) -> None:
    """Free MB of folders by name; all others have plenty."""

    def statvfs(path: str) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=free.get(Path(path).name, 1 << 20), f_frsize=MB)

    monkeypatch.setattr(os, "statvfs", statvfs)


@pytest.mark.parametrize(
    ("scheduler", "launcher", "asked"),
    [
        ({}, {}, "/tmp"),
        (None, None, "/tmp"),
        ({"TMPDIR": "/small"}, {}, "/small"),
        ({"TMPDIR": "/link"}, {}, "/link"),
        ({"TMPDIR": "/missing", "TMP": "/small"}, {}, "/small"),
        ({"TMPDIR": "/small"}, {"TMPDIR": "/big"}, "/small"),
        ({"HOME": "/root"}, {"TMPDIR": "/small"}, "/small"),
        ({"TMPDIR": "/big"}, {"TMPDIR": "/small"}, None),
        ({"TMPDIR": "/big"}, None, None),
    ],
)
def test_the_servers_temporary_folder_is_asked_for_room(
    scheduler: Mapping[str, str] | None,
    launcher: Mapping[str, str] | None,
    asked: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proc = target(tmp_path, scheduler, launcher)
    rooms(monkeypatch, {"small": 100, "tmp": 100})
    if asked is None:
        check_temp((SCHEDULER, LAUNCHER), 8, 16, proc_root=proc)
        return
    with pytest.raises(
        FolderError, match=f"unpacked to {asked} first: 100 MB are free there, 2048 are needed"
    ) as error:
        check_temp((SCHEDULER, LAUNCHER), 8, 16, proc_root=proc)
    assert "TMPDIR" in error.value.remedy


@pytest.mark.parametrize(
    ("ranks", "steps", "with_stack", "needed"), [(1, 4, False, 1024), (8, 16, False, 2048), (8, 16, True, 8192)]
)
def test_room_is_wanted_for_every_rank_step_and_stack(
    ranks: int, steps: int, with_stack: bool, needed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = target(tmp_path, {}, {})
    rooms(monkeypatch, {"tmp": needed})
    check_temp((SCHEDULER, LAUNCHER), ranks, steps, with_stack, proc)
    rooms(monkeypatch, {"tmp": needed - 1})
    with pytest.raises(FolderError, match=f"{needed} are needed"):
        check_temp((SCHEDULER, LAUNCHER), ranks, steps, with_stack, proc)


def test_doctor_says_it_before_a_burst_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _no_export(server()) is None
    rooms(monkeypatch, dict.fromkeys((Path(os.environ.get("TMPDIR", "/tmp")).name, "tmp"), 100))
    said = _no_export(server())
    assert said is not None
    assert "100 MB are free" in said[0]


def test_a_server_without_room_for_the_export_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPSCOPE_PROFILE_FOLDER", str(tmp_path))
    rooms(monkeypatch, dict.fromkeys((Path(os.environ.get("TMPDIR", "/tmp")).name, "tmp"), 100))
    profiler, told = FakeProfiler(), Told()
    burst = BurstRun(told, server(), Burst(rounds=2), profiler, QUICK)
    burst.start()
    assert eventually(lambda: not burst.active)
    assert told.states[-1].state == "failed"
    assert "100 MB are free" in told.states[-1].message
    assert profiler.asked == []
    assert list(tmp_path.iterdir()) == []

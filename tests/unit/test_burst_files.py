"""Files that grow, whose they are, and the folder they go to."""

from __future__ import annotations

import gzip
import os
import stat
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppscope.records import RankKey
from ppscope.sources import burst_folder
from ppscope.sources.burst_files import BurstFiles, GrowingFile, rank_of
from ppscope.sources.burst_folder import NAME, VARIABLE, Folder, FolderError, keep, make_folder, remove, remove_stale
from ppscope.sources.burst_plan import default_rounds, make_plan, risks, start_body


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("t-1.5-TP-0-PP-3.trace.json.gz", RankKey(0, 3, 0)),
        ("t-1.5-TP-2.trace.json.gz", RankKey(0, 0, 2)),
        ("t-1.5-TP-1-DP-2-PP-3-EP-1.trace.json.gz", RankKey(2, 3, 1)),
        ("other-1.5-TP-0-PP-3.trace.json.gz", None),
        ("t-1.5-TP-0-PP-3.trace.json", None),
        ("t-1.5-TP-0-PP-3.trace.json.gz.part", None),
    ],
)
def test_whose_file_it_is(name: str, key: RankKey | None) -> None:
    assert rank_of(name, "t") == key


@settings(deadline=None)
@given(
    texts=st.lists(st.binary(max_size=3000), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 8000), max_size=6),
)
def test_a_file_is_whole_at_the_end_of_its_last_member_and_never_within_the_first(
    texts: list[bytes], cuts: list[int]
) -> None:
    first = gzip.compress(texts[0])
    data = b"".join(gzip.compress(text) for text in texts)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.gz"
        path.write_bytes(b"")
        file = GrowingFile(str(path))
        for cut in sorted({min(cut, len(data)) for cut in cuts}):
            path.write_bytes(data[:cut])
            file.look()
            assert not file.whole or cut >= len(first)
        path.write_bytes(data)
        file.look()
        assert file.whole
        assert file.size_bytes == len(data)
        assert not file.look()


def test_a_large_text_from_few_bytes_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(20_000_000)))
    file = GrowingFile(str(path))
    file.look()
    assert file.whole


def test_what_is_no_gzip_is_a_problem_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "t-TP-0-PP-0.trace.json.gz").write_bytes(b"not gzip at all, for sure")
    (tmp_path / "t-TP-0-PP-1.trace.json.gz").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "t-TP-0-PP-2.trace.json.gz")
    files = BurstFiles(str(tmp_path), "t", [RankKey(0, pp, 0) for pp in range(3)])
    files.look()
    assert files.settled
    assert not files.complete
    assert all(file.problem for file in files.files.values())


def test_a_rank_of_data_parallel_attention_is_found_by_stage_and_tensor_rank(tmp_path: Path) -> None:
    (tmp_path / "t-TP-1-DP-1-PP-0.trace.json.gz").write_bytes(gzip.compress(b"{}"))
    files = BurstFiles(str(tmp_path), "t", [RankKey(0, 0, 0), RankKey(0, 0, 1)])
    files.look()
    assert list(files.whole) == [RankKey(0, 0, 1)]


def test_a_folder_is_private_and_leaves_with_its_traces_only(tmp_path: Path) -> None:
    folder = make_folder(os.getpid(), {VARIABLE: str(tmp_path)})
    path = Path(folder.here)
    assert folder.there == folder.here
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    (path / "a.trace.json.gz").write_bytes(b"x")
    (path / "somebody's").write_bytes(b"x")
    assert remove(folder) is not None
    assert [file.name for file in path.iterdir()] == ["somebody's"]
    (path / "somebody's").unlink()
    assert remove(folder) is None
    assert remove(folder) is None


@pytest.mark.parametrize("beside", [True, False])
def test_only_old_folders_of_ours_are_swept(beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = tmp_path if beside else tmp_path / "chosen"
    chosen.mkdir(exist_ok=True)
    monkeypatch.setattr(burst_folder, "PARENTS", (str(tmp_path), str(tmp_path / "missing")))
    old, fresh, link = (tmp_path / f"{NAME}{name}" for name in ("old", "fresh", "link"))
    old.mkdir()
    (old / "x.trace.json.gz").write_bytes(b"")
    fresh.mkdir()
    link.symlink_to(tmp_path)
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    folder = make_folder(os.getpid(), {VARIABLE: str(chosen)})
    remove_stale(folder)
    assert not old.exists()
    assert fresh.exists()
    assert link.is_symlink()
    assert Path(folder.here).exists()


def test_a_folder_that_is_kept_is_not_swept_and_can_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burst_folder, "PARENTS", ())
    kept = make_folder(os.getpid(), {VARIABLE: str(tmp_path)})
    for _ in range(2):
        keep(kept)
    os.utime(kept.here, (0, 0))
    remove_stale(make_folder(os.getpid(), {VARIABLE: str(tmp_path)}))
    assert Path(kept.here).exists()
    assert remove(kept) is None
    keep(kept)
    assert not Path(kept.here).exists()
    Path(kept.here).symlink_to(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    keep(kept)
    assert {path.name for path in tmp_path.iterdir()} == names, "nothing is written through a link"


def test_a_folder_that_became_a_link_is_not_emptied_through_it(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "x.trace.json.gz").write_bytes(b"")
    link = tmp_path / f"{NAME}link"
    link.symlink_to(tmp_path / "theirs")
    assert remove(Folder(str(link), str(link))) is not None
    assert [file.name for file in (tmp_path / "theirs").iterdir()] == ["x.trace.json.gz"]


def test_nothing_is_swept_through_a_link_of_another_file_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burst_folder, "PARENTS", ("/tmp",))
    ours, tree = tmp_path / "ours", tmp_path / "tree"
    (old := ours / f"{NAME}old").mkdir(parents=True)
    os.utime(old, (0, 0))
    (here := tree / "var" / f"{NAME}new").mkdir(parents=True)
    (tree / "tmp").symlink_to(ours)
    remove_stale(Folder(f"/var/{here.name}", str(here)))
    assert old.exists()
    (tree / "tmp").unlink()
    (swept := tree / "tmp" / old.name).mkdir(parents=True)
    os.utime(swept, (0, 0))
    remove_stale(Folder(f"/var/{here.name}", str(here)))
    assert not swept.exists()


@pytest.mark.parametrize("parent", ["missing", "file"])
def test_no_folder_says_why_and_what_to_set(tmp_path: Path, parent: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match=parent) as error:
        make_folder(os.getpid(), {VARIABLE: str(tmp_path / parent)})
    assert VARIABLE in error.value.remedy


def test_a_scheduler_that_is_gone_gets_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="gone"):
        make_folder(1 << 22, {VARIABLE: str(tmp_path)})


def test_a_folder_in_another_file_tree_is_not_made_through_a_link(tmp_path: Path) -> None:
    proc, tree = tmp_path / "proc", tmp_path / "tree"
    for pid in ("self", "7"):
        (proc / pid / "ns").mkdir(parents=True)
        (proc / pid / "ns" / "mnt").symlink_to(f"mnt:[{pid}]")
    (proc / "7" / "status").write_text(f"Tgid:\t7\nUid:\t{os.geteuid()}\t0\t0\t0\n")
    tree.mkdir()
    (proc / "7" / "root").symlink_to(tree)
    (tree / "tmp").symlink_to("/tmp")
    with pytest.raises(FolderError):
        make_folder(7, {VARIABLE: "/tmp"}, str(proc))
    (tree / "data").mkdir()
    folder = make_folder(7, {VARIABLE: "/data"}, str(proc))
    assert folder.there.startswith("/data/")
    assert Path(folder.here).is_dir()
    assert (tree / "data" / Path(folder.there).name).is_dir()
    assert Folder(folder.there, folder.here) == folder


@pytest.mark.parametrize(
    ("version", "asked"), [("0.5.23", 8), ("0.6.0", 8), ("0.5.11", 9), ("0.5.15.post1", 9), (None, 9), ("main", 9)]
)
def test_whole_rounds_are_asked_for(version: str | None, asked: int) -> None:
    plan = make_plan(version, 4, 2)
    assert (plan.micro_batches, plan.num_steps) == (8, asked)


@settings(deadline=None)
@given(st.integers(1, 128))
def test_a_default_burst_is_short_and_has_whole_rounds(slots: int) -> None:
    rounds = default_rounds(slots)
    assert rounds >= 2
    assert rounds * slots >= 16
    assert (rounds - 1) * slots < 16 or rounds == 2


def test_what_is_sent_and_what_is_known() -> None:
    plan = make_plan("0.5.11", 2, 2)
    body = start_body(plan, "0.5.11", "cpu", "/f", "t", with_stack=False)
    assert body["activities"] == ["CPU"]
    assert "profile_id" not in body
    assert "profile_id" in start_body(plan, "0.5.15", "cuda", "/f", "t", with_stack=False)
    assert any("free(): invalid pointer" in line for line in risks("0.5.9", with_stack=False))
    assert not any("kill" in line for line in risks("0.5.23", with_stack=False))
    assert any("not known" in line for line in risks(None, with_stack=False))
    assert len(risks("0.5.23", with_stack=True)) > len(risks("0.5.23", with_stack=False))

"""`ppscope trace` without the command line: exit codes, folders, bad files."""

from __future__ import annotations

import gzip
import io
import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from ppscope.commands.trace import trace
from ppscope.snapshot.page_data import extract
from ppscope.trace.batch import analyse_files, find_files
from ppscope.trace.command import read, run
from tests.kineto import BASE_NS, Pipeline, Trace, merged_trace


def quiet(folder: Path) -> Path:
    trace = Trace()
    trace.span("step[DECODE bs=4]", 0, 90_000)
    trace.replay([(f"gemm_{index}", 2000 + index * 100, 90) for index in range(40)], 100)
    return trace.write(folder / "quiet.json.gz")


def test_nothing_found_and_something_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([str(quiet(tmp_path))], as_json=False) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Nothing found" in out
    assert "Of the bubble nothing is known" in out
    folder = tmp_path / "profile"
    folder.mkdir()
    Pipeline([1_000_000] * 2, leaks=[(0, 3, "stray")]).build().write(folder)
    assert run([str(folder)], as_json=True) == 1
    out, err = capsys.readouterr()
    assert {finding["id"] for finding in json.loads(out)["findings"]} == {"graphs.eager_leak", "pipeline.bubbles"}
    assert err == ""


@pytest.mark.parametrize("as_json", [True, False])
def test_what_cannot_be_read_is_one_line_and_the_rest_is_shown(
    as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("not a trace")
    assert run([str(bad), str(quiet(tmp_path))], as_json) == 3
    out, err = capsys.readouterr()
    assert "quiet.json.gz" in out
    assert err.count("\n") == 1
    assert "bad.json" in err


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize(
    "labels", [("TP00-PP00", "TP00-PP01"), ("TP00", "TP01"), ("TP00-DP00-PP00-EP00", "TP00-DP01-PP00-EP00")]
)
def test_a_merged_trace_of_several_ranks_names_the_files_to_give_instead(
    labels: tuple[str, str], folder: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "merged-17.5.trace.json.gz"
    traces = Pipeline([1_000_000] * 2).build().traces
    path.write_bytes(gzip.compress(json.dumps(merged_trace(dict(zip(labels, traces, strict=True)))).encode()))
    assert run([str(tmp_path if folder else path)], as_json=False) == 3
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert str(path) in err
    assert "merged trace" in err
    assert err.rstrip().endswith("17.5-TP-*.trace.json.gz")


def test_a_merged_trace_of_one_rank_and_one_beside_the_ranks_files_do_no_harm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = Pipeline([1_000_000] * 2).build()
    alone = tmp_path / "merged-1.trace.json.gz"
    alone.write_bytes(gzip.compress(json.dumps(merged_trace({"TP00": stages.traces[0]})).encode()))
    assert run([str(alone)], as_json=True) == 0
    stages.write(tmp_path)
    (tmp_path / "merged-2.trace.json.gz").write_bytes(
        gzip.compress(
            json.dumps(merged_trace(dict(zip(("TP00-PP00", "TP00-PP01"), stages.traces, strict=True)))).encode()
        )
    )
    run([str(tmp_path)], as_json=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["missing.json", "empty"])
def test_paths_without_a_trace(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert run([str(tmp_path / name)], as_json=True) == 3
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)


def test_a_path_that_is_no_file_or_folder_of_ours_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe nobody writes to, an endless device, a folder that may not be listed (root may list all, so it is told)."""
    pipe, closed = tmp_path / "pipe.json", tmp_path / "closed"
    os.mkfifo(pipe)
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    closed.mkdir()

    def refuse(self: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    for path, said in (
        (pipe, "not a regular file"),
        ("/dev/zero", "not a regular file"),
        (loop, "Too many levels of symbolic links"),
        (closed, "Permission denied"),
    ):
        assert run([str(path)], as_json=False) == 3
        out, err = capsys.readouterr()
        assert (out, err) == ("", f"ppscope: {path}: {said}\n")


def test_a_lone_stage_is_no_pipeline_and_a_small_bubble_has_its_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = Pipeline([1_000_000] * 2, slots=2).build().write(tmp_path)
    assert run([str(paths[1])], as_json=False) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "(1 file, PP1 alone, node0)" in out
    assert "Of the bubble nothing is known" in out
    assert run([str(tmp_path)], as_json=False) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "(2 files, PP 2, node0)" in out
    assert " % is little: from 30 % on" in out


def test_prefill_and_decode_share_the_stages_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = Trace()
    trace.span("step[DECODE bs=4]", 0, 90_000)
    trace.replay([(f"gemm_{index}", 2000 + index * 200, 100) for index in range(40)], 100)
    path = trace.write(tmp_path / "decode.json")
    run([str(path)], as_json=False)
    assert "GPU time:" not in capsys.readouterr().out, "it is all one kind"
    trace.span("step[EXTEND bs=1 toks=64]", 100_000, 90_000)
    for index in range(40):
        trace.eager("gemm", 101_000 + index, 120_000 + index * 400, 300)
    run([str(trace.write(tmp_path / "both.json"))], as_json=False)
    assert "GPU time: 75 % in 1 prefill, 25 % in 1 decode steps" in capsys.readouterr().out


def test_a_finding_among_many_runs_names_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        leaks = [(0, 3, "stray")] if name == "two" else []
        Pipeline([1_000_000] * 2, slots=2, leaks=leaks).build().write(tmp_path / name, "same")
    assert run([str(tmp_path)], as_json=True) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["summary"].endswith("; run two/same")


def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([], as_json=False) == 2
    assert capsys.readouterr().out == ""


def test_foreign_files_in_a_folder_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiet(tmp_path)
    (tmp_path / "config.json").write_text('{"a": 1}')
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "merged-1.trace.json.gz").write_bytes(gzip.compress(b"[]"))
    assert [file.name for file in find_files([str(tmp_path)]).every] == ["config.json", "quiet.json.gz"]
    assert run([str(tmp_path)], as_json=True) == 0
    out, err = capsys.readouterr()
    assert len(json.loads(out)["ranks"]) == 1
    assert "config.json" in err


def test_a_cut_file_says_what_was_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = quiet(tmp_path)
    path.write_bytes(path.read_bytes()[:-40])
    assert run([str(path)], as_json=False) == 0
    assert "the gzip data ends in the middle" in capsys.readouterr().out


def test_one_process_per_file_gives_what_one_process_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = Pipeline([1_000_000] * 2, leaks=[(1, 3, "stray")]).build().write(tmp_path)
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    files = [*paths, bad]
    alone, errors = analyse_files(files)
    monkeypatch.setattr("ppscope.trace.batch.PARALLEL_BYTES", 0)
    heard: list[str] = []
    together, same_errors = analyse_files(files, lambda name, done, size: heard.append(name))
    assert together == alone
    assert errors == same_errors
    assert list(errors) == [bad]
    assert set(heard) == {file.name for file in files}


def test_a_killed_reader_costs_its_file_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = Pipeline([1_000_000] * 2).build().write(tmp_path)
    monkeypatch.setattr("ppscope.trace.batch.PARALLEL_BYTES", 0)
    pids: list[int] = []

    def start(self: BaseProcess) -> None:
        real_start(self)
        if not pids:
            pids.append(self.pid or 0)
            os.kill(pids[0], signal.SIGKILL)

    real_start = SpawnProcess.start
    monkeypatch.setattr(SpawnProcess, "start", start)
    found, errors = analyse_files(paths, workers=2)
    assert len(found) == len(errors) == 1
    assert "killed by SIGKILL" in next(iter(errors.values()))


def test_an_interrupt_leaves_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = Pipeline([1_000_000] * 3).build().write(tmp_path)
    monkeypatch.setattr("ppscope.trace.batch.PARALLEL_BYTES", 0)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        analyse_files(paths, interrupt, workers=2)
    assert multiprocessing.active_children() == []


def test_names_that_are_no_utf8_and_ascii_terminals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = quiet(tmp_path).rename(tmp_path / os.fsdecode(b"caf\xe9.json.gz"))
    for as_json in (True, False):
        out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr("sys.stdout", out)
        assert run([str(path)], as_json) == 0
        out.flush()
        assert b"caf" in out.buffer.getvalue()


@pytest.mark.parametrize("base_ns", [BASE_NS, 0], ids=["wall clock", "from zero"])
def test_the_page_says_what_the_text_says(base_ns: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of one run and of two that began at other times: findings, the whole time axis, spans on it."""
    for name in ("a", "b"):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        pipeline = Pipeline([1_000_000] * 2, leaks=[(0, 3, "stray")]).build()
        for rank in pipeline.traces:
            rank.base_ns = base_ns
        pipeline.write(folder, name)
    for given in (tmp_path / "runs" / "a", tmp_path / "runs"):
        report, _ = read([str(given)])
        assert report is not None
        assert report.findings
        out = tmp_path / "page.html"
        assert trace((str(given),), as_json=False, as_text=False, output=out, ascii_only=False) == 1
        document = extract(out.read_bytes())
        told = [(finding["id"], finding["summary"]) for finding in document["view"]["findings"]]
        assert told == [(finding.id, finding.summary) for finding in report.findings]
        windows = [rank.window_ns for run in report.runs for rank in run.ranks if rank.window_ns is not None]
        assert document["window"]["seconds"] >= max(end - start for start, end in windows) / 1e9
        assert all(lane["took"] for lane in document["view"]["exact_lanes"])
        assert {burst["burst"] for burst in document["bursts"]} == {1}
    capsys.readouterr()


def test_a_hostile_name_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = Pipeline([1_000_000] * 2, leaks=[(0, 3, "evil\x1b[2Jkernel")], hosts=["\x1b]0;x\x07", "b"]).build()
    pipeline.write(tmp_path)
    assert run([str(tmp_path)], as_json=False) == 1
    assert "\x1b" not in capsys.readouterr().out

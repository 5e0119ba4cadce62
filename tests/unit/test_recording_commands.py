"""open, compare and export on a recording of half an hour: which part they use, and that they say so."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from ppscope import cli
from ppscope.records import AnyRecord, Server, Settings
from ppscope.snapshot.page_data import extract
from ppscope.snapshot.recorder import Recorder
from tests.recordings import START_NS, head, probe_second, second
from tests.terminal.terminal import PPSCOPE

MINUTES = 30


def recorded(path: Path, records: list[AnyRecord]) -> Path:
    recorder = Recorder(path, 1 << 30, 1e9)
    recorder.write(records)
    recorder.close()
    return path


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Power is 80 W and a watt more each minute, throughput 24 tok/s and twice that in the second half."""
    rest = (
        record
        for at in range(60 * MINUTES)
        for record in second(at, 2, power_w=80.0 + at // 60, tokens_per_s=24.0 if at < 30 * MINUTES else 48.0)
    )
    return recorded(tmp_path_factory.mktemp("commands") / "long.pps", [*head(2), *rest])


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.main, [str(argument) for argument in arguments])


def powers(text: str) -> set[float]:
    return {float(row["power_w"]) for row in csv.DictReader(io.StringIO(text)) if row["index"] == "0"}


def test_the_last_ten_minutes_are_used_and_that_is_said(long: Path) -> None:
    done = run("export", long, "--to", "gpu-csv")
    assert done.exit_code == 0
    assert done.stderr == "ppscope: long.pps: 20:00 to 30:00 of 30:00 is used; --from and --until choose another part\n"
    assert powers(done.stdout) <= {99.0, *(100.0 + minute for minute in range(10))}
    assert 109.0 in powers(done.stdout)


@pytest.mark.parametrize(
    ("asked", "watts"),
    [
        (["--from", "5:00", "--until", "6:59"], {85.0, 86.0}),
        (["--from", "-1:59"], {108.0, 109.0}),
        (["--from", "0", "--until", "59"], {80.0}),
        (["--until", "59"], {80.0}),
    ],
)
def test_another_part_is_used_without_a_word(long: Path, asked: list[str], watts: set[float]) -> None:
    done = run("export", long, "--to", "gpu-csv", *asked)
    assert done.exit_code == 0
    assert done.stderr == ""
    assert powers(done.stdout) == watts


def test_open_json_has_that_part(long: Path) -> None:
    whole, part = run("open", long, "--json"), run("open", long, "--json", "--from", "60", "--until", "1:30")
    assert "20:00 to 30:00" in whole.stderr
    assert json.loads(whole.stdout)["window"]["seconds"] == pytest.approx(600, abs=2)
    window = json.loads(part.stdout)["window"]
    assert window["seconds"] == pytest.approx(30, abs=0.2)


def test_two_parts_of_one_recording_are_compared(long: Path, tmp_path: Path) -> None:
    pages = tmp_path / "before.html", tmp_path / "after.html"
    assert run("export", long, "--to", "html", "--from", "0", "--until", "2:00", "-o", pages[0]).exit_code == 0
    assert run("export", long, "--to", "html", "--from", "-2:00", "-o", pages[1]).exit_code == 0
    compared = json.loads(run("compare", *pages, "--json").stdout)
    figure = next(figure for figure in compared["figures"] if figure["name"] == "throughput")
    assert (figure["before"], figure["after"]) == (pytest.approx(24), pytest.approx(48))
    done = run("compare", long, long, "--until", "60")
    assert done.exit_code == 1
    assert "throughput" in done.stdout
    assert "×1.00" in done.stdout


def test_a_page_of_a_stretch_draws_all_of_it(long: Path, tmp_path: Path) -> None:
    page = tmp_path / "p.html"
    assert run("export", long, "--to", "html", "--from", "0", "--until", "15:00", "-o", page).exit_code == 0
    document = extract(page.read_bytes())
    for track in document["tracks"]:
        assert sum(track["gap"]) + sum(track["took"]) == pytest.approx(900 * 1_000_000_000, rel=0.01)
        assert sum(track["took"]) == pytest.approx(900 * 1_000_000_000, rel=0.01)


def test_with_exact_spans_a_minute_is_used(tmp_path: Path) -> None:
    records = [record for at in range(100) for record in (*second(at, 2), *probe_second(at, 2, 40))]
    file = recorded(tmp_path / "exact.pps", [*head(2), *records])
    page = tmp_path / "p.html"
    done = run("export", file, "--to", "html", "-o", page)
    assert "0:40 to 1:40 of 1:40 is used" in done.stderr
    document = extract(page.read_bytes())
    lanes = [lane for lane in document["view"]["exact_lanes"] if lane["lane"] == "host"]
    assert len(lanes) == 2
    assert all(sum(lane["gap"]) + sum(lane["took"]) > 58e9 / lane["unit_ns"] for lane in lanes)
    assert run("export", file, "--to", "html", "--from", "0", "-o", page).exit_code == 0
    document = extract(page.read_bytes())
    assert all(
        sum(lane["gap"]) + sum(lane["took"]) > 98e9 / lane["unit_ns"]
        for lane in document["view"]["exact_lanes"]
        if lane["lane"] == "host"
    )


@pytest.mark.parametrize("command", [["export", "--to", "folded"], ["open", "--json"], ["compare", "LONG"]])
def test_what_is_not_there_is_a_matter_of_usage(long: Path, command: list[str]) -> None:
    words = [str(long) if word == "LONG" else word for word in command]
    done = run(*words, long, "--from", "40:00")
    assert done.exit_code == 2
    assert "is 30:00 long and has nothing from 40:00" in done.stderr
    done = run(*words, long, "--from", "teatime")
    assert done.exit_code == 2
    assert "is not a time" in done.stderr
    assert "Traceback" not in done.stderr


NAMES = [
    b"plain.pps", b"-dash.pps", b"es\x1b[31mcape.pps", b"new\nline.pps", "übung \u202ertl 😀.pps".encode(), b"not\xffutf8.pps",
    b"a" * 240 + b".pps", b"back\\slash $(id) `x` %s {0}.pps",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_any_file_name_is_read_written_and_said_on_one_line(tmp_path: Path, name: bytes) -> None:
    file = recorded(tmp_path / os.fsdecode(name), [*head(2), *second(0, 2), *second(1, 2)])
    page = tmp_path / (os.fsdecode(name).removesuffix(".pps") + ".html")
    for done in (
        run("open", "--json", "--", file),
        run("export", "--to", "html", "-o", page, "--", file),
        run("compare", "-o", tmp_path / "c.html", "--", file, page),
        run("compare", "--", file, page),
        run("export", "--to", "speedscope", "--", file),
    ):
        assert done.exit_code in (0, 1), done.output
        assert done.stderr == ""
        assert "\x1b" not in done.stdout
    file.write_bytes(file.read_bytes()[:-9])
    cut = run("open", "--json", "--", file)
    file.write_bytes(b"something else")
    foreign, gone = run("open", "--json", "--", file), run("open", "--json", "--", tmp_path / "no" / os.fsdecode(name))
    for done, code, said in ((cut, 0, "cut in the middle"), (foreign, 3, "neither"), (gone, 3, "no such file")):
        assert done.exit_code == code
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
        assert done.stderr.removesuffix("\n").isprintable()


def test_where_a_page_was_written_is_said_byte_for_byte(tmp_path: Path) -> None:
    file = recorded(tmp_path / "r.pps", [*head(2), *second(0, 2), *second(1, 2)])
    output = os.fsencode(tmp_path) + b"/c\xff.html"
    done = subprocess.run([PPSCOPE, "compare", file, file, "-o", output], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, output + b"\n", b"")


def test_what_is_read_is_not_written_over(tmp_path: Path) -> None:
    file = recorded(tmp_path / "r.pps", [*head(2), *second(0, 2), *second(1, 2)])
    link, hard = tmp_path / "link.html", tmp_path / "hard.html"
    link.symlink_to(file)
    hard.hardlink_to(file)
    before = file.read_bytes()
    for output in (file, link, hard, tmp_path / "." / "r.pps"):
        for done in (
            run("export", file, "--to", "html", "-o", output),
            run("compare", file, file, "-o", output),
            run("compare", link, file, "-o", output),
        ):
            assert done.exit_code == 2
            assert "is read and cannot be written over" in done.stderr
    assert file.read_bytes() == before


HOSTILE = "</script><script>alert(1)</script>\x1b[2J\u202e\n'\"" + "x" * 10_000


def test_hostile_names_in_a_comparison_stay_text(tmp_path: Path) -> None:
    records: list[AnyRecord] = [
        msgspec.structs.replace(record, model=HOSTILE, version=HOSTILE) if isinstance(record, Server) else record
        for record in [*head(2), *second(0, 2), *second(1, 2)]
    ]
    one = recorded(tmp_path / "a.pps", records)
    other = recorded(tmp_path / "b.pps", [*records, Settings(START_NS + 1, "resolved", {"attention_backend": HOSTILE})])
    said = run("compare", one, other).stdout
    assert "attention_backend" in said
    assert all(line.isprintable() for line in said.splitlines())
    assert run("compare", one, other, "-o", tmp_path / "c.html").exit_code in (0, 1)
    assert (tmp_path / "c.html").read_text().count("<script") == 3

"""A recording of any length: read by stretches, the same wherever one jumps to, in bounded memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ppscope.app_window import ZOOM_NS
from ppscope.collect.stream import MAGIC, encode
from ppscope.records import (
    SCHEMA,
    AnyRecord,
    End,
    GpuSample,
    Hello,
    HostSamples,
    LogNote,
    ProbeSpans,
    RankKey,
    Server,
    StackSpans,
)
from ppscope.snapshot.clip import clip
from ppscope.snapshot.document import build
from ppscope.snapshot.index import Index
from ppscope.snapshot.read import read_file
from ppscope.snapshot.recorded import RecordedSession, session_of
from ppscope.snapshot.recorder import Recorder
from ppscope.snapshot.scrub import BLOCK_NS, RecordingFeed
from ppscope.snapshot.window import extent_of, is_bulk
from ppscope.views import MOST_SPANS
from tests.recordings import MS, SECOND, START_NS, head, probe_second, recording, second

PP = 4
MINUTES = 15
HOUR_S = 3600


def write(path: Path, seconds: int, pp: int) -> Path:
    """A recording whose load changes from minute to minute, so that no two look alike."""
    with path.open("wb") as file:
        file.write(MAGIC + b"".join(map(encode, head(pp))))
        for at in range(seconds):
            file.write(b"".join(map(encode, changing_second(at, pp))))
    return path


def lanes_alone(path: Path, seconds: int, pp: int) -> Path:
    """The same without readings of GPUs and host, which take long to write and say nothing of lanes."""
    with path.open("wb") as file:
        file.write(MAGIC + b"".join(map(encode, head(pp))))
        for at in range(seconds):
            records = (r for r in changing_second(at, pp) if not isinstance(r, GpuSample | HostSamples))
            file.write(b"".join(map(encode, records)))
    return path


def changing_second(at: int, pp: int) -> list[AnyRecord]:
    minute = at // 60
    return second(at, pp, turn_ns=(30 + minute % 7) * MS, tokens_per_s=float(minute), power_w=80.0 + minute)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("long") / "long.pps", MINUTES * 60, PP)


@pytest.fixture(scope="module")
def whole(long: Path) -> RecordedSession:
    return session_of(read_file(long).records)


@pytest.fixture(scope="module")
def feed(long: Path) -> RecordingFeed:
    return RecordingFeed(read_file(long).index)


def test_every_zoom_divides_a_block() -> None:
    assert all(BLOCK_NS % width == 0 for width in ZOOM_NS)


def read_all(feed: RecordingFeed, start: int, end: int, columns: int, ranks: Sequence[RankKey] | None) -> object:
    for _ in range(200):
        lanes = feed.lanes(start, end, columns, ranks)
        if not feed.poll():
            return lanes
    raise AssertionError("never whole")


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_wherever_one_jumps_the_lanes_are_those_of_the_whole(
    feed: RecordingFeed, whole: RecordedSession, data: st.DataObject
) -> None:
    width = data.draw(st.sampled_from(ZOOM_NS))
    columns = data.draw(st.integers(1, 200))
    oldest, newest = feed.extent()
    first = data.draw(st.integers(oldest // width - columns, newest // width))
    start, end = first * width, (first + columns) * width
    ranks = data.draw(st.none() | st.just([RankKey(0, 2, 0), RankKey(0, 1, 0)]))
    feed.look_at(start, newest)
    assert read_all(feed, start, end, columns, ranks) == whole.lanes(start, end, columns, ranks)


@given(st.data())
@settings(deadline=None, max_examples=30)
def test_wherever_one_jumps_the_spans_are_those_of_the_whole(
    feed: RecordingFeed, whole: RecordedSession, data: st.DataObject
) -> None:
    oldest, newest = feed.extent()
    start = data.draw(st.integers(oldest - SECOND, newest))
    end = start + data.draw(st.integers(1, 100 * SECOND))
    for stage in range(PP):
        shown, there = (one.spans(RankKey(0, stage, 0), start, end) for one in (feed, whole))
        assert shown[-MOST_SPANS:] == there[-MOST_SPANS:]
        assert len(shown) == len(there) or len(shown) >= MOST_SPANS


def test_a_list_of_spans_is_read_once_and_no_further_than_it_is_shown(
    long: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = RecordingFeed(read_file(long).index)
    oldest, newest = feed.extent()
    asked: list[int] = []
    block = feed._block
    monkeypatch.setattr(feed, "_block", lambda number: asked.append(number) or block(number))  # type: ignore[func-returns-value]
    first, key = RankKey(0, 0, 0), RankKey(0, 1, 0)
    shown = feed.spans(key, oldest, newest)
    assert len(shown) >= MOST_SPANS
    assert len(asked) < (newest - oldest) // BLOCK_NS // 3, (
        "a quarter of an hour is not read for a list of five hundred"
    )
    before = len(asked)
    assert feed.spans(key, oldest, newest) == shown
    assert len(asked) == before, "a repaint asks for the same"
    for other in ((first, oldest, newest), (key, oldest, newest - SECOND), (key, newest - SECOND, newest)):
        assert feed.spans(*other) != shown


@pytest.mark.parametrize("minute", [2, 7, 14])
def test_figures_follow_once_the_lanes_rest(feed: RecordingFeed, minute: int) -> None:
    end = START_NS + minute * 60 * SECOND - SECOND // 2
    feed.look_at(end - 10 * SECOND, end)
    feed.poll()
    feed.poll()
    screen = feed.screen()
    assert abs(screen.now_ns - end) <= 2 * SECOND
    assert screen.header.load.tokens_per_s == pytest.approx(minute - 1, abs=0.01)
    assert screen.stages[0].power_w == pytest.approx(80 + minute - 1)
    assert [finding.id for finding in screen.findings].count("graphs.disabled_by_flag") == 1
    tokens = [row[0] for row in screen.load_history]
    assert len(tokens) > 55
    assert set(tokens) <= {minute - 2, minute - 1}, "of the minute before"
    assert feed.stacks(RankKey(0, 0, 0), 10.0)[0].seconds == pytest.approx(10, abs=2)
    assert feed.stacks(RankKey(0, 0, 0), 60.0, end - 55 * SECOND)[0].seconds == pytest.approx(5, abs=2), (
        "a minute is kept"
    )


def test_figures_of_the_end_are_those_of_the_whole(long: Path, whole: RecordedSession) -> None:
    at_end, all_of_it = RecordingFeed(read_file(long).index).screen(), whole.screen()
    assert at_end.findings == all_of_it.findings
    assert at_end.stages == all_of_it.stages
    assert at_end.occupancy == all_of_it.occupancy
    assert at_end.header == all_of_it.header


def test_a_short_recording_is_judged_as_a_whole(tmp_path: Path) -> None:
    feed = RecordingFeed(read_file(write(tmp_path / "short.pps", 30, PP)).index)
    before = feed.screen()
    feed.look_at(START_NS, START_NS + 3 * SECOND)
    assert not feed.poll()
    assert not feed.poll()
    assert feed.screen() is before
    assert before.findings


def exact(path: Path, seconds: int, pp: int) -> Path:
    """A recording with five hundred exact spans a second and stage."""
    with path.open("wb") as file:
        file.write(MAGIC + b"".join(map(encode, head(pp))))
        for at in range(seconds):
            file.write(b"".join(map(encode, [*probe_second(at, pp, 500), *second(at, pp)])))
    return path


@pytest.mark.parametrize(
    ("made", "seconds", "pp", "most_mb"), [(lanes_alone, HOUR_S, 8, 70), (exact, 300, 4, 110)], ids=["sampled", "exact"]
)
def test_a_long_recording_in_bounded_memory(tmp_path: Path, made: Any, seconds: int, pp: int, most_mb: float) -> None:
    file = made(tmp_path / "long.pps", seconds, pp)
    program = (
        "import sys; from tests.unit.test_scrub import jump_about; print(jump_about(sys.argv[1], int(sys.argv[2])))"
    )
    folder = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program, file, str(seconds)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < most_mb, "MB more than before the file was opened"


def jump_about(file: str, seconds: int) -> float:
    """Open it and look at it from end to end at three zooms, figures included; by how many MB the most memory in use grew."""
    before = most_memory_mb()
    feed = RecordingFeed(read_file(Path(file)).index)
    oldest, newest = feed.extent()
    assert newest - oldest > (seconds - 2) * SECOND
    for width in (50 * MS, 500 * MS, 5000 * MS):
        for part in range(12):
            first = (oldest + (newest - oldest) * part // 12) // width
            feed.look_at(first * width, (first + 130) * width)
            lanes = feed.lanes(first * width, (first + 130) * width, 130)
            while feed.poll():
                lanes = feed.lanes(first * width, (first + 130) * width, 130)
            shown = [cell for lane in lanes for cell in lane.cells]
            assert any(cell.phase is not None for cell in shown)
            feed.poll()
            feed.poll()
    return most_memory_mb() - before


def most_memory_mb() -> float:
    (line,) = (row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def test_a_recording_in_parts_is_one(tmp_path: Path) -> None:
    now = 0.0
    recorder = Recorder(tmp_path / "r.pps", 1 << 30, 50.0, lambda: now)
    note = LogNote(START_NS + SECOND, "error", "CUDA out of memory")
    recorder.write([*head(PP), note])
    for at in range(200):
        now = float(at)
        recorder.write(changing_second(at, PP))
    recorder.close(End(0, "quit"))
    other = Recorder(tmp_path / "r2.pps", 1 << 30, 1e9)
    other.write([Hello(SCHEMA, "0.1.0", "gpu01", START_NS - 1, 1, 98), *recording(5)[1:]])
    other.close()
    (tmp_path / "r2.pps").rename(tmp_path / "r.0009.pps")
    folder = tmp_path / "r.0010.pps"
    folder.mkdir()
    opened = read_file(tmp_path / "r.pps")
    oldest, newest = RecordingFeed(opened.index).extent()
    assert newest - oldest > 198 * SECOND
    records = opened.records
    assert records.count(note) == 1, "each part repeats what was known before it"
    spans = [record for record in records if isinstance(record, StackSpans)]
    assert len(spans) == 200 * PP
    late = list(opened.index.records(START_NS + 150 * SECOND, None))
    assert late.count(note) == 1
    assert session_of(late).screen().header.model == "org/Model-7B"


def test_a_part_that_is_damaged_is_named_and_the_rest_shown(tmp_path: Path) -> None:
    now = 0.0
    recorder = Recorder(tmp_path / "r.pps", 1 << 30, 10.0, lambda: now)
    recorder.write(head(PP))
    for at in range(30):
        now = float(at)
        recorder.write(second(at, PP))
    recorder.close(End(0, "quit"))
    part = tmp_path / "r.0001.pps"
    part.write_bytes(part.read_bytes()[:-7])
    opened = read_file(tmp_path / "r.pps")
    assert opened.damage.startswith("r.0001.pps: cut in the middle")
    assert RecordingFeed(opened.index).extent()[1] > START_NS + 29 * SECOND


def test_a_recording_that_is_written_on_and_rotated_is_read_to_where_it_was(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.pps", 1 << 30, 1e9)
    recorder.write(head(PP))
    for at in range(100):
        recorder.write(second(at, PP))
    feed = RecordingFeed(read_file(tmp_path / "r.pps").index)
    (tmp_path / "r.pps").rename(tmp_path / "r.0001.pps")
    (tmp_path / "r.pps").write_bytes(b"something else" * 1000)
    lanes = feed.lanes(START_NS, START_NS + 10 * SECOND, 10)
    recorder.close()
    assert [lane.rank.pp for lane in lanes] == list(range(PP))
    assert all(cell.phase is not None for lane in lanes for cell in lane.cells)


@given(st.data())
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_stretch_is_cut_at_its_edges(data: st.DataObject) -> None:
    records = [*recording(6, 2), *probe_second(2, 2, 200), *probe_second(3, 2, 200)]
    start = START_NS + data.draw(st.integers(-SECOND, 7 * SECOND))
    end = start + data.draw(st.integers(1, 5 * SECOND))
    cut = list(clip(Index.of(records).records(start, end), start, end))
    for record in cut:
        extent = extent_of(record)
        if is_bulk(record) and extent is not None and not isinstance(record, ProbeSpans):
            assert start <= extent[0] <= extent[1] <= end
        if isinstance(record, ProbeSpans):
            assert all(start < at <= end for at in record.ends_ns)
    rows = [
        (record.tid, at)
        for record in records
        if isinstance(record, ProbeSpans)
        for at in record.ends_ns
        if start < at <= end
    ]
    assert sorted(rows) == sorted((r.tid, at) for r in cut if isinstance(r, ProbeSpans) for at in r.ends_ns)
    sampled = [r for r in records if isinstance(r, StackSpans)]
    before = sum(overlap(r, start, end) for r in sampled)
    assert sum(overlap(r, start, end) for r in cut if isinstance(r, StackSpans)) == before
    assert session_of(cut).damaged == 0


def overlap(record: StackSpans, start: int, end: int) -> int:
    pairs = zip(record.starts_ns, record.ends_ns, strict=True)
    return sum(max(min(upto, end) - max(begin, start), 0) for begin, upto in pairs)


def test_exact_spans_of_more_than_a_minute_are_all_there() -> None:
    records = [record for at in range(100) for record in (*second(at, 2), *probe_second(at, 2, 50))]
    feed = RecordingFeed(Index.of([*head(2), *records]))
    key = RankKey(0, 0, 0)
    early = feed.spans(key, START_NS + 5 * SECOND, START_NS + 7 * SECOND)
    assert len(early) > 80
    assert {span.provenance for span in early} == {"exact"}
    session = session_of([*head(2), *records])
    assert len(list(session.spans(key, START_NS, START_NS + 100 * SECOND))) > 4000
    (lane,) = feed.lanes(START_NS + 5 * SECOND, START_NS + 6 * SECOND, 20, [key])
    assert lane.provenance == "exact"
    assert lane == session.lanes(START_NS + 5 * SECOND, START_NS + 6 * SECOND, 20, [key])[0]


@given(st.data())
@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_time_that_makes_no_sense_hides_nothing_and_hangs_nothing(tmp_path: Path, data: st.DataObject) -> None:
    records = [*head(2), *(r for at in range(4) for r in (*second(at, 2), *probe_second(at, 2, 20)))]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(1, len(records) - 1))
        record = records[at]
        numbers = [name for name in record.__struct_fields__ if name.endswith("_ns") and getattr(record, name)]
        if not numbers:
            continue
        name = data.draw(st.sampled_from(numbers))
        # Without its server a file is refused: that record's time is out of all proportion at most, not out of range.
        far = 2**62 - 1 if isinstance(record, Server) else 2**63 - 1
        wild = data.draw(st.integers(-far, far) | st.integers(START_NS, START_NS + 10**15))
        value = getattr(record, name)
        changed = [*value[:-1], wild] if isinstance(value, list) else wild
        records[at] = msgspec.structs.replace(record, **{name: changed})
    file = tmp_path / "wild.pps"
    file.write_bytes(MAGIC + b"".join(map(encode, records)))
    index = read_file(file).index
    feed = RecordingFeed(index)
    feed.look_at(START_NS, START_NS + 4 * SECOND)
    feed.poll()
    feed.poll()
    lanes = feed.lanes(START_NS, START_NS + 4 * SECOND, 80)
    assert sum(cell.phase is not None for lane in lanes for cell in lane.cells) > 60
    assert feed.screen().header.model == "org/Model-7B"
    build(list(index.records(START_NS, START_NS + 4 * SECOND)))

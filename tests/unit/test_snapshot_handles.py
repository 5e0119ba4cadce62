"""A recording of more parts than a process may open files: all of it is read, also when names change meanwhile."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from ppscope.collect.stream import encode
from ppscope.records import AnyRecord, StackSpans
from ppscope.snapshot.read import read_file
from ppscope.snapshot.recorder import Recorder, part_paths
from tests.recordings import head, second

PARTS = 150


class Writer:
    """A recording with a part each second."""

    def __init__(self, path: Path) -> None:
        self.now = 0
        self.recorder = Recorder(path, 1 << 30, 1.0, lambda: float(self.now))
        self.recorder.write(head(2))

    def write(self, seconds: int) -> None:
        for _ in range(seconds):
            self.recorder.write(second(self.now, 2))
            self.now += 1


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The limit is one of numbers, and other tests' may lie high.
    highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 81, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def spans(records: list[AnyRecord]) -> list[bytes]:
    return [encode(record) for record in records if isinstance(record, StackSpans)]


@pytest.mark.usefixtures("few_descriptors")
def test_more_parts_than_descriptors_are_read_and_closed_again(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "r.pps")
    writer.write(PARTS)
    writer.recorder.close()
    assert len(part_paths(tmp_path / "r.pps")) == PARTS - 1
    gc.collect()  # recordings of other tests
    before = len(os.listdir("/proc/self/fd"))
    opened = read_file(tmp_path / "r.pps")
    first = spans(opened.records)
    assert len(first) == 2 * PARTS
    assert spans(opened.records) == first
    assert 0 < len(os.listdir("/proc/self/fd")) - before <= 64
    del opened
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_names_that_change_lose_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "r.pps")
    writer.write(PARTS)
    opened = read_file(tmp_path / "r.pps")
    first = spans(opened.records)
    writer.write(3)
    assert spans(opened.records) == first, "the last part got a number, and another file its name"
    for number, part in enumerate(part_paths(tmp_path / "r.pps")):
        part.rename(tmp_path / f"moved.{(number * 7) % 1000}")
    assert spans(opened.records) == first
    writer.recorder.close()


def test_another_file_under_a_parts_name_is_not_taken_for_it(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "r.pps")
    writer.write(PARTS)
    writer.recorder.close()
    opened = read_file(tmp_path / "r.pps")
    first = spans(opened.records)
    parts = part_paths(tmp_path / "r.pps")
    (tmp_path / "other").write_bytes(parts[5].read_bytes())
    (tmp_path / "other").rename(parts[0])
    parts[1].unlink()
    assert spans(opened.records) == first[4:], "what was removed is missing, and nothing is shown twice"

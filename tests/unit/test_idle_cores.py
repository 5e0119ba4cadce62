"""Idle cores of the node: the kernel's counters, the cores that may be used, and a cgroup's limit."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.sources import idle_cores
from ppscope.sources.idle_cores import LEAST_NS, IdleCores, idle_s

SECOND = 1_000_000_000
TICKS = os.sysconf("SC_CLK_TCK")


class Node:
    """A /proc and a cgroup tree whose counters are set by hand."""

    def __init__(self, folder: Path, cpus: int) -> None:
        self.proc, self.cgroup = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroup.mkdir()
        self._cpus = cpus
        self.idle(*[0.0] * cpus)

    def idle(self, *seconds: float) -> None:
        rows = [f"cpu{cpu} 9 9 9 {int((1000 + idle) * TICKS)} 0 9 9 0 0 0" for cpu, idle in enumerate(seconds)]
        text = "\n".join(["cpu 1 2 3 4 5 6 7 0 0 0", *rows, "intr 5 0", "btime 1", ""])
        (self.proc / "stat").write_text(text)

    def limit(self, path: str, quota: str, used_s: float) -> None:
        folder = self.cgroup / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.max").write_text(f"{quota} 100000\n")
        (folder / "cpu.stat").write_text(f"usage_usec {int(used_s * 1e6)}\nuser_usec 1\n")

    def member(self, path: str) -> None:
        (self.proc / "self" / "cgroup").write_text(f"12:cpu:/elsewhere\n0::{path}\n")

    def cores(self) -> IdleCores:
        return IdleCores(str(self.proc), str(self.cgroup))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 3})
    return Node(tmp_path, 4)


def test_idle_time_of_the_cores_that_may_be_used(node: Node) -> None:
    cores = node.cores()
    assert cores.read(0) is None, "one reading is no rate"
    node.idle(2.0, 1.0, 2.0, 0.5)
    assert cores.read(2 * SECOND) == pytest.approx(1.75), "core 2 is not ours"
    node.idle(2.0, 1.0, 9.0, 0.5)
    assert cores.read(4 * SECOND) == 0.0


def test_readings_too_close_say_nothing_and_do_not_shorten_the_next(node: Node) -> None:
    cores = node.cores()
    cores.read(0)
    node.idle(0.1, 0.1, 0.0, 0.1)
    assert cores.read(LEAST_NS - 1) is None
    node.idle(2.0, 0.0, 0.0, 0.0)
    assert cores.read(2 * SECOND) == pytest.approx(1.0)


def test_a_counter_that_steps_back_is_no_negative_idle_time(node: Node) -> None:
    node.idle(5.0, 5.0, 5.0, 5.0)
    cores = node.cores()
    cores.read(0)
    node.idle(4.9, 5.0, 5.0, 5.0)
    assert cores.read(SECOND) == 0.0


def test_without_the_kernels_counters_nothing_is_claimed(node: Node) -> None:
    cores = node.cores()
    cores.read(0)
    (node.proc / "stat").unlink()
    assert cores.read(SECOND) is None
    node.idle(1.0, 1.0, 1.0, 1.0)
    assert cores.read(2 * SECOND) is None
    node.idle(2.0, 2.0, 2.0, 2.0)
    assert cores.read(3 * SECOND) == pytest.approx(3.0)


@pytest.mark.parametrize("path", ["/", "/pods/one", "/pods/one/leaf"])
def test_a_limit_above_us_counts(node: Node, path: str) -> None:
    node.member(path)
    limited = "" if path == "/" else "pods/one"
    node.limit("pods", "max", 0.0)
    node.limit(limited, "250000", 10.0)
    node.limit("pods/one/leaf", "800000", 0.0)
    cores = node.cores()
    cores.read(0)
    node.idle(2.0, 2.0, 2.0, 2.0)
    node.limit(limited, "250000", 13.0)
    assert cores.read(2 * SECOND) == pytest.approx(1.0), "2.5 cores allowed, 1.5 of them used"
    node.idle(4.0, 4.0, 4.0, 4.0)
    node.limit(limited, "250000", 19.0)
    assert cores.read(4 * SECOND) == 0.0, "throttled, whatever the node has left"


def test_of_several_limits_the_one_that_leaves_least_counts(node: Node) -> None:
    node.member("/pods/ours")
    node.limit("pods", "800000", 0.0)
    node.limit("pods/ours", "200000", 0.0)
    cores = node.cores()
    cores.read(0)
    node.idle(2.0, 2.0, 2.0, 2.0)
    node.limit("pods", "800000", 15.0)
    assert cores.read(2 * SECOND) == pytest.approx(0.5), "ours is not used at all, the one above nearly is"


@pytest.mark.parametrize("text", ["", "max\n", "a b\n", "1000 0\n"])
def test_a_limit_that_cannot_be_read_is_none(node: Node, text: str) -> None:
    node.member("/")
    (node.cgroup / "cpu.max").write_text(text)
    cores = node.cores()
    cores.read(0)
    node.idle(1.0, 1.0, 1.0, 1.0)
    assert cores.read(SECOND) == pytest.approx(3.0)


def test_a_limits_use_that_vanishes_leaves_the_nodes_idle_time(node: Node) -> None:
    node.member("/")
    node.limit("", "100000", 1.0)
    cores = node.cores()
    cores.read(0)
    node.idle(1.0, 1.0, 1.0, 1.0)
    (node.cgroup / "cpu.stat").unlink()
    assert cores.read(SECOND) == pytest.approx(3.0)


@given(
    st.lists(
        st.binary(max_size=60) | st.sampled_from([b"cpu1 1 1 1 400 100 1", b"cpu0", b"cpu1 1 1 1", b"cpu1 a b c d e"])
    )
)
def test_lines_of_any_kind(lines: list[bytes]) -> None:
    whole = lines.count(b"cpu1 1 1 1 400 100 1")
    seconds = idle_s(lines, {1})
    assert (seconds or 0) >= whole * 500 / TICKS
    assert seconds is not None or not whole


def test_a_sandbox_that_counts_no_idle_time_is_not_called_busy() -> None:
    assert idle_s([b"cpu0 0 0 0 0 0 0 0", b"cpu1 0 0 0 0 0 0 0"], {0, 1}) is None


def test_this_machine_says_something() -> None:
    cores = idle_cores.IdleCores()
    assert cores.read(time.monotonic_ns()) is None
    time.sleep(0.6)
    idle = cores.read(time.monotonic_ns())
    assert idle is not None
    assert 0 <= idle <= len(os.sched_getaffinity(0))

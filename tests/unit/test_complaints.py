"""What people complained of in tools of this kind and what no other test has: numbers in docs/faults.md."""

from __future__ import annotations

import subprocess
import sys
import time

import msgspec
import pytest

from ppscope.records import Cost, GpuDevice, GpuSample, Hello, RankKey, Server
from ppscope.session import Session
from ppscope.views import GpuPanelRow
from ppscope.widgets.header import title_line
from ppscope.widgets.panel_gpus import gpus_listing
from ppscope.widgets.text import Line
from tests.fed_stream import FedStream

GIB = 1 << 30


def text_of(line: Line) -> str:
    return "".join(span[0] for span in line)


@pytest.mark.parametrize(
    ("used", "ranks", "memory", "whose"),
    [
        (20 * GIB, (), "20.0/192.0", "–"),  # nvitop#134: memory is held and no process is named
        (20 * GIB, (RankKey(0, 1, 0),), "20.0/192.0", "PP1.0"),
        (0, (), "0.0/192.0", "–"),
        (None, (RankKey(0, 1, 0),), "–/192.0", "PP1.0"),  # vllm-omni#6249: absent is not 0 bytes
    ],
)
def test_memory_without_a_process_is_shown_and_absence_is_not_zero(
    used: int | None, ranks: tuple[RankKey, ...], memory: str, whose: str
) -> None:
    device = GpuDevice(0, "GPU-0", "NVIDIA B200", 600.0, 192 * GIB)
    sample = GpuSample(0, 1, power_w=86.0, memory_used_bytes=used)
    listing = gpus_listing([GpuPanelRow(device, sample, (86.0,), (None,), (), ranks)], 160)
    (line,) = listing.items[0].lines
    words = text_of(line).split()
    assert memory in words
    assert whose in words


def test_the_view_counts_as_a_part_of_the_cost() -> None:
    """What is drawn is paid for on the same node, and on a large screen it is most of the cost."""
    program = (
        "import sys; from ppscope.collect.cost import CostMeter; meter = CostMeter(); print(flush=True);"
        "sys.stdin.read(); print(meter.read(()).view_cores)"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    assert float(child.communicate()[0]) > 0


def test_its_own_cost_stands_in_the_header() -> None:
    """py-spy#609: a profiler that takes a fifth of a core and does not say so."""

    stream = FedStream(Hello(1, "", "here", 1, 1, 1, "", ""), Server(1, 5, 1, "launch_server", "serving", (), 1, 1, 1))
    session = Session(stream)
    session.poll()
    assert "cost –" in text_of(title_line(session.screen().header, ("live", ""), 160))
    stream.add(Cost(2, own_cores=0.1, children_cores=0.18, stack_rate_hz=41.0, view_cores=0.1))
    session.poll()
    line = text_of(title_line(session.screen().header, ("live", ""), 160))
    assert "41 Hz" in line
    assert "cost 0.38 core" in line
    stream.add(Cost(3, own_cores=0.1, children_cores=0.04, stack_rate_hz=10.0, idle_cores=0.84))
    session.poll()
    header = session.screen().header
    usual = msgspec.structs.replace(
        header, model="moonshotai/Kimi-K2-Instruct", layout="PP8×TP1", host="gpu-node-017", emulated=True
    )
    for shown, widths in ((header, (80, 100)), (usual, (100, 120, 160))):
        for width in widths:
            assert "10 Hz, 0.8 cores idle" in text_of(title_line(shown, ("live", ""), width))

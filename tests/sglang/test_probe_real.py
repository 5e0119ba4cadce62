"""The probe inside the real SGLang: exact from the first look, and in agreement with what the server itself says of its batches."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ppscope.collect.client import CollectorProcess
from ppscope.probe import layout
from ppscope.records import AnyRecord, Burst, BurstRank, BurstStatus, ProbeSpans, RankKey, SourceStatus
from ppscope.session import Session
from tests.sglang.server import ServerSpec, SglangServer, running
from tests.shared import KIT
from tests.terminal.terminal import PPSCOPE

PREFIX = f"{PPSCOPE} launch --"
SERVERS = [
    ServerSpec("0.5.23", 4, launch_prefix=PREFIX),
    ServerSpec("0.5.23", 2, 2, launch_prefix=PREFIX),
    ServerSpec("0.5.11", 2, launch_prefix=PREFIX),
]
ROUNDS = 3
SECONDS = 10.0
LOG_INTERVAL = 20
PREFILL = re.compile(r" PP(\d)[^]]*\] Prefill batch.*?#new-seq: (\d+), #new-token: (\d+)")
DECODE = re.compile(r" PP(\d)[^]]*\] Decode batch.*?#running-req: (\d+)")
Launch = tuple[int, str, int, int]
"""(micro-batch, mode, requests, tokens)"""


class Exact:
    """A collector, its session, and every probe record that went by."""

    def __init__(self, pid: int) -> None:
        self.stream = CollectorProcess(["--pid", str(pid)])
        self.records: list[ProbeSpans] = []
        self.states: list[SourceStatus] = []
        self.bursts: list[BurstStatus | BurstRank] = []
        drain = self.stream.drain

        def keep() -> list[AnyRecord]:
            arrived = drain()
            self.records += [record for record in arrived if isinstance(record, ProbeSpans)]
            self.bursts += [record for record in arrived if isinstance(record, BurstStatus | BurstRank)]
            self.states += [r for r in arrived if isinstance(r, SourceStatus) and r.name == "probe"]
            return arrived

        self.stream.drain = keep  # type: ignore[method-assign]
        self.session = Session(self.stream)

    def watch(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not until():
            self.stream.wait(0.2)
            self.session.poll()

    def burst_over(self) -> bool:
        return any(isinstance(said, BurstStatus) and said.state in ("done", "failed") for said in self.bursts)

    def launches(self, rank: RankKey) -> list[tuple[int, int, str, int]]:
        """(start, end, mode, requests) of each batch that a rank launched, in order."""
        return [
            (start, end, layout.MODES[mode], size)
            for record in self.records
            if record.rank == rank
            for kind, start, end, mode, size in zip(
                record.kinds, record.starts_ns, record.ends_ns, record.modes, record.batch_sizes, strict=True
            )
            if kind == layout.LAUNCH
        ]

    def rows(self, stage: int, kind: int, mode: str = "", tp: int = 0) -> list[Launch]:
        """Batches of the spans of a kind on a rank, in order."""
        code = layout.MODES.index(mode) if mode else None
        return [
            (slot, layout.MODES[own], size, tokens)
            for record in self.records
            if (record.rank.pp, record.rank.tp) == (stage, tp)
            for k, slot, own, size, tokens in zip(
                record.kinds, record.micro_batches, record.modes, record.batch_sizes, record.tokens, strict=True
            )
            if k == kind and (code is None or own == code)
        ]


@pytest.fixture(scope="module")
def exact(sglang_server: SglangServer) -> Iterator[Exact]:
    """Attached before the load and until after it: every span since the server's start."""
    watched = Exact(sglang_server.pid)
    try:
        watched.watch(2)
        with sglang_server.load(8, int(SECONDS), 64) as load:
            watched.watch(SECONDS)
            load.wait(40)
        watched.watch(1.5)
        yield watched
    finally:
        watched.session.close()


@pytest.mark.parametrize(
    "sglang_server", SERVERS, indirect=True, ids=lambda spec: f"{spec.version}-pp{spec.pp}-tp{spec.tp}", scope="module"
)
class TestProbe:
    def test_attach_is_exact(self, sglang_server: SglangServer, exact: Exact) -> None:
        assert [(status.state, status.message) for status in exact.states][-1] == ("ok", "exact host spans")
        screen = exact.session.screen()
        stages = sglang_server.spec.pp
        assert screen.header.provenance == "exact"
        assert (screen.occupancy.provenance, screen.occupancy.slots) == ("exact", stages)
        assert screen.occupancy.mean is not None
        assert 1 <= screen.occupancy.mean <= stages
        assert [row.busy_source for row in screen.stages] == ["probe"] * stages
        now = exact.session.now_ns()
        lanes = exact.session.lanes(now - 8_000_000_000, now - 1_000_000_000, 70)
        assert [lane.provenance for lane in lanes] == ["exact"] * stages
        names = [style.name for style in exact.session.phases()]
        for key, state in exact.session.states.items():
            assert state.exact is not None
            times = state.exact.timeline.times(now - 8_000_000_000, now)
            share = {names[phase]: took / sum(times.values()) for phase, took in times.items()}
            assert share["other"] < 0.1
            assert share["eager"] > 0.03, "the model runs on the CPU, eagerly"
            assert ("sample" in share) == (key.pp == stages - 1)
            assert (share.get("recv_activations", 0) > 0.005) == (key.pp > 0)

    def test_no_span_is_lost_and_nothing_went_wrong(self, sglang_server: SglangServer, exact: Exact) -> None:
        ranks = {record.rank for record in exact.records}
        assert len(ranks) == sglang_server.spec.pp * sglang_server.spec.tp
        for rank in ranks:
            expected = 1
            for record in (record for record in exact.records if record.rank == rank):
                assert (record.sequence, record.lost) == (expected, 0)
                expected += len(record.starts_ns)
        for path in Path(f"/dev/shm/ppscope-{os.getuid()}").glob("ring-*"):
            assert psutil.pid_exists(int(path.name.split("-")[2])), (
                "of an earlier server, and the next start removes it"
            )
            header = path.read_bytes()[: layout.HEADER_BYTES]
            written, _, _, errors, resyncs, _ = layout.LIVE.unpack_from(header, layout.LIVE_OFFSET)
            assert (errors, resyncs) == (0, 0)
            assert written

    def test_every_stage_ran_the_same_batches_in_the_same_order(
        self, sglang_server: SglangServer, exact: Exact
    ) -> None:
        first, *others = [
            exact.rows(stage, layout.LAUNCH, tp=tp)
            for stage in range(sglang_server.spec.pp)
            for tp in range(sglang_server.spec.tp)
        ]
        assert len(first) > 100
        assert {launch[0] for launch in first} <= set(range(sglang_server.spec.pp))
        for other in others:
            assert other == first
        # What was launched is processed, with the same slot, mode and size.
        processed = [row[:3] for row in exact.rows(0, layout.PROCESS)]
        assert processed == [launch[:3] for launch in first][: len(processed)]
        assert len(first) - len(processed) <= sglang_server.spec.pp

    def test_batches_agree_with_the_servers_own_log(self, sglang_server: SglangServer, exact: Exact) -> None:
        log = sglang_server.log.read_text(errors="replace")
        for stage in range(sglang_server.spec.pp):
            told = [(int(new), int(tokens)) for pp, new, tokens in PREFILL.findall(log) if int(pp) == stage]
            launched = exact.rows(stage, layout.LAUNCH)
            assert [launch[2:] for launch in launched if launch[1] == "EXTEND"] == told
            # One line every so many decode results; which of them is the first depends on the release.
            sizes = [int(running) for pp, running in DECODE.findall(log) if int(pp) == stage]
            decodes = [row[2] for row in exact.rows(stage, layout.PROCESS, "DECODE")]
            assert len(sizes) == pytest.approx(len(decodes) / LOG_INTERVAL, abs=2)
            fits = [c for c in range(LOG_INTERVAL) if decodes[c::LOG_INTERVAL][: len(sizes)] == sizes]
            assert fits, (sizes, decodes)

    def test_a_burst_tells_the_same_batches_at_the_same_times(self, sglang_server: SglangServer) -> None:
        spec = sglang_server.spec
        view = Exact(sglang_server.pid)
        try:
            with sglang_server.load(4, 18, 64):
                view.watch(3)
                view.stream.send(Burst(ROUNDS))
                view.watch(60, until=view.burst_over)
                view.watch(1)
            ranks = [said for said in view.bursts if isinstance(said, BurstRank)]
            assert len(ranks) == spec.pp * spec.tp, view.bursts
            for traced in ranks:
                steps = [step for step in traced.steps if step.mode in ("DECODE", "EXTEND")]
                assert len(steps) >= ROUNDS * spec.pp - 1
                timed = view.launches(traced.rank)
                # Each step of the profile is one launch of the probe, by clock: the same order, mode and size.
                meant = [
                    [
                        at
                        for at, launch in enumerate(timed)
                        if launch[0] <= (step.start_ns + step.end_ns) // 2 < launch[1]
                    ]
                    for step in steps
                ]
                first = meant[0][0]
                assert meant == [[first + i] for i in range(len(steps))], (traced.rank, meant)
                assert [(step.mode, step.batch_size) for step in steps] == [timed[at][2:] for (at,) in meant]
        finally:
            view.session.close()

    def test_a_killed_view_is_no_trouble_for_the_next(self, sglang_server: SglangServer) -> None:
        children: list[psutil.Process] = []
        for killed in (True, False):
            view = Exact(sglang_server.pid)
            try:
                view.watch(2.5)
                assert view.states[-1].state == "ok"
                assert {record.rank.pp for record in view.records} == set(range(sglang_server.spec.pp))
                if killed:
                    collector = psutil.Process(view.stream.pid)
                    children = collector.children(recursive=True)
                    collector.kill()
            finally:
                view.session.close()
        assert sglang_server.recipe("ask"), "and the server answers"
        # What a killed collector had started (py-spy) ends by itself.
        assert psutil.wait_procs(children, timeout=5)[1] == []


def rings() -> set[int]:
    """Pids that rings of this user are named after."""
    return {int(path.name.split("-")[2]) for path in Path(f"/dev/shm/ppscope-{os.getuid()}").glob("ring-*")}


def test_a_killed_server_leaves_nothing_that_the_next_start_trips_over() -> None:
    """Both ends die without a goodbye; the next server clears what is left, and is exact again."""
    if not KIT.is_file():
        pytest.skip("../shared/sglang-cpu (the kit that runs SGLang on CPU) is not here")
    spec = ServerSpec("0.5.23", 2, launch_prefix=PREFIX)
    with running(spec) as server:
        view = Exact(server.pid)
        try:
            view.watch(3)
            assert view.states[-1].state == "ok"
            pids = set(server.pids())
            old = rings() & pids
            assert len(old) == 2
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            psutil.Process(view.stream.pid).kill()
        finally:
            view.session.close()
    with running(spec) as server:
        view = Exact(server.pid)
        try:
            view.watch(3)
            assert [(status.state, status.message) for status in view.states][-1] == ("ok", "exact host spans")
            assert rings() & old == set()
        finally:
            view.session.close()

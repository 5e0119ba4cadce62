"""Attaching to the real SGLang under load: what the stream says of its stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ppscope.collect.client import CollectorProcess
from ppscope.records import AnyRecord, HostSamples
from ppscope.session import Session
from tests.footprint import Footprint, footprints
from tests.sglang.server import ServerSpec, SglangServer

PP2_OLD = ServerSpec("0.5.11", pp=2)
PP4_UNEVEN = ServerSpec("0.5.23", pp=4, layers=(1, 1, 4, 2))
SECONDS = 20.0


class Watched:
    """A session and the host samples that went into it."""

    def __init__(self, pid: int) -> None:
        self.stream = CollectorProcess(["--pid", str(pid)])
        self.host: list[HostSamples] = []
        drain: Callable[[], list[AnyRecord]] = self.stream.drain

        def keep() -> list[AnyRecord]:
            records = drain()
            self.host.extend(record for record in records if isinstance(record, HostSamples))
            return records

        self.stream.drain = keep  # type: ignore[method-assign]
        self.session = Session(self.stream)

    def for_seconds(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.session.end is None:
            self.stream.wait(0.2)
            self.session.poll()

    def run_and_ready(self, pp: int) -> tuple[float, float]:
        """Shares of the time in which the main thread ran, and in which it ran or was ready to, by the kernel."""
        samples = [record for record in self.host if record.rank.pp == pp and record.wait_ns]
        first, last = samples[0], samples[-1]
        took = last.at_ns[-1] - first.at_ns[0]
        ran, waited = last.run_ns[-1] - first.run_ns[0], last.wait_ns[-1] - first.wait_ns[0]
        return ran / took, (ran + waited) / took


@contextmanager
def watching(server: SglangServer, seconds: float = SECONDS) -> Iterator[Watched]:
    """Attach for a while under eight clients."""
    with server.load(clients=8, seconds=int(seconds) + 6, tokens=128):
        time.sleep(2)
        watched = Watched(server.pid)
        try:
            watched.for_seconds(seconds)
            yield watched
        finally:
            watched.session.close()


def work_shares(watched: Watched) -> dict[int, float]:
    """Share of the seen stack time in work phases, per stage, over everything that was seen."""
    work = {index for index, style in enumerate(watched.session.phases()) if style.kind == "work"}
    shares = {}
    for key, state in watched.session.states.items():
        oldest, newest = state.timeline.extent or (0, 0)
        times = state.timeline.times(oldest, newest)
        shares[key.pp] = sum(took for phase, took in times.items() if phase in work) / sum(times.values())
    return shares


@pytest.mark.parametrize("sglang_server", [PP2_OLD, PP4_UNEVEN], indirect=True, ids=["0.5.11-pp2", "0.5.23-pp4"])
def test_the_stream_of_a_loaded_server(sglang_server: SglangServer) -> None:
    spec = sglang_server.spec
    with watching(sglang_server) as watched:
        session = watched.session
        screen = session.screen()
        assert session.server is not None
        assert (session.server.version, session.server.pp_size, session.server.device) == (spec.version, spec.pp, "cpu")
        assert session.server.port == sglang_server.port
        assert [row.pp for row in screen.stages] == list(range(spec.pp))
        assert session.other_share() is not None
        assert (session.other_share() or 0) < 0.10
        assert [note.name for note in screen.header.notes if note.state == "dead"] == []
        assert screen.header.load.tokens_per_s
        for row in screen.stages:
            assert row.ranks[0].gpu_index is None
            assert row.busy_source == "host"
        shares = work_shares(watched)
        for pp, share in shares.items():
            # Work by stacks is at most the time the thread ran or wanted to; gloo's waits run too, so it may be less.
            ran, ready = watched.run_and_ready(pp)
            assert ran - 0.35 <= share <= ready + 0.1, (
                f"stage {pp}: {share:.2f} of work, ran {ran:.2f}, ready {ready:.2f}"
            )
        if spec.layers:
            assert max(shares, key=shares.__getitem__) == spec.layers.index(max(spec.layers)), shares
        assert watched.session.cost is not None
        print("shares", {pp: round(share, 3) for pp, share in shares.items()}, "cost", watched.session.cost)


@pytest.mark.parametrize("sglang_server", [PP4_UNEVEN], indirect=True, ids=["0.5.23-pp4"])
def test_nothing_can_be_seen_in_the_real_server_after_we_left(sglang_server: SglangServer) -> None:
    """Threads, open files, mapped files, tracer and state of every scheduler and of the detokenizer."""
    with sglang_server.load(clients=8, seconds=5, tokens=32):
        pass  # what its processes make or load at their first request is theirs
    before = footprints(sglang_server.pid)
    with watching(sglang_server, 8.0) as watched:
        seen = footprints(sglang_server.pid)
        assert all(now.tracer == 0 and not now.stopped for now in seen.values())
        assert {key.pp for key in watched.session.states} == set(range(sglang_server.spec.pp))

    def left() -> list[tuple[Footprint, Footprint]]:
        after = footprints(sglang_server.pid)
        del after[sglang_server.pid]  # the HTTP server has threads and sockets of its own, as its clients want them
        return [(before[pid], now) for pid, now in after.items() if now != before[pid]]

    deadline = time.monotonic() + 15
    while left() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left() == []

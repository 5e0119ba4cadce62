"""The stack sources and the phase table against the real scheduler loops."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from ppscope.probe.ring import started_ticks
from ppscope.records import (
    AnyRecord,
    DumpNow,
    FrameDef,
    LoopSample,
    Rank,
    RankKey,
    Server,
    SourceStatus,
    StackDef,
    StackSpans,
)
from ppscope.sources.stacks import StackSource
from ppscope.sources.stacks_dumps import DumpSource
from ppscope.sources.stacks_intern import StackTable
from ppscope.target.phases import PhaseTable
from tests.sglang.server import ServerSpec, SglangServer

TABLE = PhaseTable.load(Path("/nonexistent/phases.toml"))
SERVERS = [ServerSpec("0.5.23", 2), ServerSpec("0.5.11", 2)]
SECONDS = 8.0


def found(server: SglangServer) -> Server:
    pids = {title.strip(): pid for pid, title in server.pids().items() if title.startswith("sglang::scheduler_PP")}
    ranks = tuple(
        Rank(RankKey(0, int(title.removeprefix("sglang::scheduler_PP")), 0), pid, started_ticks(pid) or 0, title)
        for title, pid in sorted(pids.items())
    )
    return Server(time.monotonic_ns(), server.pid, 1, "launch_server", "serving", ranks, len(ranks), 1, 1)


def observe(server: Server, seconds: float, dumps: int = 0) -> tuple[list[AnyRecord], DumpSource]:
    """Everything the two sources say over some seconds."""
    heard: list[AnyRecord] = []
    table = StackTable(heard.append)
    stacks, dumping = StackSource(heard.append, table), DumpSource(heard.append, table)
    stacks.start(server)
    dumping.start(server)
    time.sleep(seconds / 2)
    if dumps:
        dumping.obey(DumpNow(dumps))
    time.sleep(seconds / 2)
    stacks.stop()
    dumping.stop()
    return heard, dumping


def shares(heard: list[AnyRecord], rank: Rank) -> dict[str, float]:
    """Share of each phase in the seen time of a rank's main thread."""
    frames = {r.id: (r.function, r.file, r.line) for r in heard if isinstance(r, FrameDef)}
    phase = {r.id: TABLE.classify([frames[i] for i in r.frames]) for r in heard if isinstance(r, StackDef)}
    time_in: Counter[str] = Counter()
    for spans in heard:
        if isinstance(spans, StackSpans) and (spans.rank, spans.tid) == (rank.key, rank.pid):
            for start, end, stack in zip(spans.starts_ns, spans.ends_ns, spans.stacks, strict=True):
                time_in[TABLE.styles[phase[stack]].name] += end - start
    total = sum(time_in.values())
    assert total > SECONDS * 0.4e9, "most of the time was seen"
    return {name: spent / total for name, spent in time_in.items()}


def ran_and_waited_s(pid: int) -> tuple[float, float]:
    """Seconds on a core, and seconds ready to run without one, of the main thread."""
    ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


def work(share: dict[str, float]) -> float:
    return sum(part for name, part in share.items() if TABLE.styles[TABLE.by_name[name]].kind == "work")


@pytest.mark.parametrize("sglang_server", SERVERS, indirect=True, ids=str, scope="session")
class TestLoop:
    def test_under_load_every_stage_is_understood(self, sglang_server: SglangServer) -> None:
        server = found(sglang_server)
        assert [rank.key.pp for rank in server.ranks] == list(range(sglang_server.spec.pp))
        with sglang_server.load(8, int(SECONDS) + 6, 128):
            time.sleep(2)
            before, began_s = [ran_and_waited_s(rank.pid) for rank in server.ranks], time.monotonic()
            heard, dumps = observe(server, SECONDS, dumps=15)
            span_s = time.monotonic() - began_s
            after = [ran_and_waited_s(rank.pid) for rank in server.ranks]
        for rank, (ran0, waited0), (ran1, waited1) in zip(server.ranks, before, after, strict=True):
            share = shares(heard, rank)
            assert share.get("other", 0) < 0.1
            assert share.get("eager", 0) > 0.05, "the model runs on the CPU, eagerly"
            ran, waited = (ran1 - ran0) / span_s, (waited1 - waited0) / span_s
            # By its stack a thread that is ready to run works too; copying in gloo runs while its stack waits.
            assert ran - 0.25 <= work(share) <= ran + waited + 0.25
        last = shares(heard, server.ranks[-1])
        assert any(last.get(name, 0) > 0 for name in ("recv_activations", "wait_requests"))
        samples = [r for r in heard if isinstance(r, LoopSample)]
        for rank in server.ranks:
            mine = [r for r in samples if r.rank == rank.key]
            assert len(mine) >= 5
            assert {r.loop for r in mine} == {"event_loop_pp"}
            assert {r.mb_id for r in mine} <= set(range(sglang_server.spec.pp))
            assert all(r.next_mb_id == (r.mb_id + 1) % sglang_server.spec.pp for r in mine if r.mb_id is not None)
            assert dumps.rank_facts[rank.key]["pp_rank"] == rank.key.pp
            assert "gpu_id" in dumps.rank_facts[rank.key]
        assert any(r.batch for r in samples) is (sglang_server.spec.version == "0.5.23")
        assert not [r for r in heard if isinstance(r, SourceStatus) and r.state == "dead"]

    def test_idle_is_idle(self, sglang_server: SglangServer) -> None:
        server = found(sglang_server)
        time.sleep(1)
        heard, _ = observe(server, SECONDS)
        for rank in server.ranks:
            share = shares(heard, rank)
            assert share.get("other", 0) < 0.1
            assert share.get("idle", 0) + share.get("wait_requests", 0) > 0.9

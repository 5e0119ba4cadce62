"""Analysed traces as the records of a stream, so that every view of a live server shows them too."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ppscope import __version__
from ppscope.records import (
    SCHEMA,
    AnyRecord,
    BurstRank,
    BurstRankState,
    BurstReport,
    BurstStatus,
    Hello,
    Rank,
    RankKey,
    Server,
)
from ppscope.sources.burst_columns import rank_record
from ppscope.trace.align import Run
from ppscope.trace.analyse import RankAnalysis
from ppscope.trace.report import TraceReport

_BEFORE_NS = 5_000_000_000


def trace_records(report: TraceReport) -> list[AnyRecord]:
    """Records of all runs, laid so that they begin at once; run n is data-parallel rank n. Empty where no file has events."""
    runs = [run for run in report.runs if _start_ns(run) is not None]
    if not runs:
        return []
    first_ns = _start_ns(runs[0]) or 0
    ranks: list[Rank] = []
    bursts: list[BurstRank] = []
    for number, run in enumerate(runs):
        offset_ns = first_ns - (_start_ns(run) or 0)
        for place, analysis in enumerate(run.ranks):
            key = _key(analysis, number, place, run)
            record = rank_record(analysis, run, key, 1, offset_ns, Path(analysis.path).name)
            if record is not None:
                ranks.append(Rank(key, 0, 0, _title(analysis, number if len(runs) > 1 else None)))
                bursts.append(msgspec.structs.replace(record, staged=_is_staged(analysis, run)))
    start_ns, end_ns = min(rank.start_ns for rank in bursts), max(rank.end_ns for rank in bursts)
    bubble = report.bubble
    return [
        Hello(SCHEMA, __version__, _host(runs), start_ns - _BEFORE_NS, start_ns - _BEFORE_NS, 0),
        _server(runs, tuple(ranks), start_ns),
        *bursts,
        BurstReport(
            burst=1,
            at_ns=end_ns,
            start_ns=start_ns,
            end_ns=end_ns,
            bubble=None if bubble is None else bubble.fraction,
            concurrency=() if bubble is None else tuple(bubble.concurrency),
            findings=msgspec.msgpack.encode(report.findings),
        ),
        BurstStatus(
            1, end_ns, "done", f"{len(ranks)} trace files", "", tuple(BurstRankState(r.key, "done") for r in ranks)
        ),
    ]


def _start_ns(run: Run) -> int | None:
    return min((rank.window_ns[0] for rank in run.ranks if rank.window_ns is not None), default=None)


def _key(analysis: RankAnalysis, run: int, place: int, whole: Run) -> RankKey:
    """Where a file knows its stage, that; else the files of a run are told apart by their order."""
    identity = analysis.identity
    if identity.stage is None or not whole.stages:
        return RankKey(run, place, 0)
    # Replicas of a pipeline within one run stand behind one another.
    replica = (identity.dp or 0) * 1000 if run == 0 else 0
    return RankKey(run + replica, identity.stage, identity.tp or 0)


def _is_staged(analysis: RankAnalysis, run: Run) -> bool:
    return bool(run.stages) and analysis.identity.stage is not None


def _title(analysis: RankAnalysis, run: int | None) -> str:
    identity = analysis.identity
    name = "file" if identity.rank is None else f"rank {identity.rank}"
    if identity.stage is not None:
        name = f"PP{identity.stage}"
    return name if run is None else f"{chr(ord('a') + run % 26)} {name}"


def _host(runs: list[Run]) -> str:
    hosts = {rank.identity.host for run in runs for rank in run.ranks if rank.identity.host}
    return sorted(hosts)[0] if len(hosts) == 1 else f"{len(hosts)} hosts" if hosts else ""


def _server(runs: list[Run], ranks: tuple[Rank, ...], at_ns: int) -> Server:
    stages = max(len({rank.key.pp for rank in ranks if rank.key.dp == key}) for key in {rank.key.dp for rank in ranks})
    tensor = 1 + max(rank.key.tp for rank in ranks)
    return Server(
        at_ns=at_ns,
        launcher_pid=0,
        launcher_started_ticks=0,
        kind="trace",
        state="serving",
        ranks=ranks,
        pp_size=stages,
        tp_size=tensor,
        dp_size=len({rank.key.dp for rank in ranks}),
        model=runs[0].name if len(runs) == 1 else f"{runs[0].name} and {len(runs) - 1} more",
    )

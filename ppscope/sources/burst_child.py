"""The process that reads the trace files of a burst, at the lowest priority.

`python -m ppscope.sources.burst_child` takes one JSON object on stdin (a `Job`) and writes framed records to stdout: a BurstRank each,
then a BurstReport. The end of its stdin ends it, and what it started.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import msgspec

from ppscope.collect.stream import encode
from ppscope.records import AnyRecord, BurstRankState, BurstReport, BurstStatus, RankKey
from ppscope.sources.burst_columns import rank_record, report_record
from ppscope.trace.align import Run, group_runs
from ppscope.trace.analyse import RankAnalysis
from ppscope.trace.batch import analyse_files
from ppscope.trace.bubble import measure
from ppscope.trace.findings import run_findings

MOST_WORKERS = 4


class Job(msgspec.Struct):
    """What to read: (dp, pp, tp, path) a file; `offset_ns` is added to wall time to get the stream's clock."""

    burst: int
    files: list[tuple[int, int, int, str]]
    offset_ns: int
    graphs_expected: bool | None = None


def read_burst(job: Job, workers: int | None = None) -> list[AnyRecord]:
    """All records of a burst: what was read of each rank, and a status that names the files that could not be."""
    keys = {Path(path): RankKey(dp, pp, tp) for dp, pp, tp, path in job.files}
    analyses, errors = analyse_files(list(keys), workers=workers)
    for analysis in analyses:
        _name(analysis, keys[Path(analysis.path)])
    records: list[AnyRecord] = []
    problems = {keys[path]: line for path, line in errors.items()}
    for run in group_runs(analyses):
        for analysis in run.ranks:
            key = keys[Path(analysis.path)]
            record = rank_record(analysis, run, key, job.burst, job.offset_ns, Path(analysis.path).name)
            if record is None:
                problems[key] = "no events in this rank's trace"
            else:
                records.append(record)
        records.append(_report(run, job))
    if problems:
        states = tuple(BurstRankState(key, "failed", problem=line) for key, line in sorted(problems.items()))
        records.append(BurstStatus(job.burst, time.monotonic_ns(), "reading", ranks=states))
    return records


def _name(analysis: RankAnalysis, key: RankKey) -> None:
    """Who a file belongs to is known here better than from its name; all files are of one run."""
    analysis.identity = msgspec.structs.replace(analysis.identity, run="burst", stage=key.pp, tp=key.tp, dp=key.dp)


def _report(run: Run, job: Job) -> BurstReport:
    bubble = measure(run)
    findings = msgspec.msgpack.encode(run_findings(run, bubble, job.graphs_expected))
    return report_record(run, bubble, findings, job.burst, time.monotonic_ns(), job.offset_ns)


def _end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(1)


def _watch_stdin() -> None:
    while os.read(0, 1024):
        pass
    os.killpg(0, signal.SIGTERM)


def main() -> int:
    """Read one job and do it."""
    os.nice(19)
    signal.signal(signal.SIGTERM, _end)
    out = os.dup(1)
    os.dup2(2, 1)
    line = sys.stdin.buffer.readline()
    job = msgspec.json.decode(line, type=Job)
    threading.Thread(target=_watch_stdin, daemon=True).start()
    workers = max(1, min(MOST_WORKERS, len(os.sched_getaffinity(0)) // 2))
    with os.fdopen(out, "wb") as stream:
        for record in read_burst(job, workers):
            stream.write(encode(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())

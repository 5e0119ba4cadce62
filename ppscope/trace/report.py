"""The result of `ppscope trace` as a JSON object of schema `ppscope.trace/1`."""

from __future__ import annotations

from typing import Any

import msgspec

from ppscope.finding_json import finding_object
from ppscope.trace.align import Run, group_runs
from ppscope.trace.analyse import RankAnalysis
from ppscope.trace.bubble import Bubble, measure
from ppscope.trace.findings import run_findings
from ppscope.views import Finding

SCHEMA = "ppscope.trace/1"


class TraceReport(msgspec.Struct):
    """Runs with their bubbles (None each where it cannot be measured) and all findings, gravest first."""

    runs: list[Run]
    bubbles: list[Bubble | None]
    findings: list[Finding]

    @property
    def bubble(self) -> Bubble | None:
        """The bubble of the run with the most stages."""
        found = [bubble for bubble in self.bubbles if bubble is not None]
        return max(found, key=lambda bubble: len(bubble.per_stage), default=None)

    @property
    def alarms(self) -> bool:
        """True when a finding is above `info`."""
        return any(finding.severity != "info" for finding in self.findings)


def make_report(analyses: list[RankAnalysis], graphs_expected: bool | None = None) -> TraceReport:
    """Puts ranks together; `graphs_expected` is what the server resolved for decode, None when nobody knows."""
    runs = group_runs(analyses)
    bubbles = [measure(run) for run in runs]
    findings = [
        finding if len(runs) == 1 else _of_run(finding, run)
        for run, bubble in zip(runs, bubbles, strict=True)
        for finding in run_findings(run, bubble, graphs_expected)
    ]
    order = {"high": 0, "medium": 1, "info": 2}
    findings.sort(key=lambda finding: order.get(finding.severity, 3))
    return TraceReport(runs, bubbles, findings)


def _of_run(finding: Finding, run: Run) -> Finding:
    """Where several runs were read, a finding says which one it is of."""
    return msgspec.structs.replace(finding, summary=f"{finding.summary}; run {_text(run.name)}")


def to_json(report: TraceReport) -> dict[str, Any]:
    """The object that `--json` prints. `start_us` is the file's own `ts`; unknown is null."""
    return {
        "schema": SCHEMA,
        "ranks": [_rank(rank, run) for run in report.runs for rank in run.ranks],
        "bubble": _bubble(report.bubble),
        "findings": [finding_object(finding) for finding in report.findings],
    }


def _text(path: str) -> str:
    """A file name may hold bytes that are no UTF-8, which JSON cannot carry."""
    return path.encode("utf-8", "replace").decode()


def _rank(rank: RankAnalysis, run: Run) -> dict[str, Any]:
    identity = rank.identity
    return {
        "file": _text(rank.path),
        "run": _text(run.name),
        "rank": identity.rank,
        "world_size": identity.world_size,
        "stage": identity.stage,
        "tp": identity.tp,
        "host": identity.host,
        "clock_offset_ns": rank.clock_offset_ns,
        "device": identity.device,
        "kernels": msgspec.to_builtins(rank.kernels),
        "launches": msgspec.to_builtins(rank.launches),
        "memory_operations": rank.memory_operations,
        "dropped_events": rank.dropped_events,
        "damage": rank.damage,
        "steps": [
            {
                "name": result.step.name,
                "mode": result.step.mode,
                "batch_size": result.step.batch_size,
                "start_us": result.step.start_ns / 1000,
                "duration_us": result.step.duration_ns / 1000,
                "graph_launches": result.graph_launches,
                "replayed_kernels": result.replayed_kernels,
                "eager_kernels": result.eager_kernels,
                "eager_gpu_us": result.eager_gpu_ns / 1000,
                "leaks": len(result.leaks),
                "verdict": result.verdict,
                "reason": result.reason,
            }
            for result in rank.steps
        ],
        "eager_launches": [
            {
                "step": row.step,
                "kernel": row.kernel,
                "call": row.call,
                "launch_us": row.launch_ns / 1000,
                "start_us": row.start_ns / 1000,
                "duration_us": row.duration_ns / 1000,
                "gap_us": None if row.gap_ns is None else row.gap_ns / 1000,
                "stream": row.stream,
                "op": row.caller.op,
                "line": row.caller.line,
                "expected": row.expected,
            }
            for row in rank.rows
            if not row.expected
        ],
    }


def _bubble(bubble: Bubble | None) -> dict[str, Any] | None:
    if bubble is None:
        return None
    return {
        "fraction": bubble.fraction,
        "per_stage": [
            {**msgspec.to_builtins(load), "bubble_fraction": 1 - load.working_fraction} for load in bubble.per_stage
        ],
        "critical_stage": bubble.critical_stage,
        "concurrency": bubble.concurrency,
        "window_us": bubble.window_us,
        "run": _text(bubble.run),
    }

"""The result of `ppscope check` as a JSON object of schema `ppscope.check/1`."""

from __future__ import annotations

from typing import Any

import msgspec

from ppscope.diagnose.evidence import Evidence, RankEvidence, StageEvidence
from ppscope.diagnose.occupancy import likely
from ppscope.finding_json import finding_object
from ppscope.views import Finding, GraphState

SCHEMA = "ppscope.check/1"


class CheckReport(msgspec.Struct, frozen=True):
    """What was seen and what follows. `overhead_cores` is ppscope's own CPU; `host` the node's name.

    `seen_s` is how long was looked, None for as long as the evidence is of; `lacking` is the evidence that was still missing at the
    end, in words.
    """

    evidence: Evidence
    findings: tuple[Finding, ...]
    overhead_cores: float | None
    host: str = ""
    lacking: dict[str, str] = {}
    seen_s: float | None = None

    @property
    def looked_s(self) -> float:
        """How long was looked; the evidence may be of its last minute alone."""
        return self.evidence.seconds if self.seen_s is None else self.seen_s

    @property
    def alarms(self) -> bool:
        """True when a finding is above `info`."""
        return any(finding.severity != "info" for finding in self.findings)


def to_json(report: CheckReport) -> dict[str, Any]:
    """The object that `--json` prints; unknown is null."""
    evidence = report.evidence
    server, load, slots = evidence.server, evidence.load, evidence.occupancy
    between = likely(slots)
    return {
        "schema": SCHEMA,
        "server": {
            "version": server.version,
            "model": server.model,
            "launcher_pid": server.launcher_pid,
            "pp_size": server.pp_size,
            "tp_size": server.tp_size,
            "dp_size": server.dp_size,
            "device": server.device,
            "state": "idle" if server.state == "serving" and evidence.idle else server.state,
            "emulated": server.emulated,
        },
        "seconds": _rounded(report.looked_s),
        "judged_seconds": _rounded(evidence.seconds),
        "lacking": list(report.lacking),
        "load": {
            "running": load.running,
            "running_provenance": load.running_provenance,
            "queued": load.queued,
            "tokens_per_s": _rounded(load.tokens_per_s),
        },
        "stages": [_stage(stage) for stage in evidence.stages],
        "micro_batches": {
            "slots": slots.slots,
            "occupied_mean": _rounded(slots.mean),
            "occupied_likely": None if between is None else [_rounded(between[0]), _rounded(between[1])],
            "samples": slots.samples,
            "provenance": slots.provenance,
        },
        "graphs": {"decode": _graph(evidence.decode), "prefill": _graph(evidence.prefill)},
        "overhead": {"cpu_cores": _rounded(report.overhead_cores)},
        "findings": [finding_object(finding) for finding in report.findings],
    }


def _stage(stage: StageEvidence) -> dict[str, Any]:
    return {
        "pp": stage.pp,
        "dp": stage.dp,
        "busy_fraction": _rounded(stage.busy),
        "busy_source": stage.busy_source,
        "host_phases": {name: _rounded(share) for name, share in sorted(stage.phases.items(), key=lambda p: -p[1])},
        "ranks": [_rank(rank) for rank in stage.ranks],
    }


def _rank(rank: RankEvidence) -> dict[str, Any]:
    gpu = rank.gpu
    return {
        "pp": rank.key.pp,
        "tp": rank.key.tp,
        "dp": rank.key.dp,
        "pid": rank.pid,
        "alive": rank.alive,
        "gpu": None
        if gpu is None
        else {
            "index": gpu.index,
            "uuid": gpu.device.uuid if gpu.device else None,
            "power_w": _rounded(gpu.power_w),
            "power_limit_w": gpu.power_limit_w,
            "util_percent": _rounded(gpu.util_percent),
        },
    }


def _graph(state: GraphState) -> dict[str, Any]:
    return {"requested": state.requested, "resolved": state.resolved, "observed": state.observed}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)

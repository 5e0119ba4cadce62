"""The figures of one document that a comparison sets side by side; each None where there is no evidence for it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from statistics import median
from typing import Any

import msgspec

from ppscope.records import AnyRecord, BurstRank, BurstReport, GpuSample, LoadSample, RankKey
from ppscope.session.stages import FORWARD
from ppscope.snapshot.pack import records_of
from ppscope.whole import whole

Json = dict[str, Any]
_READING_NS = 10_000_000_000


class Measures(msgspec.Struct, frozen=True):
    """Means over the document's window. Per-stage figures are by `PP0` …; shares are 0–1.

    `occupied_likely` is the interval that the samples leave for `occupied`.

    `step_ms` is a decode step: of a profile where there is one, else requests ÷ tokens a second. `stages_at_work` is the mean number
    of stages whose host thread works; `cap` is the most requests that the slots take together; `active` whether a forward pass was
    seen, None where no stacks were.
    """

    tokens_per_s: float | None
    step_ms: float | None
    occupied: float | None
    occupied_likely: tuple[float, float] | None
    stages_at_work: float | None
    bubble: float | None
    eager_per_step: float | None
    power_w: float | None
    running: float | None
    queued: float | None
    cap: int | None
    busy: dict[str, float]
    host_work: dict[str, float]
    active: bool | None
    device: str | None = None

    @property
    def requests(self) -> float | None:
        """Running and queued together; None when the running ones are not known."""
        return None if self.running is None else self.running + (self.queued or 0)

    @property
    def pass_requests(self) -> float | None:
        """Requests that one forward pass of a stage carries: those that run, shared out over the slots in use."""
        return self.running / self.occupied if self.running and self.occupied else None

    @property
    def passes_per_s(self) -> float | None:
        """Forward passes of a stage a second; each gives every request that it carries a token."""
        carried = self.pass_requests
        return self.tokens_per_s / carried if self.tokens_per_s is not None and carried else None


def measure(document: Json) -> Measures:
    """The figures of a document. Raises UnreadableDocument."""
    view = document["view"]
    records = records_of(document)
    shares = phase_shares(document)
    work = {name for name, style in _styles(view).items() if style["kind"] == "work"}
    host_work = {stage: sum(part for name, part in phases.items() if name in work) for stage, phases in shares.items()}
    busy = _busy(document, shares)
    tokens_per_s = _throughput(records, view["load"])
    running, queued = view["load"]["running"], view["load"]["queued"]
    step_ms, eager = _steps(records)
    if step_ms is None and running and tokens_per_s:
        step_ms = 1000 * running / tokens_per_s
    return Measures(
        tokens_per_s=tokens_per_s,
        step_ms=step_ms,
        occupied=view["occupancy"]["mean"],
        occupied_likely=_interval(view["occupancy"].get("likely")),
        stages_at_work=sum(host_work.values()) if host_work else None,
        bubble=_bubble(records, busy, len(view["stages"])),
        eager_per_step=eager,
        power_w=_mean(record.power_w for record in records if isinstance(record, GpuSample)),
        running=running,
        queued=queued,
        cap=_cap(view),
        busy=busy,
        host_work=host_work,
        active=any(phases.get(name) for phases in shares.values() for name in FORWARD) if shares else None,
        device=view["server"].get("device"),
    )


def _styles(view: Json) -> dict[str, Json]:
    return {style["name"]: style for style in view["phases"]}


def _name(stage: Json) -> str:
    return f"PP{stage['pp']}" if not stage["dp"] else f"DP{stage['dp']} PP{stage['pp']}"


def phase_shares(document: Json) -> dict[str, dict[str, float]]:
    """Share of each phase, by name, in the seen time of each stage's main threads; stages that nothing was seen of are left out."""
    view = document["view"]
    names = [style["name"] for style in view["phases"]]
    phase_of = dict(zip(document["stacks"]["id"], view["stack_phases"], strict=True))
    mains = {tuple(rank["key"]): rank["main_tid"] for stage in view["stages"] for rank in stage["ranks"]}
    times: dict[str, dict[str, int]] = {}
    for track in document["tracks"]:
        key = RankKey(*track["rank"])
        if track["thread"] != "MainThread" and mains.get((key.dp, key.pp, key.tp)) != track["tid"]:
            continue
        into = times.setdefault(_name({"dp": key.dp, "pp": key.pp}), {})
        for took, stack in zip(track["took"], track["stack"], strict=True):
            name = names[phase_of[stack]] if stack in phase_of else "other"
            into[name] = into.get(name, 0) + took
    whole = {stage: sum(phases.values()) for stage, phases in times.items()}
    return {
        stage: {name: took / whole[stage] for name, took in phases.items()}
        for stage, phases in sorted(times.items())
        if whole[stage]
    }


def _busy(document: Json, shares: dict[str, dict[str, float]]) -> dict[str, float]:
    """Busy share of each stage over the window; where only its last seconds are known, of those."""
    view = document["view"]
    busy: dict[str, float] = {}
    for stage in view["stages"]:
        name = _name(stage)
        if stage["busy"] is None:
            continue
        seen: float | None = None
        if stage["busy_source"] == "host" and name in shares:
            seen = sum(shares[name].get(phase, 0.0) for phase in FORWARD)
        elif stage["busy_source"] == "probe":
            ranks = [tuple(rank["key"]) for rank in stage["ranks"]]
            lanes = [lane for lane in view["exact_lanes"] if tuple(lane["rank"]) in ranks]
            seen = _mean(_forward_share(view, lane) for lane in lanes)
        busy[name] = float(stage["busy"]) if seen is None else seen
    return busy


def _forward_share(view: Json, lane: Json) -> float | None:
    """Share of forward passes in a lane: the GPU's own, or on a CPU server the host's, where they are synchronous."""
    if lane["lane"] != ("host" if view["server"].get("device") == "cpu" else "gpu"):
        return None
    forward = {index for index, style in enumerate(view["phases"]) if style["name"] in FORWARD}
    worked = sum(took for took, phase in zip(lane["took"], lane["phase"], strict=True) if phase in forward)
    whole = sum(lane["gap"][1:]) + sum(lane["took"])
    return worked / whole if whole else None


def _throughput(records: Iterable[AnyRecord], load: Json) -> float | None:
    """Mean over time: a reading counts for the time since the one before, for `/metrics` is read more often at first."""
    seen = [
        (record.at_ns, record.tokens_per_s)
        for record in records
        if isinstance(record, LoadSample)
        and record.stage is None
        and record.source == load["source"]
        and record.tokens_per_s is not None
    ]
    spans = [(min(max(at - before, 0), _READING_NS), rate) for (before, _), (at, rate) in pairwise(seen)]
    whole_ns = sum(span for span, _ in spans)
    if whole_ns:
        return sum(span * rate for span, rate in spans) / whole_ns
    mean = _mean(rate for _, rate in seen)
    return mean if mean is not None else load["tokens_per_s"]


def _interval(ends: list[float] | None) -> tuple[float, float] | None:
    return (ends[0], ends[1]) if ends else None


def _cap(view: Json) -> int | None:
    size = next(
        (row["resolved"] or row["requested"] for row in view["settings"] if row["name"] == "pp_max_micro_batch_size"),
        None,
    )
    slots = view["occupancy"]["slots"]
    most = whole(str(size))
    return most * slots if most is not None and slots else None


def _steps(records: Iterable[AnyRecord]) -> tuple[float | None, float | None]:
    """Median length of a decode step in ms, and eager kernels per decode step, of a profile burst."""
    steps = [
        step for record in records if isinstance(record, BurstRank) for step in record.steps if step.mode == "decode"
    ]
    if not steps:
        return None, None
    length = median(step.end_ns - step.start_ns for step in steps) / 1e6
    return length, sum(step.eager_kernels for step in steps) / len(steps)


def _bubble(records: Iterable[AnyRecord], busy: dict[str, float], stages: int) -> float | None:
    for record in records:
        if isinstance(record, BurstReport) and record.bubble is not None:
            return record.bubble
    return 1 - sum(busy.values()) / stages if busy and len(busy) == stages else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

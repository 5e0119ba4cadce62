"""What the bursts of a stream have shown: exact lanes, launch rows, busy shares and findings of the newest ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from ppscope.records import BurstLaunch, BurstRank, BurstReport, BurstStatus, RankExit, RankKey, Server
from ppscope.session.burst_lane import BurstLane
from ppscope.session.burst_pieces import gpu_pieces, host_pieces
from ppscope.sources.burst_plan import COSTS, default_rounds, loop_size, risks
from ppscope.views import BurstOffer, BurstProgress, Cell, Finding, Lane, LaunchRow, PhaseStyle, Span

KEPT = 4
"""Bursts whose lanes stay; launches, busy shares and findings are the newest one's."""
FRESH_NS = 60_000_000_000
"""For so long a burst speaks of the server's present: its busy shares are shown, its findings claimed."""
DEADLY_NS = 60_000_000_000
"""A scheduler that ends within this time after a profile is said to have ended after it."""
OVER = ("done", "failed", "cancelled")
_KINDS = {"replayed": "replay", "communication": "comm"}


class _Rank(NamedTuple):
    record: BurstRank
    host: BurstLane
    gpu: BurstLane


class BurstState:
    """Takes in the records of bursts and answers for them; `mark` says whether eager launches in decode are out of place here."""

    def __init__(self, styles: Sequence[PhaseStyle]) -> None:
        self._styles = styles
        self._phases = {style.name: index for index, style in enumerate(styles)}
        self._bursts: dict[int, dict[RankKey, _Rank]] = {}
        self._reports: dict[int, BurstReport] = {}
        self._findings: tuple[Finding, ...] = ()
        self._status: BurstStatus | None = None
        self._began_ns = 0
        self._results = 0
        self._deaths: list[str] = []
        self._marks: bool | None = None
        self._rows: tuple[LaunchRow, ...] = ()

    # -- records in

    def add_status(self, record: BurstStatus) -> None:
        """Take note of how far a burst is."""
        if self._status is None or self._status.burst != record.burst:
            self._began_ns = record.at_ns
            self._deaths = []
        self._status = record

    def add_rank(self, record: BurstRank, graphs_off: bool = False) -> None:
        """Take in a rank's result; `graphs_off`: decode graphs are switched off here, so that eager launches are no surprise."""
        ranks = self._bursts.setdefault(record.burst, {})
        while len(self._bursts) > KEPT:
            del self._bursts[min(self._bursts)]
        ranks[record.rank] = _Rank(
            record,
            BurstLane(self._styles, host_pieces(record, self._phases)),
            BurstLane(self._styles, gpu_pieces(record, self._phases, mark=not graphs_off)),
        )
        self._rows = _launch_rows(self._newest, graphs_off)
        self._results += 1

    def add_report(self, record: BurstReport) -> None:
        """Take in what the ranks say together; findings that cannot be read are none."""
        self._reports = {record.burst: record}
        try:
            self._findings = (
                tuple(msgspec.msgpack.decode(record.findings, type=list[Finding])) if record.findings else ()
            )
        except (msgspec.DecodeError, msgspec.ValidationError):
            self._findings = ()
        self._results += 1

    def add_exit(self, record: RankExit) -> None:
        """Take note of a scheduler that ended soon after its profile."""
        status = self._status
        if record.reason in ("stopped", "resumed") or status is None:
            return
        if record.at_ns - status.at_ns <= DEADLY_NS:
            self._deaths.append(f"stage {record.rank.pp} (pid {record.pid})")

    # -- values out

    @property
    def _newest(self) -> dict[RankKey, _Rank]:
        return self._bursts[max(self._bursts)] if self._bursts else {}

    @property
    def active(self) -> bool:
        """Whether a burst is under way."""
        return self._status is not None and self._status.state not in OVER

    @property
    def left_behind(self) -> str | None:
        """Folder of the traces of a burst that is not over yet, as the server sees it."""
        return self._status.folder if self.active and self._status is not None else None

    @property
    def launches(self) -> tuple[LaunchRow, ...]:
        """Launch rows of the newest burst, by GPU time."""
        return self._rows

    def progress(self, now_ns: int) -> BurstProgress | None:
        """How far the newest burst is; None before the first."""
        status = self._status
        if status is None:
            return None
        message, remedy, state = status.message, status.remedy, status.state
        if self._deaths:
            state = "failed" if state in OVER else state
            message = f"{', '.join(self._deaths)} ended after the profile; {message}"
            remedy = remedy or "look into the server's log"
        report = self._reports.get(status.burst)
        until_ns = status.at_ns if status.state in OVER else now_ns
        return BurstProgress(
            burst=status.burst,
            state=state,
            message=message,
            remedy=remedy,
            ranks=tuple((rank.rank, rank.state) for rank in status.ranks),
            active=self.active,
            seconds=max(until_ns - self._began_ns, 0) / 1e9,
            at_ns=status.at_ns,
            results=self._results,
            start_ns=report.start_ns if report is not None else None,
            end_ns=report.end_ns if report is not None else None,
            folder=status.folder,
        )

    def findings(self, now_ns: int, graphs_off: bool = False) -> tuple[Finding, ...]:
        """Findings of a fresh burst. Where decode graphs are switched off, eager decode is explained by that, not found a second time."""
        if not any(now_ns - report.at_ns <= FRESH_NS for report in self._reports.values()):
            return ()
        return tuple(found for found in self._findings if not (graphs_off and found.id == "graphs.eager_decode"))

    def busy(self, pp: int, now_ns: int, dp: int | None = None) -> float | None:
        """Busy share of a stage by a fresh burst, a mean over its ranks; None without one or without GPU work in it."""
        shares = [
            rank.record.busy_fraction
            for key, rank in self._newest.items()
            if key.pp == pp and dp in (None, key.dp) and rank.record.busy_fraction is not None
            if now_ns - rank.record.end_ns <= FRESH_NS
        ]
        return sum(shares) / len(shares) if shares else None

    def overlay(self, lanes: Iterable[Lane], start_ns: int, end_ns: int, columns: int) -> list[Lane]:
        """Lays exact cells over the lanes of a window, and adds GPU lanes where a burst saw GPU work."""
        out: list[Lane] = []
        gpu = {lane.rank for lane in lanes if lane.lane == "gpu"} if (lanes := list(lanes)) else set()
        for lane in lanes:
            cells = self._cells(lane.rank, lane.lane, start_ns, end_ns, columns)
            out.append(_over(lane, cells))
            if lane.lane == "host" and lane.rank not in gpu and self._has_gpu(lane.rank):
                cells = self._cells(lane.rank, "gpu", start_ns, end_ns, columns)
                empty = Cell(phase=None, work=None)
                out.append(Lane(lane.rank, "gpu", "exact", tuple(cell or empty for cell in cells)))
        return out

    def _cells(self, rank: RankKey, lane: str, start_ns: int, end_ns: int, columns: int) -> list[Cell | None]:
        cells: list[Cell | None] = [None] * columns
        for ranks in self._bursts.values():
            held = ranks.get(rank)
            if held is not None:
                found = (held.gpu if lane == "gpu" else held.host).cells(start_ns, end_ns, columns)
                cells = [new or old for new, old in zip(found, cells, strict=True)]
        return cells

    def _has_gpu(self, rank: RankKey) -> bool:
        return any(held.gpu.extent is not None for ranks in self._bursts.values() if (held := ranks.get(rank)))

    def spans(self, rank: RankKey, start_ns: int, end_ns: int, rest: Sequence[Span]) -> list[Span]:
        """Single spans of a rank's host thread: exact ones, and of the rest those that lie outside of them."""
        lanes = [held.host for ranks in self._bursts.values() if (held := ranks.get(rank))]
        exact = [span for lane in lanes for span in lane.spans(start_ns, end_ns)]
        if not exact:
            return list(rest)
        kept = [span for span in rest if not any(lane.covers((span.start_ns + span.end_ns) // 2) for lane in lanes)]
        return sorted([*exact, *kept], key=lambda span: span.start_ns)

    def extent(self) -> tuple[int, int] | None:
        """Start of the oldest and end of the newest burst that is kept."""
        records = [rank.record for ranks in self._bursts.values() for rank in ranks.values()]
        return (min(r.start_ns for r in records), max(r.end_ns for r in records)) if records else None


def _over(lane: Lane, exact: Sequence[Cell | None]) -> Lane:
    if not any(exact):
        return lane
    cells = tuple(
        old if new is None else Cell(new.phase, new.work, old.micro_batch, new.mark)
        for new, old in zip(exact, lane.cells, strict=True)
    )
    mixed = any(new is None and old.phase is not None for new, old in zip(exact, lane.cells, strict=True))
    return Lane(lane.rank, lane.lane, lane.provenance if mixed else "exact", cells)


def _launch_rows(ranks: dict[RankKey, _Rank], graphs_off: bool) -> tuple[LaunchRow, ...]:
    rows = []
    for key, rank in sorted(ranks.items()):
        spent_ns = sum(launch.gpu_ns for launch in rank.record.launches)
        stage = key.pp if rank.record.staged else None
        rows += [_launch_row(launch, key, stage, spent_ns, graphs_off) for launch in rank.record.launches]
    return tuple(sorted(rows, key=lambda row: -(row.gpu_us or 0.0)))


def _launch_row(launch: BurstLaunch, key: RankKey, stage: int | None, spent_ns: int, graphs_off: bool) -> LaunchRow:
    reason = None
    if not launch.expected:
        reason = (
            "decode graphs are switched off on this server"
            if graphs_off
            else "launched one by one where a replay was expected"
        )
    return LaunchRow(
        kind=_KINDS.get(launch.origin, launch.origin),
        name=launch.kernel,
        count=launch.count,
        gpu_us=launch.gpu_ns / 1000,
        stage=stage,
        function=launch.function,
        file=launch.file,
        line=launch.line,
        reason=reason,
        provenance="exact",
        rank=key,
        op=launch.op,
        call=launch.call,
        stream=launch.stream,
        longest_us=launch.longest_ns / 1000,
        gap_us=None if launch.gap_ns is None else launch.gap_ns / 1000,
        steps=launch.steps,
        fewest=launch.fewest,
        most=launch.most,
        share=launch.gpu_ns / spent_ns if spent_ns else None,
        stack=launch.stack,
    )


def make_offer(server: Server | None, active: bool) -> BurstOffer:
    """What a burst would do to this server."""
    if server is None:
        return BurstOffer(1, 1, None, 0, "", (), (), (), "no server is known yet")
    slots = loop_size(server.pp_loop_size, server.pp_size)
    problem = None
    if server.state != "serving":
        problem = f"the server is {server.state}, not serving"
    elif active:
        problem = "a burst is under way"
    plain = risks(server.version, with_stack=False)
    return BurstOffer(
        slots=slots,
        rounds=default_rounds(slots),
        device=server.device,
        ranks=len(server.ranks),
        folder="a new folder under /tmp on the server's side, removed afterwards",
        costs=COSTS,
        risks=plain,
        stack_risks=tuple(line for line in risks(server.version, with_stack=True) if line not in plain),
        problem=problem,
    )

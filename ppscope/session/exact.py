"""What the probe said of one rank: its timeline on the host and, where timed, on the GPU, and how many slots each round launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ppscope.phase_sums import PhaseTimes
from ppscope.probe import layout
from ppscope.records import ProbeSpans, RankKey
from ppscope.session.exact_timeline import ExactTimeline
from ppscope.session.flatten import Flattener, Piece, phase_of_kind
from ppscope.timeline import RankTimeline
from ppscope.views import Cell, Lane, PhaseStyle, Span

_SECOND = 1_000_000_000
_KEEP_S = 120
_WAIT_MOST_NS = 1_500_000_000


class ExactRank:
    """Everything exact of one scheduler process."""

    def __init__(self, styles: Sequence[PhaseStyle], keep_all: bool = False) -> None:
        by_name = {style.name: index for index, style in enumerate(styles)}
        self._replay, self._eager = by_name["replay"], by_name["eager"]
        self.timeline = ExactTimeline(styles, by_name["other"], keep_all)
        self.gpu = ExactTimeline(styles, None, keep_all)
        self._flattener = Flattener(phase_of_kind(by_name, by_name["other"]), by_name["wait_gpu"])
        self._launches: dict[int, list[int]] = {}
        self._round: tuple[int, int] | None = None
        self.newest_ns: int | None = None
        self.gpu_error_ns: int | None = None
        self.lost = 0

    def add(self, record: ProbeSpans) -> None:
        """Take in what was read of the ring since the last time."""
        if record.lost:
            self.lost += record.lost
            self._flattener.reset()
            self.timeline.break_here()
        together: list[Piece] = []
        for pieces in self._flattener.add(record):
            if pieces:
                together += pieces
            else:
                self.timeline.add(together)
                together = []
                self.timeline.break_here()
        self.timeline.add(together)
        extent = self.timeline.extent
        self.newest_ns = extent[1] if extent else None
        self.gpu_error_ns = record.gpu_error_ns
        self._count(record)
        if bytes([layout.GPU_FORWARD]) in record.kinds:
            self._add_gpu(record)

    def _add_gpu(self, record: ProbeSpans) -> None:
        pieces: list[Piece] = []
        for row, kind in enumerate(record.kinds):
            if kind == layout.GPU_FORWARD:
                phase = self._replay if record.graphs[row] == layout.REPLAYED else self._eager
                pieces.append(
                    (
                        record.starts_ns[row], record.ends_ns[row], phase, record.micro_batches[row], record.modes[row],
                        record.batch_sizes[row], record.tokens[row], record.graphs[row],
                    )
                )  # fmt: skip
        self.gpu.add(pieces)

    def _count(self, record: ProbeSpans) -> None:
        slots = record.slots or 0
        if slots < 2:
            return
        row = record.kinds.find(layout.LAUNCH)
        while row >= 0:
            slot, turn = record.micro_batches[row], record.turns[row]
            if slot >= 0:
                counts = self._launches.setdefault(record.ends_ns[row] // _SECOND, [0, 0])
                counts[0] += 1
                this = (slots, (turn - slot) // slots)
                if this != self._round:
                    self._round = this
                    counts[1] += 1
            row = record.kinds.find(layout.LAUNCH, row + 1)
        while len(self._launches) > _KEEP_S:
            del self._launches[next(iter(self._launches))]

    def launches(
        self, since_ns: int, until_ns: int, counts: Callable[[int], bool] = lambda second: True
    ) -> tuple[int, int]:
        """(launches, rounds of the loop with at least one) within whole seconds of a window, of those that count."""
        first, last = since_ns // _SECOND, until_ns // _SECOND
        told = [pair for second, pair in self._launches.items() if first <= second <= last and counts(second)]
        return sum(pair[0] for pair in told), sum(pair[1] for pair in told)

    def gpu_busy(self, start_ns: int, end_ns: int) -> float | None:
        """Share of a window in which a forward ran on the GPU; None where forwards are not timed there.

        Where the window ends after what was told it is as long before: what the probe has not told yet is no rest.
        """
        extent = self.gpu.extent
        if extent is None or extent[1] < start_ns:
            return None
        end = min(end_ns, self.newest_ns if self.newest_ns is not None else end_ns)
        start = max(start_ns - (end_ns - end), extent[0])
        # Times are to 20 ms at the edges of a window.
        return min(sum(self.gpu.times(start, end).values()) / (end - start), 1.0) if end > start else None


def better(exact: PhaseTimes, sampled: PhaseTimes) -> bool:
    """Whether exact times stand for a window: nearly as much of it was timed as was sampled.

    A call is told when it has ended, so the newest wait may be missing: of an idle stage, which waits for the next relay of an idle
    stage 0 (it sleeps for up to a second, 0.5.6 to 0.5.23), or for ever in a hang. Then the stacks speak.
    """
    timed, seen = sum(exact.values()), sum(sampled.values())
    return timed > 0 and timed >= seen // 2 and timed + _WAIT_MOST_NS >= seen


def host_lane(
    rank: RankKey, exact: ExactRank | None, sampled: RankTimeline, start_ns: int, end_ns: int, columns: int
) -> Lane:
    """The host lane: exact cells, sampled ones where nothing was timed. It is exact when no sampled one is in it."""
    if exact is None or exact.newest_ns is None:
        return Lane(rank, "host", "sampled", sampled.cells(start_ns, end_ns, columns))
    timed = exact.timeline.cells(start_ns, end_ns, columns)
    if None not in timed:
        return Lane(rank, "host", "exact", tuple(cell for cell in timed if cell is not None))
    rest = sampled.cells(start_ns, end_ns, columns)
    cells = tuple(cell or other for cell, other in zip(timed, rest, strict=True))
    mixed = any(cell is None and other.phase is not None for cell, other in zip(timed, rest, strict=True))
    return Lane(rank, "host", "sampled" if mixed else "exact", cells)


def gpu_lane(rank: RankKey, exact: ExactRank | None, start_ns: int, end_ns: int, columns: int) -> Lane | None:
    """The GPU lane, None where forwards are not timed."""
    if exact is None or exact.gpu.extent is None:
        return None
    empty = Cell(phase=None, work=None)
    cells = exact.gpu.cells(start_ns, end_ns, columns)
    return Lane(rank, "gpu", "exact", tuple(cell or empty for cell in cells))


def spans(exact: ExactRank | None, sampled: RankTimeline, start_ns: int, end_ns: int) -> list[Span]:
    """Single spans in order: exact ones, and sampled ones that lie outside of what was timed."""
    rest = list(sampled.spans(start_ns, end_ns))
    if exact is None:
        return rest
    timed = list(exact.timeline.spans(start_ns, end_ns))
    holes = [span for span in rest if not exact.timeline.covers((span.start_ns + span.end_ns) // 2)]
    return sorted([*timed, *holes], key=lambda span: span.start_ns) if holes else timed

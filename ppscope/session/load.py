"""The server's load: the best of what metrics, HTTP and the log say, each only while it is fresh."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise, takewhile

from ppscope.diagnose.running import Running, estimate_running
from ppscope.records import BatchLog, LoadSample, Metric
from ppscope.views import Load
from ppscope.whole import whole

_TRUST = ("metrics", "loads", "server_info", "log")
_TRUST_THROUGHPUT = ("metrics", "log", "server_info", "loads")
"""0.5.23's `/v1/loads` says 0.0 tok/s under load for as long as the slot at hand has not logged; its own log is right."""
_KEPT_FOR_EVER = "server_info"
"""SGLang never resets its `last_gen_throughput`: of a server that is idle, or hangs, it is that of its last work."""
_FRESH_NS = {"metrics": 5_000_000_000, "loads": 8_000_000_000, "server_info": 30_000_000_000, "log": 30_000_000_000}
_DEAR_NS = 45_000_000_000
"""A page that takes the server long is read as seldom as every thirty seconds (server_scrape.py), and holds that much longer."""
_LINE_NS = 5_000_000_000
_GAPS = 4
_ANOTHER_NS = 500_000_000
_PASSES = "sglang:cuda_graph_passes_total"
_HISTORY = 600
_BATCHES_NS = 60_000_000_000
_SIZES_NS = 30_000_000_000
_LARGEST_NS = 10_000_000_000
_LINES = 4
_READINGS = 5
_POINTS = 32
_OCCUPANCY_NS = 40_000_000_000
"""An unchanged series comes with the first page after thirty seconds (ChangedOnly)."""
_GAP_NS = 10_000_000_000
_LEAST_NS = 5_000_000_000


class LoadState:
    """Keeps the last word of each source about the whole server, and per stage where they say it."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: what another server said says nothing of this one."""
        self._whole: dict[str, LoadSample] = {}
        self._stages: dict[tuple[str, int], LoadSample] = {}
        self._gaps_ns: dict[str, deque[int]] = {}
        self.history: deque[LoadSample] = deque(maxlen=_HISTORY)
        self.batches: deque[BatchLog] = deque(maxlen=2048)
        self.since_ns = 0
        """Lines of the log from before this instant, the attach, count only while there are no others."""
        self._passes: dict[tuple[tuple[str, str], ...], deque[tuple[int, float]]] = {}
        """By labels: each data-parallel rank has a counter of its own, and so has each tensor-parallel one where all are asked for."""
        self._occupancy: dict[int, deque[tuple[int, float]]] = {}

    def add(self, sample: LoadSample) -> None:
        """Take in a load reading."""
        if sample.stage is None:
            before = self._whole.get(sample.source)
            if before is not None and sample.at_ns - before.at_ns >= _ANOTHER_NS:  # else a line of the same pass
                self._gaps_ns.setdefault(sample.source, deque(maxlen=_GAPS)).append(sample.at_ns - before.at_ns)
            self._whole[sample.source] = sample
            self.history.append(sample)
        else:
            self._stages[(sample.source, sample.stage)] = sample

    def add_batch(self, batch: BatchLog) -> None:
        """Take in a batch line of the log."""
        self.batches.append(batch)

    def add_metric(self, metric: Metric) -> None:
        """Take in a series that is not a plain load figure."""
        labels = dict(metric.labels)
        if metric.name == _PASSES:
            if labels.get("pp_rank", "0") == "0":
                self._passes.setdefault(metric.labels, deque(maxlen=120)).append((metric.at_ns, metric.value))
        elif metric.name == "sglang:fwd_occupancy" and (stage := whole(labels.get("pp_rank"), 6)) is not None:
            points = self._occupancy.setdefault(stage, deque(maxlen=_POINTS))
            # NaN without the device timer; 0 from the start to the end of the first interval: a stage that decodes is never at 0.
            if metric.value and not math.isnan(metric.value):
                points.append((metric.at_ns, metric.value / 100))

    def busy(self, pp: int, now_ns: int) -> float | None:
        """Busy share of a stage by the server's own forward occupancy, the mean of the last readings; None without a fresh one."""
        points = self._occupancy.get(pp)
        if not points or now_ns - points[-1][0] > _OCCUPANCY_NS:
            return None
        recent = [share for at_ns, share in points if points[-1][0] - at_ns <= _LARGEST_NS]
        return sum(recent) / len(recent)

    def _best(self, field: str, now_ns: int, without: str = "") -> tuple[float | int | None, str | None]:
        """The most trusted fresh reading; one that holds only because its page is dear gives way to what was said after it."""
        readings = [
            sample
            for source in (_TRUST_THROUGHPUT if field == "tokens_per_s" else _TRUST)
            if source != without
            and (sample := self._whole.get(source)) is not None
            and getattr(sample, field) is not None
            and now_ns - sample.at_ns <= self._fresh_ns(source)
        ]
        best = readings[0] if readings else None
        if best is not None and _is_old(best, now_ns):
            # Not to /server_info: it is read at any time, and its rate is that of the last line of the log.
            later = (one for one in readings if one.at_ns > best.at_ns and one.source != _KEPT_FOR_EVER)
            best = next(later, best)
        return (None, None) if best is None else (getattr(best, field), best.source)

    def _fresh_ns(self, source: str) -> int:
        """How long a reading of this source holds: of pages and lines until the next is overdue."""
        usual = _FRESH_NS.get(source, 0)
        gaps = self._gaps_ns.get(source)
        if not gaps:
            return usual
        if source == "metrics":
            return max(usual, min(gaps[-1] * 3 // 2, _DEAR_NS))
        return min(usual, max(max(gaps) * 3 // 2, _LINE_NS)) if source == "log" and len(gaps) == _GAPS else usual

    def passes_since(self, since_ns: int) -> dict[str, float]:
        """Forward passes per mode since an instant, over all counters of the server's first stage; empty without them."""
        counted: dict[str, float] = {}
        for labels, points in self._passes.items():
            recent = [value for at, value in points if at >= since_ns]
            if len(recent) >= 2:
                mode = dict(labels).get("mode", "")
                gained = sum(max(later - value, 0.0) for value, later in pairwise(recent))
                counted[mode] = counted.get(mode, 0.0) + gained
        return counted

    def recent_batches(self, now_ns: int) -> list[BatchLog]:
        """Batch lines of the last minute, oldest first."""
        return [batch for batch in self.batches if now_ns - batch.at_ns <= _BATCHES_NS]

    def _decode_share(self, now_ns: int, log_interval: int | None) -> float | None:
        counted = self.passes_since(now_ns - 30_000_000_000)
        total = sum(counted.values())
        if total:
            return sum(count for mode, count in counted.items() if mode.startswith("decode")) / total
        if log_interval is None:
            return None
        recent = [batch for batch in self.recent_batches(now_ns) if batch.pp in (None, 0)]
        decode = sum(log_interval for b in recent if b.mode == "decode")
        prefill = sum(1 for b in recent if b.mode == "prefill")
        return decode / (decode + prefill) if decode else None

    def micro_batch(self, now_ns: int, log_interval: int | None = None) -> float | None:
        """Mean requests of a decode micro-batch: from counters, else of the log's decode lines of the last half minute."""
        counted, _ = self._best("micro_batch", now_ns)
        if counted is not None:
            return float(counted)
        return mean_size(self._decode_lines(now_ns), log_interval)

    def largest(self, now_ns: int) -> int | None:
        """The largest decode micro-batch in the log of the last seconds: so many requests run at least."""
        sizes = [line.running for line in self._decode_lines(now_ns) if now_ns - line.at_ns <= _LARGEST_NS]
        return max((size for size in sizes if size), default=None)

    def _decode_lines(self, now_ns: int) -> list[BatchLog]:
        """The first stage's decode lines of the last half minute, oldest first."""
        recent = takewhile(lambda line: now_ns - line.at_ns <= _SIZES_NS, reversed(self.batches))
        lines = [line for line in recent if line.mode == "decode"][::-1]
        lines = [line for line in lines if line.at_ns >= self.since_ns] or lines
        first = min(((line.dp or 0, line.pp or 0) for line in lines), default=(0, 0))
        return [line for line in lines if (line.dp or 0, line.pp or 0) == first]

    def passes_per_s(self, now_ns: int, log_interval: int | None = None) -> float | None:
        """Decode passes a second of a stage, tokens ÷ size; None where either is not known."""
        rate, _ = self._best("tokens_per_s", now_ns)
        size = self.micro_batch(now_ns, log_interval)
        return rate / size if rate and size else None

    def in_flight(self, now_ns: int) -> int | None:
        """Open generation requests at the HTTP server; None where nothing fresh says it, or an old page none and the log tokens."""
        value, source = self._best("in_flight", now_ns)
        if value is None or source is None:
            return None
        if value == 0 and _is_old(self._whole[source], now_ns):
            rate, said_by = self._best("tokens_per_s", now_ns)
            if rate and said_by == "log":
                return None
        return int(value)

    def in_flight_most(self, now_ns: int) -> int | None:
        """The most open generation requests in any reading of the last seconds; None without enough of them."""
        told = [
            (sample.at_ns, int(sample.in_flight))
            for sample in takewhile(lambda sample: now_ns - sample.at_ns <= _BATCHES_NS, reversed(self.history))
            if sample.in_flight is not None
        ]
        recent = [count for at_ns, count in told if now_ns - at_ns <= _LARGEST_NS]
        recent = recent if len(recent) >= _READINGS else [count for _, count in told[:_READINGS]]
        return max(recent) if len(recent) >= _READINGS else None

    def in_flight_peak(self, now_ns: int) -> int | None:
        """The most open generation requests in any reading of the last minute; None without one."""
        recent = takewhile(lambda sample: now_ns - sample.at_ns <= _BATCHES_NS, reversed(self.history))
        return max((int(sample.in_flight) for sample in recent if sample.in_flight is not None), default=None)

    def estimate(self, now_ns: int, occupied: float | None, batch_interval: int | None = None) -> Running:
        """Running requests where the server does not count them; `occupied` and `batch_interval` as for `view`."""
        queued, _ = self._best("queued", now_ns)
        tokens_per_s, _ = self._best("tokens_per_s", now_ns, _KEPT_FOR_EVER)
        return estimate_running(
            occupied, self.micro_batch(now_ns, batch_interval), self.in_flight(now_ns),
            None if queued is None else int(queued), self.largest(now_ns), bool(tokens_per_s),
        )  # fmt: skip

    def queued_since(self, now_ns: int) -> int | None:
        """Since when every fresh reading of the queue has been above zero; None while one is not, or none is fresh.

        A lone one of a dear page is of a moment: it holds no longer for that, and the page after it tells.
        """
        above = self._queued(now_ns)
        if not above or (_is_old(above[0], now_ns) and all(one.source != above[0].source for one in above[1:])):
            return None
        return above[-1].at_ns

    def queue_is_open(self, now_ns: int) -> bool:
        """Whether a page told of a queue, and only the one after it will say if that stays."""
        return bool(self._queued(now_ns)) and self.queued_since(now_ns) is None

    def _queued(self, now_ns: int) -> list[LoadSample]:
        """The last readings of the queue, all above zero, newest first; none where that is not fresh."""
        told = (sample for sample in reversed(self.history) if sample.queued is not None)
        above = list(takewhile(lambda sample: sample.queued != 0, told))
        return above if above and now_ns - above[0].at_ns <= self._fresh_ns(above[0].source) else []

    def view(
        self,
        now_ns: int,
        log_interval: int | None,
        occupied: float | None = None,
        batch_interval: int | None = None,
        active: bool | None = None,
    ) -> Load:
        """The header's figures; `occupied` are the micro-batch slots in use, `batch_interval` as for `micro_batch`.

        `active` says whether forward passes are seen.
        """
        tokens_per_s, source = self._best("tokens_per_s", now_ns, _KEPT_FOR_EVER if active is False else "")
        running, running_source = self._best("running", now_ns)
        queued, queue_source = self._best("queued", now_ns)
        provenance = "exact" if running is not None else None
        if running is None:
            running = self.estimate(now_ns, occupied, batch_interval).estimate
            provenance = "inferred" if running is not None else None
        return Load(
            tokens_per_s=None if tokens_per_s is None else float(tokens_per_s),
            running=None if running is None else int(running),
            queued=None if queued is None else int(queued),
            decode_share=self._decode_share(now_ns, log_interval),
            source=source or running_source or queue_source,
            running_provenance=provenance,
        )


def _is_old(sample: LoadSample, now_ns: int) -> bool:
    """Whether a reading has outlived its source's usual time, as a dear page may."""
    return now_ns - sample.at_ns >= _FRESH_NS.get(sample.source, 0)


def mean_size(lines: Sequence[BatchLog], log_interval: int | None) -> float | None:
    """Mean micro-batch by the decode lines of one stage, oldest first.

    A line comes every `log_interval` passes and so may always catch the same slot; its throughput is over all of them. So
    tokens ÷ passes between the first line and the last is preferred, where there are lines enough.
    """
    sizes = [line.running for line in lines if line.running]
    if not sizes:
        return None
    told = [(line.wall_ns, line.tokens_per_s) for line in lines]
    took = [
        (later[0] - line[0], later[1])
        for line, later in pairwise(told)
        if line[0] is not None and later[0] is not None and later[1] is not None
    ]
    whole_ns = sum(span for span, _ in took)
    steady = len(took) == len(told) - 1 and whole_ns >= _LEAST_NS and all(0 <= span <= _GAP_NS for span, _ in took)
    if log_interval and len(took) >= _LINES and steady:
        # A line's own time is in whole seconds, so the rates are averaged and the time is taken from end to end.
        rate = len(took) / sum(1 / max(value, 1e-3) for _, value in took)
        return max(rate * whole_ns / 1e9 / (log_interval * len(took)), 1.0)
    return sum(sizes) / len(sizes)

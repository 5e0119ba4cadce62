"""Reads the Prometheus text of SGLang's `/metrics` as it streams in, keeping only the series that ppscope uses.

Names and labels: `metrics/collector.py` (0.5.6, 0.5.9), `observability/metrics_collector.py` (0.5.11 to 0.5.23),
`http_requests_active` in `utils/common.py` (0.5.9 to 0.5.15) and `observability/http_request_metrics.py` (0.5.23).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import msgspec

from ppscope.records import Metric

PREFIX = "sglang:"

KNOWN = frozenset(
    PREFIX + name
    for name in (
        "num_running_reqs",
        "num_queue_reqs",
        "gen_throughput",
        "token_usage",
        "cache_hit_rate",
        "num_used_tokens",
        "max_total_num_tokens",
        "decode_sum_seq_lens",
        "num_retracted_reqs",
        "num_paused_reqs",
        "spec_accept_length",
        "num_prefill_inflight_queue_reqs",
        "num_decode_prealloc_queue_reqs",
        "num_decode_transfer_queue_reqs",
        "cuda_graph_passes_total",
        "startup_cuda_graph_time_seconds",
        "realtime_tokens_total",
        "gpu_execution_seconds_total",
        "forward_execution_seconds_total",
        "fwd_occupancy",
        "scheduler_stage_seconds_total",
        "scheduler_idle_seconds_total",
        "scheduler_process_cpu_seconds_total",
        "http_requests_active",
    )
)
"""Every series that is kept; a page of SGLang 0.5.23 has some 170 more."""

KEPT_LABELS = frozenset(
    ("dp_rank", "pp_rank", "tp_rank", "mode", "category", "forward_overlap", "phase", "endpoint"),
)

GENERATION_ENDPOINTS = frozenset(
    (
        "/generate",
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "/api/generate",
        "/api/chat",
    ),
)

LINE_LIMIT = 1 << 16
SERIES_LIMIT = 20_000

_HEAD = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,?)')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One line of the page: the series' full name, all of its labels, its value (never NaN or infinite)."""

    name: str
    labels: dict[str, str]
    value: float


def parse_line(line: str) -> Sample | None:
    """Read one sample line; None for comments, blank, malformed or non-finite ones."""
    head = _HEAD.match(line)
    if head is None:
        return None
    labels: dict[str, str] = {}
    at = head.end()
    if line.startswith("{", at):
        at += 1
        while (label := _LABEL.match(line, at)) is not None:
            labels[label[1]] = _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[0]), label[2])
            at = label.end()
            if not label[3]:
                break
        while line.startswith(" ", at):
            at += 1
        if not line.startswith("}", at):
            return None
        at += 1
    fields = line[at:].split()
    if not 1 <= len(fields) <= 2:
        return None
    try:
        value = float(fields[0])
    except ValueError:
        return None
    return Sample(head[1], labels, value) if math.isfinite(value) else None


class MetricsReader:
    """Takes the page in pieces of any size and collects the known series; memory stays bounded whatever comes."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._rest = b""
        self._skipping = False

    def feed(self, chunk: bytes) -> None:
        """Take the next piece of the page."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if self._skipping:
                self._skipping = False
                continue
            self._take(line)
        self._rest = rest
        if len(rest) > LINE_LIMIT:
            self._rest, self._skipping = b"", True

    def finish(self) -> list[Sample]:
        """Take a last line without its newline, and give all samples."""
        if not self._skipping:
            self._take(self._rest)
        self._rest = b""
        return self.samples

    def _take(self, line: bytes) -> None:
        if not line.startswith(b"sglang:") or len(line) > LINE_LIMIT or len(self.samples) >= SERIES_LIMIT:
            return
        name = line[:80].partition(b"{")[0].partition(b" ")[0]
        if name.decode("ascii", "replace") in KNOWN:
            sample = parse_line(line.decode("utf-8", "replace"))
            # With priority scheduling the total is the series with an empty priority (metrics_collector.py 1419, 0.5.23).
            if sample is not None and not sample.labels.get("priority"):
                self.samples.append(sample)


def to_metrics(samples: Iterable[Sample], at_ns: int) -> list[Metric]:
    """Metric records with the labels worth keeping; series that then coincide are added up if they count, else the last stays."""
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in samples:
        if sample.name == PREFIX + "http_requests_active":
            if sample.labels.get("endpoint") not in GENERATION_ENDPOINTS:
                continue
            labels: tuple[tuple[str, str], ...] = ()
        else:
            labels = tuple(sorted((name, text[:64]) for name, text in sample.labels.items() if name in KEPT_LABELS))
        key = (sample.name, labels)
        adds_up = sample.name.endswith("_total") or sample.name == PREFIX + "http_requests_active"
        values[key] = values.get(key, 0.0) + sample.value if adds_up else sample.value
    return [Metric(at_ns, name, labels, value) for (name, labels), value in values.items()]


class ChangedOnly:
    """Passes on the metrics that changed since last time, and all of them every `refresh_s` seconds."""

    def __init__(self, refresh_s: float = 30.0) -> None:
        self._refresh_ns = int(refresh_s * 1e9)
        self._last: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._all_at_ns: int | None = None

    def filter(self, metrics: Iterable[Metric], at_ns: int) -> list[Metric]:
        """Give those to send now; `at_ns` is the time of the page."""
        everything = self._all_at_ns is None or at_ns - self._all_at_ns >= self._refresh_ns
        if everything:
            self._all_at_ns = at_ns
        due = [m for m in metrics if everything or self._last.get((m.name, m.labels)) != m.value]
        self._last.update({(m.name, m.labels): m.value for m in due})
        return due

"""What SGLang's counters say of its load: pure, from metrics, `/v1/loads`, `/get_load`, `/server_info` and log lines to LoadSample.

Under pipeline parallelism every stage counts every token, so figures are summed over data-parallel ranks and never over stages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from ppscope.records import BatchLog, LoadSample, Metric
from ppscope.sources.server_metrics import PREFIX
from ppscope.whole import whole

WINDOW_NS = 3_000_000_000
STALE_NS = 30_000_000_000
_MOST = 1e15
"""No count of a server is larger: what claims to be is no count."""

_Place = tuple[int, int]
"""(dp rank, pp rank)."""


class LoadMeter:
    """Turns successive `/metrics` pages into LoadSamples; rates are of the token counter over three seconds, or since the last page."""

    def __init__(self) -> None:
        self._history: deque[tuple[int, dict[_Place, tuple[float, float]]]] = deque()

    def update(self, metrics: Iterable[Metric], at_ns: int, pp_size: int) -> list[LoadSample]:
        """LoadSamples of the whole server and, with several stages, of each. `running` as LoadSample defines it."""
        table, in_flight = _by_place(metrics)
        if not table:
            return []
        rates, batches = self._rates(table, at_ns)
        stages = sorted({pp for _, pp in table})
        samples = []
        for pp in stages:
            places = [place for place in table if place[1] == pp]
            rate = _sum(rates.get(place) for place in places)
            if rate is None:
                rate = _sum(table[place].get("gen_throughput") for place in places)
            sizes = [batches[place] for place in places if place in batches]
            samples.append(
                LoadSample(
                    at_ns,
                    "metrics",
                    running=_count(_sum(table[place].get("num_running_reqs") for place in places)),
                    queued=_count(_sum(table[place].get("num_queue_reqs") for place in places)),
                    tokens_per_s=rate,
                    token_usage=max(
                        (v for place in places if (v := table[place].get("token_usage")) is not None), default=None
                    ),
                    stage=pp,
                    micro_batch=sum(sizes) / len(sizes) if sizes else None,
                )
            )
        first = samples[0]
        whole = LoadSample(
            at_ns,
            "metrics",
            running=first.running if max(pp_size, len(stages)) == 1 else None,
            queued=first.queued,
            tokens_per_s=first.tokens_per_s,
            token_usage=max((s.token_usage for s in samples if s.token_usage is not None), default=None),
            micro_batch=first.micro_batch,
            in_flight=in_flight,
        )
        return [whole, *samples] if len(stages) > 1 else [whole]

    def _rates(
        self, table: Mapping[_Place, Mapping[str, float]], at_ns: int
    ) -> tuple[dict[_Place, float], dict[_Place, float]]:
        now = {
            place: (values["decode_tokens"], values.get("decode_passes", 0.0))
            for place, values in table.items()
            if "decode_tokens" in values
        }
        while len(self._history) > 1 and at_ns - self._history[1][0] >= WINDOW_NS:
            self._history.popleft()
        rates: dict[_Place, float] = {}
        batches: dict[_Place, float] = {}
        if self._history and at_ns > self._history[0][0]:
            then_ns, then = self._history[0]
            for place, (tokens, passes) in now.items():
                if place not in then or tokens < then[place][0]:
                    continue  # a new rank, or the server began again
                more, ran = tokens - then[place][0], passes - then[place][1]
                rates[place] = more / ((at_ns - then_ns) / 1e9)
                # Each pass of plain decoding gives every request one token; speculative decoding gives more.
                if ran > 0 and not table[place].get("spec_accept_length"):
                    batches[place] = more / ran
        self._history.append((at_ns, now))
        return rates, batches


def _by_place(metrics: Iterable[Metric]) -> tuple[dict[_Place, dict[str, float]], int | None]:
    """Figures per (dp, pp); where several tp ranks report (`--enable-metrics-for-all-schedulers`) the lowest one's."""
    reporters: dict[_Place, dict[int, dict[str, float]]] = {}
    in_flight: int | None = None
    for metric in metrics:
        name = metric.name.removeprefix(PREFIX)
        labels = dict(metric.labels)
        if name == "http_requests_active":
            in_flight = (in_flight or 0) + (_count(metric.value) or 0)
            continue
        if "pp_rank" not in labels and "tp_rank" not in labels:
            continue
        mode = labels.get("mode", "")
        if name == "realtime_tokens_total" and mode == "decode":
            name = "decode_tokens"
        elif name == "cuda_graph_passes_total" and mode.startswith("decode"):
            name = "decode_passes"
        elif mode:
            continue
        place = (_rank(labels.get("dp_rank")), _rank(labels.get("pp_rank")))
        values = reporters.setdefault(place, {}).setdefault(_rank(labels.get("tp_rank")), {})
        values[name] = values.get(name, 0.0) + metric.value if name == "decode_passes" else metric.value
    return {place: ranks[min(ranks)] for place, ranks in reporters.items()}, in_flight


def from_loads(answer: object, at_ns: int, pp_size: int) -> LoadSample | None:
    """The load in an answer of `/v1/loads` (0.5.9 and later) or `/get_load` (0.5.6); None where it is neither."""
    rows = answer.get("loads") if isinstance(answer, dict) else answer
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        return None
    waiting = _sum(_number(row.get("num_waiting_reqs")) for row in rows)
    running = _sum(_number(row.get("num_running_reqs")) for row in rows)
    if (
        running is None
        and waiting is not None
        and (total := _sum(_number(row.get("num_reqs")) for row in rows)) is not None
    ):
        running = max(total - waiting, 0.0)
    return LoadSample(
        at_ns,
        "loads",
        running=_count(running) if pp_size == 1 else None,
        queued=_count(waiting),
        tokens_per_s=_sum(_number(row.get("gen_throughput")) for row in rows),
        token_usage=max((v for row in rows if (v := _number(row.get("token_usage"))) is not None), default=None),
    )


def from_server_info(states: object, at_ns: int) -> LoadSample | None:
    """The throughput in `internal_states` of `/server_info` (the first stage's, as of its last log interval); None without it."""
    if not isinstance(states, list):
        return None
    rate = _sum(_number(state.get("last_gen_throughput")) for state in states if isinstance(state, dict))
    return None if rate is None else LoadSample(at_ns, "server_info", tokens_per_s=rate)


class LogLoad:
    """Keeps the last decode line of each place and sums them up over data-parallel ranks."""

    def __init__(self) -> None:
        self._last: dict[_Place, BatchLog] = {}

    def update(self, line: BatchLog, pp_size: int) -> list[LoadSample]:
        """LoadSamples after this line: its stage's, and the whole server's when the first stage spoke. Prefill lines give none."""
        if line.mode != "decode":
            return []
        dp, pp = line.dp or 0, line.pp or 0
        self._last[dp, pp] = line
        rows = [row for (_, stage), row in self._last.items() if stage == pp and line.at_ns - row.at_ns <= STALE_NS]
        figures = LoadSample(
            line.at_ns,
            "log",
            running=_count(_sum(row.running for row in rows)),
            queued=_count(_sum(row.queued for row in rows)),
            tokens_per_s=_sum(row.tokens_per_s for row in rows),
            token_usage=max((row.token_usage for row in rows if row.token_usage is not None), default=None),
            stage=pp,
        )
        samples = [figures] if pp_size > 1 else []
        if pp == min(stage for _, stage in self._last):
            whole = LoadSample(
                line.at_ns,
                "log",
                running=figures.running if pp_size == 1 else None,
                queued=figures.queued,
                tokens_per_s=figures.tokens_per_s,
                token_usage=figures.token_usage,
            )
            samples.append(whole)
        return samples


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _count(value: float | None) -> int | None:
    return round(value) if value is not None and abs(value) < _MOST else None


def _number(value: object) -> float | None:
    return (
        float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _MOST else None
    )


def _rank(text: str | None) -> int:
    return whole(text, 6) or 0

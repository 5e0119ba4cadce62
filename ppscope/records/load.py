"""What the server itself says of its load: metrics, HTTP, the log."""

from __future__ import annotations

from ppscope.records.base import Record


class LoadSample(Record, frozen=True, tag="load"):
    """What the server says of its load. `source` is `metrics`, `server_info`, `loads` or `log`. `stage` None = whole server.

    Under pipeline parallelism SGLang's own running counts are the size of one micro-batch (0.5.6 to 0.5.23: the gauge, `/get_load`,
    `/v1/loads` and the log all read `len(running_batch.reqs)` of the slot at hand). So `running` of a stage is one
    micro-batch, and `running` of the whole server is None when there is more than one stage.
    """

    at_ns: int
    source: str
    running: int | None = None
    queued: int | None = None
    tokens_per_s: float | None = None
    token_usage: float | None = None
    stage: int | None = None
    micro_batch: float | None = None
    """Mean requests of a decode pass over the last seconds, from counters (tokens ÷ passes); None with speculative decoding."""
    in_flight: int | None = None
    """Open generation requests at the HTTP server: fewer than the sequences when one carries several prompts or streams."""


class BatchLog(Record, frozen=True, tag="batch_log"):
    """A `Decode batch` or `Prefill batch` line of the server's log.

    `wall_ns` is the line's own time (whole seconds); `running` is the size of one micro-batch of one stage. `graph` is the
    line's cuda-graph flag, None when the version does not print it.
    """

    at_ns: int
    wall_ns: int | None
    mode: str
    dp: int | None
    pp: int | None
    tp: int | None
    running: int | None = None
    queued: int | None = None
    tokens_per_s: float | None = None
    graph: bool | None = None
    new_sequences: int | None = None
    new_tokens: int | None = None
    token_usage: float | None = None


class LogNote(Record, frozen=True, tag="log_note"):
    """A log line that says something about graphs, capture or trouble; `kind` is `capture`, `graph_disabled`, `error`, `profile`."""

    at_ns: int
    kind: str
    text: str
    pp: int | None = None


class Metric(Record, frozen=True, tag="metric"):
    """One series of `/metrics` that ppscope knows, with the labels it keeps (`pp_rank`, `mode`, `category` …)."""

    at_ns: int
    name: str
    labels: tuple[tuple[str, str], ...]
    value: float

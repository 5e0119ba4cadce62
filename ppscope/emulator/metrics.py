"""The `/metrics` page: SGLang's names and labels, one set for each stage."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from ppscope.emulator.board import Board
from ppscope.emulator.options import Options
from ppscope.emulator.scenarios import MAX_TOTAL_TOKENS, MODEL_PATH


def metrics_page(options: Options, board: Board) -> str:
    """Return the page in the Prometheus text format."""
    return "\n".join(_lines(options, board)) + "\n"


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{value:.6g}"


def _lines(options: Options, board: Board) -> Iterator[str]:
    stages = [(pp_rank, pp_rank * options.tp_size) for pp_rank in range(options.pp_size)]

    def labels(pp_rank: int, extra: str = "") -> str:
        name = f'engine_type="unified",model_name="{MODEL_PATH}",moe_ep_rank="0",pp_rank="{pp_rank}",tp_rank="0"'
        return "{" + name + extra + "}"

    def gauge(name: str, text: str, value: Callable[[int], float]) -> Iterator[str]:
        yield f"# HELP sglang:{name} {text}"
        yield f"# TYPE sglang:{name} gauge"
        for pp_rank, row in stages:
            yield f"sglang:{name}{labels(pp_rank)} {_number(value(row))}"

    yield from gauge("num_running_reqs", "The number of running requests.", lambda row: board.get(row, "running"))
    yield from gauge(
        "num_queue_reqs", "The number of requests in the waiting queue.", lambda row: board.get(row, "queued")
    )
    yield from gauge("num_used_tokens", "The number of used tokens.", lambda row: board.get(row, "token_count"))
    yield from gauge("token_usage", "The token usage.", lambda row: board.get(row, "token_count") / MAX_TOTAL_TOKENS)
    yield from gauge(
        "gen_throughput", "The generation throughput (token/s).", lambda row: board.get(row, "gen_throughput")
    )
    yield from gauge(
        "is_cuda_graph",
        "Whether the batch is using CUDA graph.",
        lambda row: float(board.get(row, "decode_replayed") > 0),
    )
    timed = options.scenario.device_timer
    yield from gauge(
        "fwd_occupancy",
        "Forward pass GPU occupancy percentage.",
        lambda row: board.get(row, "fwd_occupancy") if timed else float("nan"),
    )
    yield "# HELP sglang:cuda_graph_passes_total Total number of forward passes categorized by CUDA graph."
    yield "# TYPE sglang:cuda_graph_passes_total counter"
    modes = (
        ("decode_cuda_graph", "decode_replayed"),
        ("decode_none", "decode_eager"),
        ("prefill_none", "prefill_eager"),
    )
    for pp_rank, row in stages:
        for mode, field in modes:
            extra = f',mode="{mode}"'
            yield f"sglang:cuda_graph_passes_total{labels(pp_rank, extra)} {board.get(row, field):.1f}"
    yield "# HELP sglang:realtime_tokens_total Total number of tokens processed (updated on each log interval)."
    yield "# TYPE sglang:realtime_tokens_total counter"
    decode = ',mode="decode"'
    for pp_rank, row in stages:
        yield f"sglang:realtime_tokens_total{labels(pp_rank, decode)} {board.get(row, 'decode_tokens'):.1f}"
    yield "# HELP sglang:http_requests_active Number of currently active HTTP requests"
    yield "# TYPE sglang:http_requests_active gauge"
    yield f'sglang:http_requests_active{{endpoint="/generate",method="POST"}} {board.get(0, "in_flight"):.1f}'
    yield 'sglang:http_requests_active{endpoint="/metrics",method="GET"} 1.0'

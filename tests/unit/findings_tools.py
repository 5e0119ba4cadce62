"""Evidence to judge: a healthy server of eight stages, and changes to it."""

from __future__ import annotations

from typing import Any

import msgspec

from ppscope.diagnose.evidence import Evidence, GpuEvidence, RankEvidence, StageEvidence
from ppscope.diagnose.findings import judge
from ppscope.diagnose.graph_state import Sizes
from ppscope.records import BatchLog, Rank, RankKey, Server
from ppscope.views import GraphState, Load, Occupancy

PHASES = {"wait_gpu": 0.8, "replay": 0.1, "postprocess": 0.1}
STARVED = {"recv_outputs": 0.9, "replay": 0.1}


def gpu(index: int = 0, power_w: float | None = 450.0, util: float | None = 95.0, **changes: Any) -> GpuEvidence:
    return msgspec.structs.replace(GpuEvidence(index, 300, power_w, 600.0, util), **changes)


def stage(
    pp: int, *, busy: float | None = None, phases: dict[str, float] | None = None, **changes: Any
) -> StageEvidence:
    shares = PHASES if phases is None else phases
    rank = RankEvidence(
        RankKey(0, pp, 0), 100 + pp, True, 30.0, shares, changes.pop("host_cpu", 0.1), changes.pop("wait", 0.0),
        changes.pop("gpu", gpu(pp)),
    )  # fmt: skip
    source = changes.pop("source", "metric" if busy is not None else None)
    return StageEvidence(0, pp, (rank,), shares, busy, source, changes.pop("layers", None))


def stages(busy: list[float] | None = None, count: int = 8, **changes: Any) -> tuple[StageEvidence, ...]:
    shares: list[float | None] = list(busy) if busy is not None else [None] * count
    return tuple(stage(pp, busy=share, **changes) for pp, share in enumerate(shares))


def server(pp: int = 8, version: str = "0.5.23", **changes: Any) -> Server:
    ranks = tuple(Rank(RankKey(0, k, 0), 100 + k, 1, f"sglang::scheduler_PP{k}") for k in range(pp))
    plain = Server(0, 50, 1, "launch_server", "serving", ranks, pp, 1, 1, version=version, device="cuda", port=30000)
    return msgspec.structs.replace(plain, **changes)


def load(running: int | None = 64, queued: int | None = 0, rate: float | None = 200.0) -> Load:
    return Load(rate, running, queued, 0.99, "metrics", "inferred" if running is not None else None)


def decode_lines(size: int, graph: bool | None = True, count: int = 8) -> tuple[BatchLog, ...]:
    return tuple(BatchLog(at, None, "decode", None, 0, None, running=size, graph=graph) for at in range(count))


def settings(**changes: object) -> dict[str, object]:
    plain: dict[str, object] = {
        "pp_max_micro_batch_size": 8,
        "pp_async_batch_depth": 0,
        "max_running_requests": 2048,
        "cuda_graph_config": {"decode": {"backend": "full"}, "prefill": {"backend": "disabled"}},
    }
    return {**plain, **changes}


def evidence(**changes: Any) -> Evidence:
    """A healthy server, serving 64 requests in eight slots; `changes` are fields of the evidence."""
    healthy = Evidence(
        seconds=30.0,
        server=server(),
        stages=stages(),
        load=load(),
        occupancy=Occupancy(8, 7.9, 60, "sampled"),
        decode=GraphState(None, "on", "on", "metrics"),
        prefill=GraphState(None, "off", "off", "metrics"),
        requested={},
        resolved=settings(),
        batches=decode_lines(8),
        micro_batch=8.0,
        in_flight=64,
        active=True,
        running_at_least=64,
        running_at_most=64,
        replay_share=1.0,
        replay_source="metrics",
        captured=Sizes((1, 2, 4, 8, 16, 32), "captured"),
    )
    return msgspec.structs.replace(healthy, **changes)


def ids(of: Evidence) -> set[str]:
    return {finding.id for finding in judge(of)}

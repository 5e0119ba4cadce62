"""Where a stage gets its requests: stage 0 from the load, the others from the stage before; then tensor-parallel peers from rank 0."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...observability.scheduler_stage_metrics import scheduler_stage
from ...server_args import PortArgs
from ...utils.common import broadcast_pyobj, point_to_point_pyobj


class RequestReceiver:
    """Receiver of one rank. `poll` returns what arrived at stage 0 without waiting."""

    def __init__(self, pp_rank: int, tp_rank: int, ports: PortArgs, poll: Callable[[], list[Any]]) -> None:
        self.pp_rank, self.tp_rank = pp_rank, tp_rank
        self._ports, self._poll = ports, poll

    @scheduler_stage("recv_requests")
    def recv_requests(self) -> list[Any]:
        """Return new requests; blocks on every stage but the first until the previous stage relays its list."""
        return self._broadcast_reqs_across_ranks(self._pull_raw_reqs())

    def _pull_raw_reqs(self) -> list[Any] | None:
        if self.tp_rank != 0:
            return None
        if self.pp_rank == 0:
            return self._poll()
        return point_to_point_pyobj([], self._ports.requests_in, None)

    def _broadcast_reqs_across_ranks(self, recv_reqs: list[Any] | None) -> list[Any]:
        if self._ports.broadcast_in is None and not self._ports.broadcast_out:
            assert recv_reqs is not None
            return recv_reqs
        return broadcast_pyobj(recv_reqs, self._ports.broadcast_in, self._ports.broadcast_out)

"""Object messages between neighbouring stages, and the death signal of a scheduler."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ppscope.emulator.process_title import allow_tracers, die_with_parent

from ...torch.distributed.distributed_c10d import Link


def point_to_point_pyobj(data: list[Any], source: Link | None, target: Link | None) -> list[Any]:
    """Send `data` to `target`, or block until `source` sends."""
    if target is not None:
        target.send(data)
        return data
    assert source is not None
    received: list[Any] = source.recv()
    return received


def broadcast_pyobj(data: list[Any] | None, source: Link | None, peers: Sequence[Link]) -> list[Any]:
    """Give `data` of the first tensor-parallel rank to its peers; a peer blocks until it comes."""
    if source is not None:
        received: list[Any] = source.recv()
        return received
    assert data is not None
    for peer in peers:
        peer.send(data)
    return data


def kill_itself_when_parent_died(parent_pid: int) -> None:
    """Die with the launcher, and let any process of the same user read this one's memory."""
    die_with_parent(parent_pid)
    allow_tracers()

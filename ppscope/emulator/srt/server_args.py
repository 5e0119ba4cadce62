"""What a scheduler process is given: the settings, and its ends of the links to its neighbours."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

from dataclasses import dataclass, field

from ppscope.emulator.options import Options

from ..torch.distributed.distributed_c10d import Link


@dataclass(frozen=True)
class ServerArgs:
    """Settings of the server."""

    options: Options
    launcher_pid: int
    pp_size: int
    tp_size: int
    decode_log_interval: int = 40


@dataclass
class PortArgs:
    """Links of one rank. The request links exist on tensor-parallel rank 0 alone; the others get requests from it."""

    receive: dict[str, Link] = field(default_factory=dict)
    send: dict[str, Link] = field(default_factory=dict)
    requests_in: Link | None = None
    requests_out: Link | None = None
    broadcast_in: Link | None = None
    broadcast_out: list[Link] = field(default_factory=list)
    control: Link | None = None

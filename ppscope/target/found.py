"""A server as it was found in the process table, and its record for the stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ppscope.records import Fact, Rank, RankKey, Server
from ppscope.target.arguments import LaunchArguments
from ppscope.target.errors import printable
from ppscope.target.gpu_map import Placement
from ppscope.target.installed import Installed
from ppscope.target.sockets import PortCheck


@dataclass(frozen=True)
class Found:
    """A server found on this node. `env` is the launcher's environment at exec: known names only, secrets removed.

    `readable` says whether we may look into the launcher (its environment, descriptors, memory); without that only what
    every user sees is known. `facts` say where each value came from.
    """

    launcher_pid: int
    launcher_started_ticks: int
    kind: str
    state: str
    ranks: tuple[Rank, ...]
    placement: Placement
    arguments: LaunchArguments
    launch_command: tuple[str, ...]
    readable: bool
    user: str | None
    uid: int | None
    host: str | None
    port: int | None
    port_check: PortCheck | None
    model: str | None
    device: str | None
    installed: Installed
    env: Mapping[str, str]
    rank_env: Mapping[RankKey, Mapping[str, str]]
    others: tuple[tuple[int, str], ...]
    emulated: bool
    facts: tuple[Fact, ...] = ()
    gpus_file: str | None = field(default=None, repr=False)
    """File of the emulated GPUs."""

    @property
    def sglang_path_here(self) -> str | None:
        """Folder of the installed package as it can be opened from here."""
        return self.installed.path_here

    @property
    def pp_loop_size(self) -> int | None:
        """Micro-batch slots of the event loop as the command line asks: pp_size + pp_async_batch_depth (0 by default).

        None without pipeline parallelism, and where a config file or a user's program may say otherwise.
        """
        if self.placement.pp_size < 2 or self.kind == "engine" or self.arguments.config is not None:
            return None
        return self.placement.pp_size + (self.arguments.pp_async_batch_depth or 0)

    def to_record(self, at_ns: int) -> Server:
        """The server as a record of the stream, at a CLOCK_MONOTONIC instant."""
        return Server(
            at_ns=at_ns,
            launcher_pid=self.launcher_pid,
            launcher_started_ticks=self.launcher_started_ticks,
            kind=self.kind,
            state=self.state,
            ranks=self.ranks,
            pp_size=self.placement.pp_size,
            tp_size=self.placement.tp_size,
            dp_size=self.placement.dp_size,
            version=self.installed.version,
            model=self.model,
            device=self.device,
            host=self.host,
            port=self.port,
            user=self.user,
            launch_command=self.launch_command,
            sglang_path=self.installed.path,
            facts=self.facts,
            emulated=self.emulated,
            others=self.others,
            pp_loop_size=self.pp_loop_size,
        )

    def line(self) -> str:
        """One line for a list of servers: pid, model, layout, port, user."""
        port = f"port {self.port}" if self.port is not None else "no port"
        place = self.placement
        layout = f"PP{place.pp_size}×TP{place.tp_size}" + (f"×DP{place.dp_size}" if place.dp_size > 1 else "")
        model = printable(self.model or "–", 60)
        return f"{self.launcher_pid}  {model}  {layout}  {port}  user {self.user or '–'}  {self.kind}, {self.state}"

"""What findings are judged from: one immutable summary of a window, each figure None where there is no evidence for it."""

from __future__ import annotations

import msgspec

from ppscope.diagnose.graph_rules import Answer
from ppscope.diagnose.graph_state import Sizes
from ppscope.diagnose.running import is_idle
from ppscope.records import BatchLog, GpuDevice, LogNote, RankKey, Server
from ppscope.views import GraphState, Load, Occupancy

ACTIVE_S = 6.0
"""A server without a forward pass for so long is not at work."""


class GpuEvidence(msgspec.Struct, frozen=True):
    """One GPU over the window. Means are over the readings that were to be had; `throttled` is the share of readings per reason."""

    index: int
    samples: int
    power_w: float | None
    power_limit_w: float | None
    util_percent: float | None
    throttled: tuple[tuple[str, float], ...] = ()
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: int | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    device: GpuDevice | None = None
    recent_power_w: float | None = None
    """The higher mean of the last two stretches of six seconds: of a load that has just begun, or ended."""


class RankEvidence(msgspec.Struct, frozen=True):
    """One rank over the window: shares of the seen stack time by phase name, and of one core by the kernel's account.

    `wait_share` is the share of the window in which the main thread was ready to run and had no core.
    """

    key: RankKey
    pid: int
    alive: bool
    seen_s: float
    phases: dict[str, float]
    host_cpu: float | None
    wait_share: float | None
    gpu: GpuEvidence | None
    cores: tuple[int, ...] = ()
    """The cores the main thread was seen on."""
    process_cpu: float | None = None
    """Cores that all threads of the process together used, by the kernel's account."""


class StageEvidence(msgspec.Struct, frozen=True):
    """One pipeline stage: its ranks, and its busy share with the source of that (`trace`, `probe`, `metric`, `host`)."""

    dp: int
    pp: int
    ranks: tuple[RankEvidence, ...]
    phases: dict[str, float]
    busy: float | None
    busy_source: str | None
    layers: int | None = None
    by_request: float | None = None
    """Share of the seen stack time in loops over the requests of a micro-batch, on a CPU server."""


class Evidence(msgspec.Struct, frozen=True):
    """Everything a finding may rest on. `seconds` is the length of the window that was seen.

    `requested` and `resolved` are the server's settings, None where they could not be read. `batches` are the window's lines of the
    log, oldest first.
    """

    seconds: float
    server: Server
    stages: tuple[StageEvidence, ...]
    load: Load
    occupancy: Occupancy
    decode: GraphState
    prefill: GraphState
    requested: dict[str, object] | None = None
    resolved: dict[str, object] | None = None
    batches: tuple[BatchLog, ...] = ()
    log_notes: tuple[LogNote, ...] = ()
    micro_batch: float | None = None
    """Mean requests of a decode micro-batch, from counters or the log; None where neither says it."""
    in_flight: int | None = None
    """Open generation requests at the HTTP server."""
    in_flight_peak: int | None = None
    """The most of them in the minute that slots are counted over; None where nobody counts."""
    active: bool | None = None
    """Whether a forward pass was seen in the last seconds; None where no stacks were."""
    with_batch: bool = False
    """Where no forward pass was seen in the last seconds: whether a stage was seen with a batch, which waits."""
    running_at_least: int | None = None
    """Requests that run at the very least, whatever the occupancy is."""
    slot_samples: tuple[tuple[int, int], ...] = ()
    """(slot, dumps that saw it at work) of the last minute, most first."""
    running_at_most: int | None = None
    """Requests that ran at the very most in the last seconds; None where nothing excludes more."""
    queued_s: float = 0.0
    """For how long every reading of the queue has been above zero."""
    decodes: bool | None = None
    """Whether decode passes were counted or logged in the window; False where others were and none of these, None without either."""
    replay_share: float | None = None
    """Share of the window's decode passes that replayed a graph, by counters or the log's flags."""
    replay_source: str | None = None
    draft_eager: float | None = None
    """Share of the schedulers' time in eager launches of the draft model's decode passes; None where no speculation was seen."""
    draft_replayed: float | None = None
    """The same in replays of the draft's own graphs."""
    rule: Answer | None = None
    """Whether decode graphs come on, by the installed source; None where it was not read."""
    rules_problem: str = ""
    captured: Sizes | None = None
    """Batch sizes with a decode graph."""
    layers: int | None = None
    """Layers of the model, from its config.json or the partition that was asked for."""
    labels: dict[str, str] = {}
    """The view's word for each phase name."""

    @property
    def idle(self) -> bool:
        """Whether it was seen to have nothing to do."""
        return self.active is False and is_idle(self.active, self.with_batch, self.load, self.in_flight)

    def stage(self, pp: int) -> StageEvidence | None:
        """The first data-parallel replica's stage."""
        return next((stage for stage in self.stages if stage.pp == pp), None)

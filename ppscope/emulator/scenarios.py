"""What each scenario's server does: its load, its launch flags, and how long host and GPU work takes.

Times of the whole model are divided by the number of stages, as layers are; so a scenario keeps its token rate at every PP size.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

MODEL_PATH = "moonshotai/Kimi-K2-Instruct"
MODEL_LAYERS = 61
MAX_TOTAL_TOKENS = 1_212_416
IDLE_POWER_W = 83.0
POWER_LIMIT_W = 600.0
BUSY_POWER_W = 520.0


@dataclass(frozen=True)
class Scenario:
    """One story. `*_ms` are of the whole model for one micro-batch; a stage takes its share of them."""

    name: str
    requests_in_slot: int
    """Running requests of an occupied micro-batch slot."""
    slots: str = "all"
    """Which slots hold requests: `all`, `first`, `even` or `none`."""
    graphs: bool = True
    """Whether decode graphs are on; off puts --disable-cuda-graph on the command line."""
    captured_max_batch: int = 256
    host_replay_ms: float = 14.0
    host_eager_ms: float = 304.0
    gpu_ms: float = 320.0
    gpu_duty: float = 0.97
    """Share of a step's GPU span in which a kernel runs (the rest is gaps between eager launches)."""
    slow_stage: int | None = None
    slow_factor: float = 1.0
    output_tokens: tuple[int, int] = (128, 384)
    spinning: bool = False
    """Receives are posted early, so that a waiting GPU runs a communication kernel: utilisation 100 %, little power."""
    throttled_gpu: int | None = None
    uneven_layers: bool = False
    """The slow stage is slow because SGLANG_PP_LAYER_PARTITION gives it more layers."""
    device_timer: bool = False
    """SGLANG_ENABLE_METRICS_DEVICE_TIMER: `/metrics` has a number for sglang:fwd_occupancy instead of NaN."""
    busy_intensity: float = 1.0
    """Share of the power range that a busy GPU draws."""
    extra_flags: tuple[str, ...] = ()
    micro_batch_limit: int | None = None
    """--pp-max-micro-batch-size, which is what spreads requests over the slots; None leaves SGLang's own, far too large one."""
    load_seconds: float = 0.0
    transfer_ms: float = 0.0
    """Time that messages take between the stages, of all hops together; 0 is a fast link."""
    late_sync: bool = False
    """The last stage's scheduler learns of outputs only once the GPU is through with the batch just launched, as at async depth 0."""
    burn_ms: float = 0.0
    """CPU time that the first stage's scheduler needs for the outputs of a micro-batch; it is burnt, not slept."""
    padding: bool = True
    """Whether a batch is padded up to the next captured size; off puts --disable-cuda-graph-padding on the command line."""
    stray_every: int = 0
    """Each replay of so many launches a kernel beside its graph, which only a profile shows."""
    stuck: int = 0
    """Requests that wait in the queue and are never admitted."""
    max_running_requests: int = 2048

    def flags(self) -> tuple[str, ...]:
        """Return the flags this scenario adds to the server's command line."""
        limit = self.micro_batch_limit
        return (*self.extra_flags, *(() if limit is None else ("--pp-max-micro-batch-size", str(limit))))

    def occupied_slots(self, pp_size: int) -> tuple[int, ...]:
        """Return the micro-batch slots that hold requests, of `pp_size` slots in all."""
        if self.slots == "none":
            return ()
        if self.slots == "first":
            return (0,)
        return tuple(range(0, pp_size, 2 if self.slots == "even" else 1))

    def slot_requests(self, pp_size: int) -> int:
        """Return the requests of one occupied slot: the serial story needs enough of them to fill every slot."""
        return max(self.requests_in_slot, pp_size) if self.slots == "first" else self.requests_in_slot

    def stage_factor(self, pp_rank: int, pp_size: int) -> float:
        """Return how much longer this stage's GPU work takes than an even share."""
        if self.slow_stage is not None and pp_rank == min(self.slow_stage, pp_size - 1):
            return self.slow_factor
        return 1.0

    def layers(self, pp_size: int) -> tuple[int, ...]:
        """Return the layers of each stage, in proportion to its work."""
        weights = [self.stage_factor(pp_rank, pp_size) for pp_rank in range(pp_size)]
        edges = [round(MODEL_LAYERS * sum(weights[:count]) / sum(weights)) for count in range(pp_size + 1)]
        return tuple(end - start for start, end in itertools.pairwise(edges))

    def decode_replays(self, batch_size: int) -> bool:
        """Return whether a decode step of this batch size replays a graph."""
        padded = self.padding or batch_size in self.captured_sizes()
        return self.graphs and padded and batch_size <= self.captured_max_batch

    def captured_sizes(self) -> list[int]:
        """Return the captured decode batch sizes, empty when graphs are off."""
        if not self.graphs:
            return []
        sizes = [1, 2, 4, 8, 12, 16, 24, 32, *range(40, 161, 8), *range(176, 257, 16)]
        return [size for size in sizes if size <= self.captured_max_batch]


_HEALTHY = Scenario("healthy", requests_in_slot=8, micro_batch_limit=8)

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "serial",
            requests_in_slot=8,
            slots="first",
            graphs=False,
            gpu_ms=300.0,
            gpu_duty=0.22,
            busy_intensity=0.22,
            # Short enough that a change which new requests alone obey is seen within a minute.
            output_tokens=(32, 96),
            extra_flags=("--disable-cuda-graph", "--decode-log-interval", "10"),
        ),
        _HEALTHY,
        Scenario(
            "eager",
            requests_in_slot=64,
            captured_max_batch=32,
            host_eager_ms=120.0,
            gpu_ms=320.0,
            gpu_duty=0.78,
            busy_intensity=0.75,
            output_tokens=(512, 1536),
            micro_batch_limit=64,
            extra_flags=("--cuda-graph-max-bs-decode", "32"),
        ),
        replace(_HEALTHY, name="imbalanced", slow_stage=3, slow_factor=2.0, uneven_layers=True, device_timer=True),
        Scenario(
            "spinning",
            requests_in_slot=1,
            slots="even",
            gpu_ms=160.0,
            spinning=True,
            busy_intensity=0.15,
            micro_batch_limit=1,
        ),
        replace(_HEALTHY, name="throttled", slow_stage=3, slow_factor=1.12, throttled_gpu=3),
        replace(_HEALTHY, name="loading", load_seconds=20.0),
        Scenario("idle", requests_in_slot=0, slots="none"),
        replace(_HEALTHY, name="slow-links", gpu_ms=160.0, transfer_ms=240.0, device_timer=True),
        replace(
            _HEALTHY,
            name="late-sync",
            gpu_ms=160.0,
            host_replay_ms=32.0,
            slow_stage=31,
            slow_factor=1.05,
            late_sync=True,
            device_timer=True,
        ),
        replace(_HEALTHY, name="busy-host", gpu_ms=120.0, host_replay_ms=4.0, burn_ms=480.0),
        replace(
            _HEALTHY,
            name="unpadded",
            requests_in_slot=11,
            micro_batch_limit=11,
            padding=False,
            extra_flags=("--disable-cuda-graph-padding",),
        ),
        replace(_HEALTHY, name="leaky", stray_every=7),
        Scenario(
            "blocked",
            requests_in_slot=0,
            slots="none",
            stuck=3,
            max_running_requests=1,
            extra_flags=("--max-running-requests", "1"),
        ),
    )
}

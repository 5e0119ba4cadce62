"""Chooses between replay and eager for each step, and puts the step on the GPU's clock."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

import time

from ppscope.emulator.gpu_timeline import GpuTimeline
from ppscope.emulator.scenarios import MODEL_LAYERS, Scenario
from ppscope.emulator.stacks import Stacks, frame

from ...torch._ops import spend
from ...torch.profiler import record_function
from ..managers.schedule_batch import ScheduleBatch
from ..models.deepseek_v2 import (
    DeepseekV2AttentionMLA,
    DeepseekV2DecoderLayer,
    DeepseekV2Model,
    DeepseekV2MoE,
    DeepseekV3ForCausalLM,
    FusedMoE,
)
from .runner.decode_cuda_graph_runner import DecodeCudaGraphRunner
from .runner.eager_runner import EagerRunner


def stage_layers(pp_rank: int, pp_size: int) -> int:
    """Return the layers of a stage: an even split, the remainder on the last stages (distributed/utils.py of 0.5.23)."""
    even, remainder = divmod(MODEL_LAYERS, pp_size)
    return max(even + (1 if pp_rank >= pp_size - remainder else 0), 1)


def forward_stacks() -> Stacks:
    """Return the frames of a profile with stacks, below the scheduler's own."""
    return Stacks(
        step=(),
        replay=(frame(ModelRunner.forward), frame(DecodeCudaGraphRunner.execute)),
        eager=(frame(ModelRunner.forward), frame(EagerRunner.execute), frame(DeepseekV2Model.forward)),
        layer=(frame(DeepseekV2DecoderLayer.forward),),
        attention=(frame(DeepseekV2AttentionMLA.forward), frame(DeepseekV2AttentionMLA.forward_core)),
        experts=(frame(DeepseekV2MoE.forward), frame(FusedMoE.forward)),
    )


class ModelRunner:
    """Model of one rank."""

    def __init__(self, scenario: Scenario, pp_rank: int, pp_size: int, gpu: GpuTimeline) -> None:
        self._scenario, self._gpu = scenario, gpu
        self._layers = stage_layers(pp_rank, pp_size)
        self._eager = EagerRunner(DeepseekV3ForCausalLM(self._layers), scenario.host_eager_ms / pp_size)
        self._decode_graphs = DecodeCudaGraphRunner(scenario.host_replay_ms / pp_size)

    def load_model(self, seconds: float) -> None:
        """Spend the second half of a slow start here, under the scheduler's own title."""
        spend(seconds * 1e3)

    def forward(self, batch: ScheduleBatch) -> tuple[bool, int]:
        """Launch one step; return whether it replayed a graph and when the GPU will be done (ns, CLOCK_MONOTONIC)."""
        with record_function(batch.step_name()):
            return self._forward_raw(batch)

    def _forward_raw(self, batch: ScheduleBatch) -> tuple[bool, int]:
        replayed = batch.forward_mode == "DECODE" and self._scenario.decode_replays(batch.batch_size)
        start_ns = time.monotonic_ns()
        if replayed:
            self._decode_graphs.execute()
        else:
            self._eager.execute()
        end_ns = time.monotonic_ns()
        return replayed, self._gpu.compute(replayed=replayed, host_start_ns=start_ns, host_end_ns=end_ns)

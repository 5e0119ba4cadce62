"""The layers of one stage; each spends its share of the host time of a forward pass on launching kernels."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

from ...torch._ops import spend_until
from ...torch.nn.modules.module import Module

ATTENTION_SHARE = 0.45
ROUTING_SHARE = 0.3


class DeepseekV2AttentionMLA(Module):
    """Attention of one layer."""

    def forward(self, start_ns: int, end_ns: int) -> None:
        """Launch."""
        self.forward_core(end_ns)

    def forward_core(self, end_ns: int) -> None:
        """Launch the attention kernels."""
        spend_until(end_ns)


class FusedMoE(Module):
    """Experts of one layer."""

    def forward(self, start_ns: int, end_ns: int) -> None:
        """Launch."""
        spend_until(end_ns)


class DeepseekV2MoE(Module):
    """Router and experts of one layer."""

    def __init__(self) -> None:
        self.experts = FusedMoE()

    def forward(self, start_ns: int, end_ns: int) -> None:
        """Launch."""
        routed_ns = start_ns + int((end_ns - start_ns) * ROUTING_SHARE)
        spend_until(routed_ns)
        self.experts(routed_ns, end_ns)


class DeepseekV2DecoderLayer(Module):
    """One layer."""

    def __init__(self) -> None:
        self.self_attn = DeepseekV2AttentionMLA()
        self.mlp = DeepseekV2MoE()

    def forward(self, start_ns: int, end_ns: int) -> None:
        """Launch."""
        attended_ns = start_ns + int((end_ns - start_ns) * ATTENTION_SHARE)
        self.self_attn(start_ns, attended_ns)
        self.mlp(attended_ns, end_ns)


class DeepseekV2Model(Module):
    """The layers of one stage."""

    def __init__(self, layers: int) -> None:
        self.layers = [DeepseekV2DecoderLayer() for _ in range(layers)]

    def forward(self, start_ns: int, end_ns: int) -> None:
        """Launch."""
        step = (end_ns - start_ns) / len(self.layers)
        for index, layer in enumerate(self.layers):
            layer(start_ns + int(index * step), start_ns + int((index + 1) * step))


class DeepseekV3ForCausalLM(Module):
    """The model of one stage."""

    def __init__(self, layers: int) -> None:
        self.model = DeepseekV2Model(layers)

    def forward(self, start_ns: int, end_ns: int) -> None:
        """Launch."""
        self.model(start_ns, end_ns)

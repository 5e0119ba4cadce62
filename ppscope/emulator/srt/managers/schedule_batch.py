"""Requests and the micro-batches made of them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Req:
    """One request: so many prompt tokens in, `max_new_tokens` out."""

    rid: str
    mb_id: int
    prompt_tokens: int
    max_new_tokens: int
    output_tokens: int = 0

    @property
    def finished(self) -> bool:
        """Whether the last token is out."""
        return self.output_tokens >= self.max_new_tokens


@dataclass
class ScheduleBatch:
    """One micro-batch about to run. `forward_mode` is `EXTEND` or `DECODE`."""

    forward_mode: str
    reqs: list[Req] = field(default_factory=list)

    @property
    def batch_size(self) -> int:
        """Number of requests."""
        return len(self.reqs)

    def step_name(self) -> str:
        """Return the span name of the forward pass, as SGLang 0.5.11 and later write it."""
        if self.forward_mode == "EXTEND":
            return f"step[EXTEND bs={self.batch_size} toks={sum(req.prompt_tokens for req in self.reqs)}]"
        return f"step[{self.forward_mode} bs={self.batch_size}]"


@dataclass(frozen=True)
class ProfileReq:
    """A /start_profile or /stop_profile on its way along the stages."""

    start: bool
    output_dir: str = "/tmp"
    num_steps: int | None = None
    profile_id: str = ""
    profile_prefix: str | None = None
    with_stack: bool = False


@dataclass(frozen=True)
class SetInternalStateReq:
    """A /set_internal_state on its way along the stages: how many requests one slot takes from now on."""

    pp_max_micro_batch_size: int

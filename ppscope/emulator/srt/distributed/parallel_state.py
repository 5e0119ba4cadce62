"""Tensor messages along the pipeline: the metadata object travels at once, the data is there when the sender's GPU has it."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

from dataclasses import dataclass

from ...torch.distributed.distributed_c10d import Link


@dataclass(frozen=True)
class TensorDict:
    """Metadata of a message: what it is, whose micro-batch, and when the sender's GPU has the data (ns, CLOCK_MONOTONIC)."""

    msg_type: str
    mb_id: int
    ready_ns: int


class GroupCoordinator:
    """The pipeline group of one rank: whom it receives from and sends to, for each kind of message."""

    def __init__(self, rank: int, size: int, receive: dict[str, Link], send: dict[str, Link]) -> None:
        self.rank, self.size = rank, size
        self._receive, self._send = receive, send

    @property
    def is_first_rank(self) -> bool:
        """Whether this is stage 0."""
        return self.rank == 0

    @property
    def is_last_rank(self) -> bool:
        """Whether this is the last stage."""
        return self.rank == self.size - 1

    def send_object(self, message: TensorDict) -> None:
        """Send the metadata."""
        self._send[message.msg_type].send(message)

    def recv_object(self, msg_type: str) -> TensorDict:
        """Block until the previous stage sends metadata."""
        message: TensorDict = self._receive[msg_type].recv()
        return message

    def send_tensor_dict(self, message: TensorDict) -> None:
        """Send to the next stage."""
        self.send_object(message)

    def recv_tensor_dict(self, msg_type: str) -> TensorDict:
        """Receive from the previous stage."""
        return self.recv_object(msg_type)

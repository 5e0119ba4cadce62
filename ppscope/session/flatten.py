"""Nested calls to disjoint pieces: a call's own time is what the timed calls inside it leave over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ppscope.probe import layout
from ppscope.records import ProbeSpans

Piece = tuple[int, int, int, int, int, int, int, int]
"""(start ns, end ns, phase, micro-batch, mode, batch size, tokens, graph); phase is an index, the rest as in ProbeSpans."""

PHASES = {
    layout.INTAKE: "intake",
    layout.WAIT_REQUESTS: "wait_requests",
    layout.WAIT_PEERS: "wait_peers",
    layout.SCHEDULE: "schedule",
    layout.RECV_ACTIVATIONS: "recv_activations",
    layout.RECV_OUTPUTS: "recv_outputs",
    layout.WAIT_DISAGG: "wait_disagg",
    layout.WAIT_SEND: "wait_send",
    layout.SEND: "send",
    layout.LAUNCH: "prepare",
    layout.EAGER: "eager",
    layout.REPLAY: "replay",
    layout.GRAPH_INPUT: "graph_input",
    layout.SAMPLE: "sample",
    layout.EXCHANGE: "postprocess",
    layout.PROCESS: "postprocess",
    layout.WAIT_GPU: "wait_gpu",
    layout.IDLE: "idle",
    layout.FROZEN: "frozen",
}
"""Phase of each kind's own time: the same that the phase table gives to the same call's stack."""


EVENT_WAIT_NS = 300_000
"""Between taking outputs in and processing them the loop does nothing but wait for their event (0.5.9 to 0.5.23).

CUDA's wait is timed itself; on other devices, whose events cannot be wrapped, a gap there of at least this long is that wait.
"""


LONGEST_WAIT_NS = 86_400_000_000_000
"""Two calls that are more than a day apart do not follow on one another."""


def phase_of_kind(by_name: dict[str, int], other: int) -> list[int]:
    """Phase index of every code a byte can hold; a kind this version does not know is `other`."""
    return [by_name.get(PHASES.get(kind, ""), other) for kind in range(256)]


class Flattener:
    """Takes in the spans of one rank in the order they ended and gives out pieces in order, each as soon as its outermost call ended."""

    def __init__(self, phases: Sequence[int], wait_gpu: int) -> None:
        self._phases = phases
        self._wait_gpu = wait_gpu
        self._pending: list[Piece] = []
        self._last_ns = 0

    def reset(self) -> None:
        """Forget calls whose caller will not come: the stream has a hole here."""
        self._pending.clear()
        self._last_ns = 0

    def add(self, record: ProbeSpans) -> Iterator[list[Piece]]:
        """The pieces of each outermost call, and an empty list where the probe had been dormant."""
        phases, pending = self._phases, self._pending
        for start, end, kind, depth, slot, mode, size, tokens, graph in zip(
            record.starts_ns, record.ends_ns, record.kinds, record.depths, record.micro_batches, record.modes,
            record.batch_sizes, record.tokens, record.graphs, strict=True,
        ):  # fmt: skip
            if kind == layout.WAKE:
                self.reset()
                yield []
                continue
            if kind == layout.GPU_FORWARD:
                continue
            phase = phases[kind]
            if not pending:
                whole: list[Piece] = [(start, end, phase, slot, mode, size, tokens, graph)]
            else:
                first = len(pending)
                while first and pending[first - 1][0] >= start:
                    first -= 1
                whole = []
                cursor = start
                for inner in pending[first:]:
                    if inner[0] > cursor:
                        whole.append((cursor, inner[0], phase, slot, mode, size, tokens, graph))
                    whole.append(inner)
                    cursor = inner[1]
                if end > cursor:
                    whole.append((cursor, end, phase, slot, mode, size, tokens, graph))
                del pending[first:]
            if depth:
                pending += whole
            else:
                pending.clear()
                last, self._last_ns = self._last_ns, end
                if last and whole[0][0] - last > LONGEST_WAIT_NS:
                    last = 0
                    yield []
                if kind == layout.PROCESS and last and whole[0][0] - last >= EVENT_WAIT_NS:
                    whole.insert(0, (last, whole[0][0], self._wait_gpu, slot, mode, size, tokens, 0))
                yield whole

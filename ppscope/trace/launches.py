"""Every kernel's origin, by correlation alone: replayed from a graph, launched one by one, or launched outside the file.

All kernels of one replay share the correlation of the one cudaGraphLaunch or hipGraphLaunch call (seen on NVIDIA and AMD).
`graph node id`, the dispatch kind of ROCm and the number of kernels under one correlation agree where they exist, and are not asked.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from enum import IntEnum

from ppscope.trace.names import CallKind, GpuKind, is_communication
from ppscope.trace.reader import RankTrace

NONE = -1


class Origin(IntEnum):
    """Where a GPU event came from; memory operations are no kernels."""

    REPLAYED = 0
    EAGER = 1
    UNKNOWN = 2
    MEMORY = 3


class Launches:
    """Origins of one file's GPU events, and what its launch calls did.

    `origin[i]` and `call[i]` belong to GPU event i (`call` is NONE without a call in the file); `kernels[c]` counts the kernels of call c;
    `recorded[c]` is 1 for launches during capture: they run later, as part of a replay.
    """

    def __init__(self, trace: RankTrace) -> None:
        self.trace = trace
        self.origin = array("b", bytes(len(trace.gpu)))
        self.call = array("l", [NONE]) * len(trace.gpu)
        self.kernels = array("l", [0]) * len(trace.calls)
        self.recorded = bytearray(len(trace.calls))
        self.is_communication = [is_communication(name) for name in trace.names]
        self._join()
        self._find_recorded()

    def _join(self) -> None:
        calls = self.trace.calls
        by_correlation: dict[int, int] = {}
        # A correlation may be shared by a runtime call and the driver call under it: the graph launch tells more.
        for kind in (CallKind.MEMORY, CallKind.LAUNCH, CallKind.GRAPH_LAUNCH):
            by_correlation.update(
                {
                    number: index
                    for index, number in enumerate(calls.correlation)
                    if calls.kind[index] == kind and number >= 0
                }
            )
        gpu = self.trace.gpu
        find = by_correlation.get
        call = self.call = array("l", [find(number, NONE) for number in gpu.correlation])
        kinds = calls.kind
        origin = self.origin
        kernels = self.kernels
        of_call = {
            CallKind.GRAPH_LAUNCH: Origin.REPLAYED,
            CallKind.LAUNCH: Origin.EAGER,
            CallKind.MEMORY: Origin.UNKNOWN,
        }
        for index, at in enumerate(call):
            if gpu.kind[index] != GpuKind.KERNEL:
                origin[index] = Origin.MEMORY
            elif at == NONE:
                origin[index] = Origin.UNKNOWN
            else:
                origin[index] = of_call[CallKind(kinds[at])]
                kernels[at] += 1

    def _find_recorded(self) -> None:
        calls = self.trace.calls
        brackets: dict[int, list[tuple[int, bool]]] = {}
        for index, kind in enumerate(calls.kind):
            if kind in (CallKind.BEGIN_CAPTURE, CallKind.END_CAPTURE):
                mark = (calls.start_ns[index], kind == CallKind.BEGIN_CAPTURE)
                brackets.setdefault(calls.thread[index], []).append(mark)
        for marks in brackets.values():
            marks.sort()
        times = {thread: [at for at, _ in marks] for thread, marks in brackets.items()}
        if not brackets:
            return
        for index, kind in enumerate(calls.kind):
            marks = brackets.get(calls.thread[index], [])
            if kind != CallKind.LAUNCH or self.kernels[index] or not marks:
                continue
            after = bisect_right(times[calls.thread[index]], calls.start_ns[index])
            # A file may begin inside a capture: then the first mark is its end.
            self.recorded[index] = marks[after - 1][1] if after else not marks[0][1]

    def empty_graph_launches(self) -> int:
        """How many graph launches have no GPU work in the file: its records were lost, or were never written."""
        calls = self.trace.calls
        worked = set(self.call)
        return sum(kind == CallKind.GRAPH_LAUNCH and index not in worked for index, kind in enumerate(calls.kind))

    def communicates(self, index: int) -> bool:
        """True when GPU event `index` is a kernel of a communication library."""
        return self.is_communication[self.trace.gpu.name[index]] and self.origin[index] != Origin.MEMORY

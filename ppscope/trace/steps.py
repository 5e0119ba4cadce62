"""The steps of a trace, and which step a launch belongs to."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from ppscope.trace.reader import RankTrace
from ppscope.trace.step_names import DECODE_LIKE, PREFILL_LIKE, StepFamily, parse_step

_NESTING = 8


class Step(msgspec.Struct, gc=False):
    """One step span: `start_ns` and `duration_ns` on the file's own clock."""

    name: str
    mode: str | None
    batch_size: int | None
    start_ns: int
    duration_ns: int
    thread: int

    @property
    def end_ns(self) -> int:
        """When it ended, on the file's own clock."""
        return self.start_ns + self.duration_ns

    @property
    def is_decode(self) -> bool:
        """True where SGLang or vLLM would replay a graph."""
        return self.mode in DECODE_LIKE

    @property
    def is_prefill(self) -> bool:
        """True for prefill and mixed steps, which decode rules do not judge."""
        return self.mode in PREFILL_LIKE


def find_steps(trace: RankTrace) -> list[Step]:
    """The steps of a file in time order: of the first family that it has, or none."""
    spans = trace.spans
    found: dict[StepFamily, list[Step]] = {}
    parsed = [parse_step(name) for name in trace.names]
    for index, number in enumerate(spans.name):
        step = parsed[number]
        if step is not None:
            name = trace.names[number]
            made = Step(
                name,
                step.mode,
                step.batch_size,
                spans.start_ns[index],
                max(spans.duration_ns[index], 0),
                spans.thread[index],
            )
            found.setdefault(step.family, []).append(made)
    if not found:
        return []
    steps = found[min(found)]
    # From 0.5.15 on each loop span has a twin with a prefix.
    plain = [step for step in steps if not step.name.startswith("scheduler.")]
    return sorted(plain or steps, key=lambda step: step.start_ns)


class StepFinder:
    """Finds the innermost step of a call, by its thread and time on the CPU (GPU time says nothing: replays may lag)."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps
        self._by_thread: dict[int, list[int]] = {}
        for index, step in enumerate(steps):
            self._by_thread.setdefault(step.thread, []).append(index)
        self._starts = {thread: [steps[index].start_ns for index in held] for thread, held in self._by_thread.items()}
        self._all = list(range(len(steps)))
        self._all_starts = [step.start_ns for step in steps]

    def find(self, thread: int, at_ns: int) -> int | None:
        """The index of the step that encloses the time; a thread without steps of its own belongs to the process's."""
        held = self._by_thread.get(thread, self._all)
        after = bisect_right(self._starts.get(thread, self._all_starts), at_ns)
        # Steps follow one another; a nest of drafts under one step is a few deep.
        for place in range(after - 1, max(after - 1 - _NESTING, -1), -1):
            if at_ns <= self._steps[held[place]].end_ns:
                return held[place]
        return None

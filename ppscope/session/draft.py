"""What the draft model of speculative decoding does in decode passes, by stacks: SGLang's counters are of the target alone.

`EAGLEWorker` and its kin (0.5.6 to 0.5.23) replay the draft's graph straight from `draft`, and call `draft_forward` where it may not;
likewise the extend after a verify. Their extend of a prefill is eager by design and does not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ppscope.session.interned import Frame, Interned
from ppscope.session.ranks import RankState

_EAGER = frozenset({"draft_forward", "_draft_extend_for_decode", "forward_draft_extend_after_decode"})
_FOLDER = "/speculative/"
_TARGET = "managers/tp_worker.py"


class DraftTimes(NamedTuple):
    """Time of the schedulers' main threads in decode passes of the draft model, as shares of the time seen."""

    replayed: float
    eager: float


def draft_times(states: Iterable[RankState], interned: Interned, since_ns: int) -> DraftTimes | None:
    """Over the time since an instant; None where no stack has a speculative worker."""
    names = [style.name for style in interned.table.styles]
    kinds: dict[int, str | None] = {}
    times = {"replay": 0, "eager": 0}
    seen, met = 0, False
    for state in states:
        for start_ns, end_ns, stack in state.main_spans():
            if start_ns < since_ns:
                continue
            if stack not in kinds:
                frames = interned.frames(stack)
                met = met or any(_FOLDER in file for _, file, _ in frames)
                kinds[stack] = of_draft(frames, names[interned.phase(stack)])
            seen += end_ns - start_ns
            kind = kinds[stack]
            if kind is not None:
                times[kind] += end_ns - start_ns
    return DraftTimes(times["replay"] / seen, times["eager"] / seen) if met and seen else None


def of_draft(frames: list[Frame], phase: str) -> str | None:
    """`replay` or `eager` where a stack is in a decode pass of the draft model, None elsewhere."""
    worker = max((place for place, (_, file, _) in enumerate(frames) if _FOLDER in file), default=None)
    if worker is None or any(file.endswith(_TARGET) for _, file, _ in frames[worker:]):
        return None
    if phase == "replay":
        return "replay"
    named = any(function.rpartition(".")[2] in _EAGER and _FOLDER in file for function, file, _ in frames)
    return "eager" if phase == "eager" and named else None

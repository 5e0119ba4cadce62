"""Stack trees: what a thread did over the last seconds, hottest first."""

from __future__ import annotations

from collections.abc import Iterable

from ppscope.session.interned import Interned
from ppscope.session.ranks import RankState, Sampled
from ppscope.views import StackNode, ThreadStacks

_MIN_SHARE = 0.002


class _Growing:
    __slots__ = ("children", "file", "function", "lines", "own", "phases", "total")

    def __init__(self, function: str, file: str) -> None:
        self.function, self.file = function, file
        self.lines: dict[int | None, int] = {}
        self.total = 0
        self.own = 0
        self.phases: dict[int, int] = {}
        self.children: dict[tuple[str, str], _Growing] = {}

    def finish(self, whole: int) -> StackNode:
        children = sorted(self.children.values(), key=lambda node: -node.total)
        return StackNode(
            function=self.function,
            file=self.file,
            line=max(self.lines, key=self.lines.__getitem__) if self.lines else None,
            total=self.total / whole,
            own=self.own / whole,
            phase=max(self.phases, key=self.phases.__getitem__) if self.phases else None,
            children=tuple(child.finish(whole) for child in children if child.total / whole >= _MIN_SHARE),
        )


def _tree(spans: Iterable[Sampled], since_ns: int, until_ns: int | None, interned: Interned) -> tuple[StackNode, int]:
    per_stack: dict[int, int] = {}
    for start, end, stack in spans:
        took = (end if until_ns is None else min(end, until_ns)) - max(start, since_ns)
        if took > 0:
            per_stack[stack] = per_stack.get(stack, 0) + took
    root = _Growing("all", "")
    for stack, took in per_stack.items():
        node, phase = root, interned.phase(stack)
        node.total += took
        for function, file, line in interned.frames(stack):
            node = node.children.setdefault((function, file), _Growing(function, file))
            node.total += took
            node.lines[line] = node.lines.get(line, 0) + took
            node.phases[phase] = node.phases.get(phase, 0) + took
        node.own += took
    return root.finish(max(root.total, 1)), root.total


def thread_stacks(state: RankState, since_ns: int, until_ns: int | None, interned: Interned) -> list[ThreadStacks]:
    """One tree a thread with samples since then, and before `until_ns`; the main thread first, then by time seen outside idle stacks."""
    trees = []
    for tid, spans in state.threads.items():
        root, seen = _tree(spans, since_ns, until_ns, interned)
        if seen:
            name = state.thread_names.get(tid, "")
            trees.append(ThreadStacks(state.rank.key, tid, name, seen / 1e9, root))
    main = state.rank.main_tid or state.rank.pid
    return sorted(trees, key=lambda tree: (tree.tid != main and tree.thread != "MainThread", len(tree.root.children)))

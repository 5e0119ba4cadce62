"""The stacks panel: one rank's threads as trees, hottest first, with the frames that say nothing folded away."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ppscope.views import StackNode, ThreadStacks
from ppscope.widgets.listing import Item, Listing
from ppscope.widgets.text import Line, bar, clean, cut_left, width_of

LEAST_SHARE = 0.005
BAR = 8

WRAPPERS = frozenset({"_wrapped_call_impl", "_call_impl", "wrapper", "decorate_context", "inner", "_fn", "__call__"})
"""Functions that only call another one; they are left out of the tree unless time is spent in them. Copies keep them."""


class StackKey(NamedTuple):
    """A node of a thread's tree by the frames that lead to it; a `leaf` calls nothing that is shown."""

    tid: int
    path: tuple[tuple[str, str, int | None], ...]
    leaf: bool = False

    @property
    def frame(self) -> tuple[str, str, int | None]:
        """(function, file, line) of the node."""
        return self.path[-1] if self.path else ("", "", None)


def stacks_listing(
    threads: Sequence[ThreadStacks], title: str, closed: Collection[StackKey], text: str, width: int
) -> Listing:
    """Trees of all threads. `closed` nodes hide their children; `text` keeps the branches that have it in a function or file."""
    if not threads:
        return Listing(
            (Item((((f"  no stacks of {clean(title)} yet: the first window takes a few seconds", "dim"),),)),)
        )
    items: list[Item] = []
    for thread in threads:
        head: Line = (
            (f" {clean(thread.thread)}", "bold"),
            (f"  tid {thread.tid} · {thread.seconds:.0f} s · {clean(title)}", "dim"),
        )
        items.append(Item((head,), StackKey(thread.tid, ())))
        root, folded = _unfold(thread.root, text)
        if folded:
            items.append(
                Item((((" " * (BAR + 10), ""), (f"⋯ {folded} outer frames", "faint")),), StackKey(thread.tid, ()))
            )
        _walk(items, thread.tid, (), root, 0, closed, text.casefold(), width)
    if text and not any(isinstance(item.key, StackKey) and item.key.path for item in items):
        return Listing((Item((((f"  no stack of {clean(title)} has {clean(text)!r}", "dim"),),)),))
    return Listing(tuple(items))


def _unfold(root: StackNode, text: str) -> tuple[StackNode, int]:
    """The first node below which the tree branches or spends time, and how many frames are above it."""
    folded = 0
    node = root
    while (
        not text and len(node.children) == 1 and node.own < LEAST_SHARE and node.children[0].total > node.total * 0.98
    ):
        below = node.children[0]
        if not below.children:
            break
        node, folded = below, folded + 1
    return node, folded


def _matches(node: StackNode, text: str) -> bool:
    if text in node.function.casefold() or text in node.file.casefold():
        return True
    return any(_matches(child, text) for child in node.children)


def _walk(
    items: list[Item],
    tid: int,
    path: tuple[tuple[str, str, int | None], ...],
    node: StackNode,
    depth: int,
    closed: Collection[StackKey],
    text: str,
    width: int,
) -> None:
    if text and not _matches(node, text):
        return
    here = (*path, (node.function, node.file, node.line))
    children = [child for child in sorted(node.children, key=lambda child: -child.total) if child.total >= LEAST_SHARE]
    if children and node.own < LEAST_SHARE and node.function.rsplit(".", 1)[-1] in WRAPPERS:
        for child in children:
            _walk(items, tid, here, child, depth, closed, text, width)
        return
    key = StackKey(tid, here, leaf=not children)
    is_closed = key in closed
    items.append(Item((_line(node, depth, is_closed, width),), key, stack_text(here, node)))
    if is_closed:
        return
    for child in children:
        _walk(items, tid, here, child, depth + 1, closed, text, width)


def _line(node: StackNode, depth: int, closed: bool, width: int) -> Line:
    role = "" if node.phase is None else f"t{node.phase}"
    place = short_file(node.file) + ("" if node.line is None else f":{node.line}")
    marker = "▸ " if closed else "  " if not node.children else "▾ "
    start: Line = (
        (f" {node.total * 100:5.1f} % ", "" if node.total >= 0.1 else "dim"),
        (bar(node.total, BAR), role or "dim"),
        (" " + "  " * min(depth, 20), ""),
        (marker, "faint"),
        (clean(node.function), "bold" if node.own >= 0.1 else ""),
    )
    room = width - width_of(start) - 4
    own = f"  {node.own * 100:.1f} % own" if node.own >= LEAST_SHARE and node.children else ""
    if room < 8:
        return start
    return (*start, ("  " + cut_left(place, room), "dim"), (own if len(place) + len(own) < room else "", "faint"))


def short_file(file: str) -> str:
    """The last two parts of a path: enough to find the file."""
    parts = file.replace("\\", "/").split("/")
    return "/".join(parts[-2:])


def stack_text(path: Sequence[tuple[str, str, int | None]], node: StackNode | None = None) -> str:
    """A stack as plain text, outermost first."""
    rows = [f"{function} ({file}{'' if line is None else f':{line}'})" for function, file, line in path]
    if node is not None:
        rows.append(f"{node.total * 100:.1f} % of samples, {node.own * 100:.1f} % in this function")
    return "\n".join(clean(row) for row in rows)


def sites(
    threads: Sequence[ThreadStacks], function: str, file: str
) -> list[tuple[tuple[tuple[str, str, int | None], ...], StackNode]]:
    """Every place of a function in the trees of a rank: the path that led there, and its node."""
    found: list[tuple[tuple[tuple[str, str, int | None], ...], StackNode]] = []

    def visit(path: tuple[tuple[str, str, int | None], ...], node: StackNode) -> None:
        if node.function == function and node.file == file:
            found.append((path, node))
            return
        for child in node.children:
            visit((*path, (node.function, node.file, node.line)), child)

    for thread in threads:
        visit((), thread.root)
    return sorted(found, key=lambda place: -place[1].total)

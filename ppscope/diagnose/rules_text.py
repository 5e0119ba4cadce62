"""The text of `ppscope rules`: the answer for decode and prefill first, then the rules behind it; 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from ppscope.diagnose.graph_rules import Answer, Judged
from ppscope.diagnose.graph_world import World
from ppscope.sources.rules_model import Condition, GraphRule, RuleBook, conjunction, render

WIDTH = 80
_SCREEN = 24
_FEW = 4
"""So many rules that are not decided are shown without being asked for."""
Shared = dict[tuple[str, str], frozenset[Condition]]


def report(
    world: World, decode: Answer, prefill: Answer, *, assumed: bool = False, show_all: bool = False
) -> list[str]:
    """The whole text, one screen for the common case; `assumed`: nobody said what the device is."""
    book = world.book
    where = book.path if len(book.path) <= WIDTH - 20 else "…" + book.path[-(WIDTH - 21) :]
    shared = shared_guards(book)
    lines = [f"sglang {book.version or '–'}  {where}"]
    if assumed:
        lines.append("for device=cuda, which nothing said: --set device=… for another")
    for answer in (decode, prefill):
        lines += _answer_lines(answer, shared)
    now = {id(item.rule) for answer in (decode, prefill) for item in answer.fired}
    later = [item for answer in (decode, prefill) for item in _chain(answer) if id(item.rule) not in now]
    lines += ["", *_section("These fire:", [*decode.fired, *prefill.fired], shared)]
    lines += _section("These would fire once the first is gone:", later, shared)
    lines += _open_lines(book, (decode, prefill), shared, None if show_all else _SCREEN - 1 - len(lines))
    unset = "; unset settings have their defaults" if world.resolved is None else ""
    lines.append(_cut(f"{len(book.rules)} rules read, --json lists all{unset}"))
    return lines


def _answer_lines(answer: Answer, shared: Shared) -> Iterator[str]:
    yield from _wrap(f"{answer.phase} graphs: {_verdict(answer, shared)}", 2)
    rest = answer.without
    if rest is not None and answer.fired:
        rule = answer.fired[0].rule
        first = short(rule, shared) if rule.kind == "flag" else "that rule"
        yield from _wrap(f"  without {first}: {_verdict(rest, shared, still=True)}", 4)
    elif answer.state == "off":
        yield from _wrap("  the server says so, and no rule that can be decided explains it", 4)


def _verdict(answer: Answer, shared: Shared, still: bool = False) -> str:
    if answer.fired:
        first = answer.fired[0].rule
        more = f" (and {len(answer.fired) - 1} more)" if len(answer.fired) > 1 else ""
        return f"{'still ' if still else ''}OFF because {short(first, shared)}{more}, {_place(first)}"
    if answer.state == "off":
        return "OFF"
    if answer.undecided:
        count = len(answer.undecided)
        if count == 1:
            return "not decided: a rule may turn them off; ON if it does not"
        return f"not decided: {count} rules may turn them off; ON if none of them does"
    return "ON"


def shared_guards(book: RuleBook) -> Shared:
    """Guards that every rule of a function has: they say little about any one of them."""
    groups: dict[tuple[str, str], list[set[Condition]]] = {}
    for rule in book.rules:
        groups.setdefault((rule.file, rule.function), []).append(set(_parts(rule.tree)))
    return {key: frozenset(set.intersection(*items)) for key, items in groups.items() if len(items) > 3}


def short(rule: GraphRule, shared: Shared) -> str:
    """A rule in a few words: the flag, or the guards that make it special."""
    if rule.kind == "flag":
        names = [node.name for node in _leaves(rule.tree) if node.op == "requested"]
        value = "" if rule.tree.op == "requested" else " disabled"
        if names and names[0].startswith("cuda_graph_config."):
            return "--cuda-graph-config (" + names[0].split(".")[1] + " disabled)"
        return "--" + names[0].replace("_", "-") + value if names else rule.condition
    parts = _parts(rule.tree)
    common = shared.get((rule.file, rule.function), frozenset())
    telling = [part for part in parts if not _is_frame(part) and part not in common]
    text = render(conjunction(list(telling or parts)))
    return text if len(text) <= 100 else text[:99] + "…"


def _parts(tree: Condition) -> tuple[Condition, ...]:
    return tree.args if tree.op == "and" else (tree,)


def _is_frame(part: Condition) -> bool:
    """Guards every rule of a phase shares: nobody chose the backend, and which backend it would be."""
    inner = part.args[0] if part.op == "not" else part
    return inner.op == "locked" or (part.op in ("==", "!=") and inner.args[0].op == "backend") or inner.op == "late"


def _leaves(condition: Condition) -> Iterator[Condition]:
    yield condition
    for part in condition.args:
        yield from _leaves(part)


def _chain(answer: Answer) -> Iterator[Judged]:
    """Rules that fire as one cause after the other is removed."""
    rest = answer.without
    while rest is not None:
        yield from rest.fired
        rest = rest.without


def _section(title: str, items: Sequence[Judged], shared: Shared) -> Iterator[str]:
    """A line or two for each cause; the writes one cause makes for both phases stand together."""
    groups: dict[tuple[str, str, str | None], list[GraphRule]] = {}
    for item in items:
        rules = groups.setdefault((item.rule.file, item.rule.condition, item.rule.message), [])
        if item.rule not in rules:
            rules.append(item.rule)
    if groups:
        yield title
    for rules in groups.values():
        first = rules[0]
        others = "".join(f",{rule.line}" for rule in rules[1:])
        yield _cut(f" ✖ {_place(first)}{others}  {short(first, shared)}")
        if first.message is not None:
            yield _cut(f"     log: {first.message}")


def _open_lines(book: RuleBook, answers: Sequence[Answer], shared: Shared, room: int | None) -> list[str]:
    """What the last word on the phases still hangs on, as fully as `room` lines allow; `None`: all of it."""
    found: dict[int, tuple[Judged, list[str]]] = {}
    for answer in answers:
        last = answer
        while last.without is not None:
            last = last.without
        for item in last.undecided:
            found.setdefault(id(item.rule), (item, []))[1].append(answer.phase)
    if not found:
        return []
    names = dict.fromkeys(name for item, _ in found.values() for name in item.undecided)
    settings = [name for name in names if name in book.settings]
    head = [f"Not decided ({len(found)}):"]
    if settings:
        head += _wrap(" set to decide: " + ", ".join(f"--set {name}=…" for name in settings), 3)
    more = " --all shows each with what would decide it"
    if room is None:
        return head + _each_open(found.values(), shared, 4, hangs=True)
    if len(found) <= _FEW:
        for lines in (
            head + _each_open(found.values(), shared, 1, hangs=True),
            [*head, *_each_open(found.values(), shared, 1, hangs=False), more],
        ):
            if len(lines) <= room:
                return lines
    return [*head, more]


def _each_open(found: Iterable[tuple[Judged, list[str]]], shared: Shared, room: int, *, hangs: bool) -> list[str]:
    lines = []
    for item, phases in found:
        lines += _wrap(f" ? {_place(item.rule)}  {'+'.join(phases)}: {short(item.rule, shared)}", 5, lines=room)
        if hangs:
            # The last name belongs to the innermost guard, the one that tells the rule from its neighbours.
            lines += _wrap(f"     hangs on {', '.join(reversed(item.undecided))}", 7, lines=room)
    return lines


def _place(rule: GraphRule) -> str:
    return f"{rule.file.removeprefix('srt/')}:{rule.line}"


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


def _wrap(text: str, indent: int, lines: int = 4) -> list[str]:
    if lines == 1:
        return [_cut(text)]
    lead = len(text) - len(text.lstrip())
    wrapped = textwrap.wrap(
        text.strip(), WIDTH, initial_indent=" " * lead, subsequent_indent=" " * indent, break_on_hyphens=False
    )
    if len(wrapped) > lines:
        wrapped = [*wrapped[: lines - 1], _cut(wrapped[lines - 1] + " …")]
    return wrapped

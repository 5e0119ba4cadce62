"""The text of `ppscope rules`: the answer for decode and prefill first, then the rules behind it; 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from ppscope.diagnose.graph_rules import Answer, Judged
from ppscope.diagnose.graph_world import World
from ppscope.sources.rules_model import Condition, GraphRule, RuleBook, conjunction, render

WIDTH = 80
_OPEN_SHOWN = 6
Shared = dict[tuple[str, str], frozenset[Condition]]
_MARKS = {"fires": "✖", "unknown": "?"}


def report(world: World, decode: Answer, prefill: Answer) -> list[str]:
    """The whole text, one screen for the common case."""
    book = world.book
    where = book.path if len(book.path) <= WIDTH - 20 else "…" + book.path[-(WIDTH - 21) :]
    shared = shared_guards(book)
    lines = [f"sglang {book.version or '–'}  {where}"]
    for answer in (decode, prefill):
        lines += _answer_lines(answer, shared)
    for answer in (decode, prefill):
        lines += _section(f"{answer.phase}: rules that fire", answer.fired)
        if answer.without is not None:
            already = {id(item.rule) for item in answer.fired}
            later = [item for item in answer.without.fired if id(item.rule) not in already]
            lines += _section(f"{answer.phase}: would fire once the first is gone", later)
    lines += _open_section(decode, prefill)
    judged_off = sum(1 for rule in book.rules if rule.kind in ("flag", "setting", "default"))
    lines += ["", f"{len(book.rules)} rules read ({judged_off} at start-up), --json lists all."]
    if world.resolved is None:
        lines.append("Settings nobody set are taken as this source's defaults; set them with --set.")
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
        return f"ON, unless {'a rule' if count == 1 else f'one of {count} rules'} that settings cannot decide applies"
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


def _section(title: str, items: Sequence[Judged]) -> Iterator[str]:
    if not items:
        return
    yield ""
    yield title
    for item in items:
        yield from _wrap(f"  {_MARKS.get(item.verdict, ' ')} {_place(item.rule)}  {item.rule.function}()", 6)
        if item.rule.kind != "flag":
            yield from _wrap(f"      if {item.rule.condition}", 9, lines=3)
        if item.rule.message is not None:
            yield from _wrap(f"      log: {item.rule.message}", 11, lines=2)


def _open_section(decode: Answer, prefill: Answer) -> Iterator[str]:
    """Rules that cannot be decided once what fires is gone, in few lines: what each hangs on, and where it stands."""
    for answer in (decode, prefill):
        last = answer
        while last.without is not None:
            last = last.without
        if not last.undecided:
            continue
        yield ""
        yield f"{answer.phase}: cannot be decided from settings ({len(last.undecided)})"
        for item in last.undecided[:_OPEN_SHOWN]:
            # The last name belongs to the innermost guard, the one that tells the rule from its neighbours.
            names = ", ".join(reversed(item.undecided))
            yield _cut(f"  ? {_place(item.rule).rsplit('/', 1)[-1]}  {names}")
        if len(last.undecided) > _OPEN_SHOWN:
            yield f"  … and {len(last.undecided) - _OPEN_SHOWN} more"


def _place(rule: GraphRule) -> str:
    return f"{rule.file.removeprefix('srt/')}:{rule.line}"


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


def _wrap(text: str, indent: int, lines: int = 4) -> list[str]:
    lead = len(text) - len(text.lstrip())
    wrapped = textwrap.wrap(
        text.strip(), WIDTH, initial_indent=" " * lead, subsequent_indent=" " * indent, break_on_hyphens=False
    )
    if len(wrapped) > lines:
        wrapped = [*wrapped[: lines - 1], _cut(wrapped[lines - 1] + " …")]
    return wrapped

"""Values of the graph rules found in an installed SGLang: immutable, and the same on the wire and off it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

Scalar = bool | int | float | str | None


class Condition(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node of a guard, as read from source and not yet evaluated.

    `op` is one of: true, false; and, or, not; ==, !=, <, <=, >, >=, in, not in, is, is not; if (test, then, otherwise);
    lower, tuple; literal (`value`); setting; requested (what the command line asked, before any rule); backend and off
    (`name` is a phase: the graph backend it would use, and whether a rule turned it off); locked (`name` is phase.key);
    platform (`name` is cuda, hip, ...); late (false: the write comes after its flag was read, so it has no effect); fact
    (source text `name` that settings alone cannot decide).
    """

    op: str
    args: tuple[Condition, ...] = ()
    name: str = ""
    value: Scalar = None


TRUE = Condition("true")
FALSE = Condition("false")

_NEGATED = {
    "==": "!=",
    "!=": "==",
    "<": ">=",
    ">=": "<",
    ">": "<=",
    "<=": ">",
    "in": "not in",
    "not in": "in",
    "is": "is not",
    "is not": "is",
}
_INFIX = frozenset(_NEGATED)


def nodes(condition: Condition) -> Iterator[Condition]:
    """A condition and every part of it."""
    yield condition
    for part in condition.args:
        yield from nodes(part)


def travels(value: object) -> bool:
    """Whether msgpack can hold it: integers of 64 bits and text that is Unicode; anything else is no setting."""
    if isinstance(value, str):
        return not any("\ud800" <= char <= "\udfff" for char in value)
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def literal(value: Scalar) -> Condition:
    """A constant of the source."""
    return Condition("literal", value=value)


def fact(name: str) -> Condition:
    """Source text that no setting decides."""
    return Condition("fact", name=name)


def negate(condition: Condition) -> Condition:
    """The opposite of a guard, with the negation moved into comparisons."""
    if condition.op == "true":
        return FALSE
    if condition.op == "false":
        return TRUE
    if condition.op == "not":
        return condition.args[0]
    # Sets have an order that is only partial: `not a <= b` is `a > b` for numbers alone.
    ordered = condition.op in ("<", "<=", ">", ">=")
    if condition.op in _NEGATED and not (ordered and all(part.op in ("fact", "tuple") for part in condition.args)):
        return Condition(_NEGATED[condition.op], condition.args)
    return Condition("not", (condition,))


def _join(op: str, parts: list[Condition], neutral: Condition, absorbing: Condition) -> Condition:
    kept: list[Condition] = []
    for part in parts:
        for item in part.args if part.op == op else (part,):
            if item.op == absorbing.op:
                return absorbing
            if item.op != neutral.op and item not in kept:
                kept.append(item)
    if not kept:
        return neutral
    return kept[0] if len(kept) == 1 else Condition(op, tuple(kept))


def conjunction(parts: list[Condition]) -> Condition:
    """All of the guards hold; what another guard already decides is left out."""
    joined = _join("and", parts, TRUE, FALSE)
    if joined.op != "and":
        return joined
    kept: list[Condition] = []
    for part in joined.args:
        others = [item for item in joined.args if item is not part]
        left = part
        if part.op == "or":
            if any(item in others for item in part.args):
                continue
            left = disjunction([item for item in part.args if negate(item) not in others])
            if left.op == "false":
                return FALSE
        if not any(_implies(item, left) for item in others):
            kept.append(left)
    return _join("and", kept, TRUE, FALSE)


def _implies(known: Condition, part: Condition) -> bool:
    """`x == 'a'` makes `x != 'b'` and `x is not None` needless."""
    if known.op != "==" or part.op not in ("!=", "is not") or known.args[0] != part.args[0]:
        return False
    left, right = known.args[1], part.args[1]
    return left.op == right.op == "literal" and left.value is not None and left.value != right.value


def disjunction(parts: list[Condition]) -> Condition:
    """At least one of the guards holds."""
    return _join("or", parts, FALSE, TRUE)


def render(condition: Condition) -> str:
    """The guard as one line of Python-like text."""
    op, args = condition.op, condition.args
    if op in ("true", "false"):
        return op.title()
    if op == "literal":
        return repr(condition.value)
    if op in ("and", "or"):
        return f" {op} ".join(f"({render(part)})" if part.op in ("and", "or", "if") else render(part) for part in args)
    if op == "not":
        return f"not {_nested(args[0])}"
    if op in _INFIX:
        return f"{_nested(args[0])} {op} {_nested(args[1])}"
    if op == "if":
        return f"{_nested(args[1])} if {_nested(args[0])} else {_nested(args[2])}"
    if op == "lower":
        return f"{_nested(args[0])}.lower()"
    if op == "tuple":
        return "(" + ", ".join(render(part) for part in args) + ("," if len(args) == 1 else "") + ")"
    if op == "backend":
        return f"cuda_graph_config.{condition.name}.backend"
    if op == "off":
        return f"{condition.name} graphs are off"
    if op == "locked":
        return f"{condition.name} was set by the user"
    if op == "platform":
        return f"is_{condition.name}()"
    return condition.name


def _nested(condition: Condition) -> str:
    text = render(condition)
    return f"({text})" if condition.op in ("and", "or", "if", "off", "locked") or condition.op in _INFIX else text


def open_names(condition: Condition) -> tuple[str, ...]:
    """Names in a guard that settings alone cannot decide: facts and platform helpers, in order, each once."""
    found: dict[str, None] = {}
    stack = [condition]
    while stack:
        node = stack.pop()
        if node.op in ("fact", "platform"):
            found[render(node)] = None
        stack.extend(reversed(node.args))
    return tuple(found)


class GraphRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """One place of the installed source that turns a CUDA graph off, with its guard.

    `phase` is decode, prefill or both; `file` is relative to the sglang package; `line` is the write (1-based) and
    `guard_line` the guard that decides it, or the entry of a rule list. `kind` is flag (the user asked), setting (start-up
    resolution), default (the backend chosen when nobody asks) or capture (given up while capturing). `message` is None
    when nothing is logged. `order` is the place of its handler in the start-up sequence (the line that starts it there); 0
    when the sequence does not name it. `source_lines` starts at line `source_start`.
    """

    phase: str
    file: str
    line: int
    function: str
    condition: str
    tree: Condition
    kind: str = "setting"
    message: str | None = None
    guard_line: int = 0
    source_start: int = 0
    source_lines: tuple[str, ...] = ()
    undecidable: tuple[str, ...] = ()
    order: int = 0


class RuleBook(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything the reader learned from one installed SGLang.

    `settings` are the names of all settings, `defaults` those of their defaults that are literals; `resolved_late` names
    settings whose default (None, "auto") is replaced at start-up, so that the default decides nothing; `backends` maps a
    phase to the backend it uses when nobody asks; `dialect` is flags (`disable_cuda_graph`, to 0.5.11) or config
    (`cuda_graph_config`, from 0.5.15). `aliases` are flags without a setting of their own, with the setting that each
    stands for and its value there. `unreadable` pairs a file with the reason it could not be parsed. `version` is None when no metadata
    lies beside the package.
    """

    version: str | None
    path: str
    dialect: str
    rules: tuple[GraphRule, ...]
    settings: frozenset[str] = frozenset()
    defaults: dict[str, Scalar] = {}
    resolved_late: frozenset[str] = frozenset()
    backends: dict[str, Condition] = {}
    aliases: dict[str, tuple[str, Scalar]] = {}
    files_parsed: int = 0
    read_s: float = 0.0
    unreadable: tuple[tuple[str, str], ...] = ()

"""Judges the graph rules of an installed SGLang against a server's settings: fires, does not, or cannot be known.

Three values throughout. A rule is judged as if its phase were still on, so that every rule which would turn it off shows,
not only the one that came first.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ppscope.diagnose.graph_precedence import kept_on, phases_of
from ppscope.diagnose.graph_world import Open, World, find, merge
from ppscope.sources.rules_expr import PHASES
from ppscope.sources.rules_model import Condition, GraphRule, nodes, render

_KINDS = {"flag": 0, "setting": 1, "default": 2, "capture": 3}


class Judged(msgspec.Struct, frozen=True):
    """A rule and its verdict: fires, does_not or unknown; `undecided` names what would decide an unknown one."""

    rule: GraphRule
    verdict: str
    undecided: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True):
    """Whether a phase's graphs come on.

    `state` is off (a rule fires, or the server says so), on (none does), or open (some cannot be decided).

    `fired` are the rules that fire, first cause first. `without` is the same question once `fired[0]` is removed; None when
    nothing fires. `undecided` are the rules that could still turn the phase off.
    """

    phase: str
    state: str
    fired: tuple[Judged, ...]
    undecided: tuple[Judged, ...]
    without: Answer | None = None


def judge(world: World) -> list[Judged]:
    """Every rule with its verdict, in the order of the book.

    Where the server itself says that a phase is on, a start-up rule that could not be decided did not fire; one that seems
    to fire is unknown, because the two contradict each other.
    """
    judged = [_judge(rule, Evaluator(world, {})) for rule in world.book.rules]
    # A decode rule may ask whether prefill is off at that moment: that takes the verdicts of the rules before it.
    for index, item in enumerate(judged):
        asked = {node.name for node in nodes(item.rule.tree) if node.op == "off"}
        if asked:
            off = {phase: _off(judged, phase, world, item.rule) for phase in asked}
            judged[index] = _judge(item.rule, Evaluator(world, off))
    return judged


def answers(world: World) -> tuple[Answer, Answer]:
    """The answer for decode and for prefill."""
    judged = judge(world)
    decode, prefill = (_answer(phase, judged, world) for phase in PHASES)
    return decode, prefill


def _answer(phase: str, judged: list[Judged], world: World, top: bool = True) -> Answer:
    fired = causes(judged, phase)
    undecided = tuple(item for item in judged if _concerns(item.rule, phase) and item.verdict == "unknown")
    if not fired:
        told_off = world.resolved_off(phase) is True and not world.asked and not world.dropped
        return Answer(phase, "off" if told_off and top else "open" if undecided else "on", (), undecided)
    first = fired[0]
    names = frozenset(_requests(first.rule.tree)) if first.rule.kind == "flag" else frozenset()
    if names:
        # Dropping a flag also drops what it locked, so the other rules are judged again.
        rest = _answer(phase, judge(world.without(names)), world.without(names), top=False)
    else:
        later = [item for item in judged if item.rule is not first.rule]
        rest = _answer(phase, later, world, top=False)
    return Answer(phase, "off", fired, undecided, rest)


def causes(judged: list[Judged], phase: str) -> tuple[Judged, ...]:
    """Rules that turn a phase off, first cause first: flags, start-up rules in their order, defaults, then capture."""
    found = [item for item in judged if item.verdict == "fires" and _concerns(item.rule, phase)]
    return tuple(sorted(found, key=lambda item: (_KINDS.get(item.rule.kind, 1), item.rule.order)))


def follows(rule: GraphRule) -> bool:
    """Whether a capture rule only carries out what another rule decided ("prefill graphs are off: return")."""
    return rule.kind == "capture" and any(
        node.op == "off" and node.name in phases_of(rule) for node in nodes(rule.tree)
    )


def _concerns(rule: GraphRule, phase: str) -> bool:
    return rule.phase in (phase, "both") and not follows(rule)


def _off(judged: list[Judged], phase: str, world: World, asking: GraphRule) -> object:
    """Whether a phase is off when a rule asks: turned off by a flag, or by a start-up rule that came before."""
    final = asking.kind == "capture"  # captures run after all of start-up
    told = None if world.asked or world.dropped else world.resolved_off(phase)
    if told is False or (told is True and final):
        return told
    maybe: list[Open] = []
    for item in judged:
        rule = item.rule
        if rule is asking or rule.kind == "capture" or not _concerns(rule, phase) or item.verdict == "does_not":
            continue
        before = final or rule.kind in ("flag", "default") or _before(rule, asking)
        if before and item.verdict == "fires":
            return True
        if before is not False:
            maybe.append(Open(item.undecided or (f"whether {rule.function}() comes before {asking.function}()",)))
    return merge(*maybe) if maybe else False


def _before(rule: GraphRule, other: GraphRule) -> bool | None:
    """Whether start-up comes to one rule before the other; None when the source's sequence does not name both."""
    if rule.function == other.function and rule.file == other.file:
        return rule.line < other.line
    return rule.order < other.order if rule.order and other.order and rule.order != other.order else None


def _judge(rule: GraphRule, evaluator: Evaluator) -> Judged:
    world = evaluator.world
    kept = kept_on(rule, world)
    left = [phase for phase in phases_of(rule) if phase not in kept]
    if not left:
        return Judged(rule, "does_not")
    result = evaluator.truth(rule.tree)
    told_on = False
    if rule.kind != "capture" and not world.asked and not world.dropped:
        told_off = [phase for phase in left if world.resolved_off(phase) is not False]
        told_on = not told_off
        left = told_off or left
    if len(left) < len(phases_of(rule)):
        rule = msgspec.structs.replace(rule, phase=left[0])
    if isinstance(result, Open):
        return Judged(rule, "does_not") if told_on else Judged(rule, "unknown", result.names)
    if result and told_on:
        return Judged(rule, "unknown", ("the server says that these graphs are on",))
    return Judged(rule, "fires" if result else "does_not")


class Evaluator:
    """Evaluates conditions in a world. `off` holds, per phase, whether other rules turned it off (empty: not known yet)."""

    def __init__(self, world: World, off: dict[str, object]) -> None:
        self.world = world
        self.off = off

    def truth(self, node: Condition) -> bool | Open:
        """Whether a guard holds."""
        if node.op in ("and", "or"):
            stop = node.op == "or"
            parts = [self.truth(part) for part in node.args]
            if stop in parts:
                return stop
            still_open = [part for part in parts if isinstance(part, Open)]
            return merge(*still_open) if still_open else not stop
        value = self.value(node)
        return value if isinstance(value, Open) else bool(value)

    def value(self, node: Condition) -> object:
        """The value of any node; Open where it cannot be known."""
        op, world = node.op, self.world
        if op in ("true", "false"):
            return op == "true"
        if op == "late":
            return False
        if op == "literal":
            return node.value
        if op == "and":
            return self.truth(node)
        if op == "or":
            return self._first(node)
        if op == "not":
            held = self.truth(node.args[0])
            return held if isinstance(held, Open) else not held
        if op == "if":
            return self._choice(node)
        if op == "lower":
            inner = self.value(node.args[0])
            return (
                inner.lower() if isinstance(inner, str) else inner if isinstance(inner, Open) else Open((render(node),))
            )
        if op == "setting":
            return world.setting(node.name)
        if op == "requested":
            return world.request(node.name)
        if op == "platform":
            return world.platform(node.name)
        if op == "backend":
            return self._backend(node.name)
        if op == "off":
            return self.off.get(node.name, Open((render(node),)))
        if op == "locked":
            return self._locked(node.name)
        if op == "fact":
            return world.fact(node.name)
        if op in ("in", "not in") or len(node.args) == 2:
            return self._compare(node)
        return Open((render(node),))

    def _first(self, node: Condition) -> object:
        for part in node.args:
            value = self.value(part)
            if isinstance(value, Open) or value:
                return value
        return value if node.args else False

    def _choice(self, node: Condition) -> object:
        held = self.truth(node.args[0])
        if not isinstance(held, Open):
            return self.value(node.args[1] if held else node.args[2])
        then, otherwise = self.value(node.args[1]), self.value(node.args[2])
        return then if _same(then, otherwise) else merge(held, then, otherwise)

    def _compare(self, node: Condition) -> object:
        op = node.op
        left = self.value(node.args[0])
        if op in ("in", "not in"):
            return self._member(left, node.args[1], op == "in")
        right = self.value(node.args[1])
        if isinstance(left, Open) or isinstance(right, Open):
            return merge(left, right)
        if op in ("==", "is"):
            return _same(left, right)
        if op in ("!=", "is not"):
            return not _same(left, right)
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[op]
        return Open((render(node),))

    def _member(self, left: object, right: Condition, wanted: bool) -> object:
        if right.op == "tuple":
            members = [self.value(part) for part in right.args]
        else:
            value = self.value(right)
            if not isinstance(value, (list, tuple, set, frozenset)):
                return merge(left, value) if isinstance(value, Open) else Open((render(right),))
            members = list(value)
        if isinstance(left, Open):
            return left
        if any(_same(left, item) for item in members if not isinstance(item, Open)):
            return wanted
        still_open = [item for item in members if isinstance(item, Open)]
        return merge(*still_open) if still_open else not wanted

    def _backend(self, phase: str) -> object:
        """The backend a phase would use if no rule turned it off: asked for, as resolved, or the source's default."""
        asked = find(self.world.asked, f"cuda_graph_config.{phase}.backend")
        for value in (asked, self.world.request(f"cuda_graph_backend_{phase}")):
            if isinstance(value, str) and value != "disabled":
                return value
        told = find(self.world.resolved or {}, f"cuda_graph_config.{phase}.backend")
        if isinstance(told, str) and told != "disabled":
            return told
        default = self.world.book.backends.get(phase)
        return self.value(default) if default is not None else Open((f"cuda_graph_config.{phase}.backend",))

    def _locked(self, name: str) -> object:
        """Whether the user chose a key of a phase; automatic rules then leave it alone."""
        phase, _, key = name.partition(".")
        wanted = [f"cuda_graph_config.{phase}.{key}", f"cuda_graph_{key}_{phase}"]
        if key == "backend":
            wanted += [f"disable_{phase}_cuda_graph", "disable_cuda_graph"]
        values = [self.world.request(item) for item in wanted]
        if any(not isinstance(value, Open) and value is not None and value is not False for value in values):
            return True
        still_open = [value for value in values if isinstance(value, Open)]
        return merge(*still_open) if still_open else False


def _same(left: object, right: object) -> bool:
    """Equality that keeps True apart from 1."""
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def _requests(condition: Condition) -> Iterator[str]:
    return (node.name for node in nodes(condition) if node.op == "requested")

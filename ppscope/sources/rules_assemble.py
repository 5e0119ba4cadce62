"""Puts rules together: the writes of each function, the guards of its callers, and the flags that need no rule to work."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ppscope.sources.rules_callers import Callers, Function, functions_of, name_of, scope_for
from ppscope.sources.rules_defaults import Declared
from ppscope.sources.rules_logs import message_of
from ppscope.sources.rules_model import (
    FALSE,
    TRUE,
    Condition,
    GraphRule,
    conjunction,
    disjunction,
    negate,
    nodes,
    open_names,
    render,
)
from ppscope.sources.rules_scope import FileFacts
from ppscope.sources.rules_walk import Event, Walker
from ppscope.sources.rules_writes import OFF_FIELDS, Write, phase_of_field, restored_fields, writes_of

_CANDIDATE = re.compile(
    r"(disable|enable)_\w*cuda_graph|DISABLED|['\"]disabled['\"]|with_phase|cuda_graph_backend_|cuda_graph_config\b"
)
_WINDOW_BEFORE, _WINDOW_AFTER, _WINDOW_MAX = 12, 4, 120


@dataclass(frozen=True)
class _Site:
    write: Write
    event: Event
    function: Function


def assemble(
    trees: dict[str, ast.Module], facts: dict[str, FileFacts], declared: Declared
) -> tuple[list[GraphRule], list[tuple[str, str]]]:
    """All rules in file and line order, and the files that could not be walked."""
    functions: list[Function] = []
    failed: list[tuple[str, str]] = []
    sites: list[_Site] = []
    for file, tree in trees.items():
        try:
            own = list(functions_of(tree, file))
            for function in own:
                sites += _sites(function, facts[file])
            functions += own
        except RecursionError:
            failed.append((file, "nested too deeply"))
    callers = Callers(functions, facts)
    orders = callers.orders([site.function for site in sites if site.write.kind != "capture"])
    rules: list[GraphRule] = []
    for site in sites:
        try:
            rules.append(_rule(site, callers, facts[site.function.file], orders))
        except RecursionError:
            failed.append((site.function.file, f"line {site.write.line}: nested too deeply"))
    rules += _flags(trees, facts, declared, rules)
    return sorted(_merged(rules), key=lambda rule: (rule.file, rule.line, rule.guard_line, rule.phase)), failed


def _sites(function: Function, facts: FileFacts) -> list[_Site]:
    node = function.node
    body = facts.lines[node.lineno - 1 : node.end_lineno]
    if "graph" not in node.name and not any(_CANDIDATE.search(line) for line in body):
        return []
    found: list[_Site] = []

    def visit(event: Event) -> None:
        found.extend(_Site(write, event, function) for write in writes_of(event, node))

    Walker(visit).block(node.body, (), scope_for(function, facts))
    restored = restored_fields(node) if found else frozenset()
    written = {id(site.event.blocks[-1][0]) for site in found if site.write.kind != "capture"}
    return [
        site
        for site in found
        if not any(name in _line(facts, site.write.line) for name in restored)
        # A `return` beside a write only ends the rule that wrote.
        and not (site.write.kind == "capture" and id(site.event.blocks[-1][0]) in written)
    ]


def _line(facts: FileFacts, line: int) -> str:
    return facts.lines[line - 1] if 0 < line <= len(facts.lines) else ""


def _rule(site: _Site, callers: Callers, facts: FileFacts, orders: dict[str, int]) -> GraphRule:
    write, event = site.write, site.event
    kind = write.kind
    # Capture code gives up at the first reason; the others are rules of their own, so "none of them" is no guard.
    guards = [guard.condition for guard in event.guards if not (kind == "capture" and guard.early)]
    if kind == "json":
        # Whatever the loops over the JSON do, the write happens when the JSON says so.
        guards, kind = [], "flag"
    entry = TRUE if kind in ("capture", "flag") else callers.entry(site.function)
    heard = callers.heard(site.function) if write.phase == "both" else TRUE
    unasked = [negate(Condition("locked", name=f"{write.phase}.backend"))] if kind == "default" else []
    tree = conjunction([entry, *unasked, *guards, write.extra, heard])
    if kind != "capture":
        tree = without_own_state(tree, write.phase)
    if kind == "setting" and tree.op == "requested":
        kind = "flag"
    relevant = [guard.line for guard in event.guards if without_own_state(guard.condition, write.phase).op != "true"]
    guard_line = relevant[-1] if relevant else write.line
    start, lines = _window(facts, min(guard_line, write.line), max(guard_line, write.line), write.line)
    return GraphRule(
        phase=write.phase,
        file=site.function.file,
        line=write.line,
        function=site.function.node.name,
        condition=render(tree),
        tree=tree,
        kind=kind,
        message=message_of(event),
        guard_line=guard_line,
        source_start=start,
        source_lines=lines,
        undecidable=open_names(tree),
        order=0 if kind == "capture" else orders.get(site.function.node.name, 0),
    )


def _window(facts: FileFacts, first: int, last: int, write: int) -> tuple[int, tuple[str, ...]]:
    """Source around a rule: from its guard to its write when they are near, else around the write; never past 120 lines."""
    if last - first + _WINDOW_BEFORE + _WINDOW_AFTER > _WINDOW_MAX:
        first = last = write
    start = max(1, min(first - 2, write - _WINDOW_BEFORE))
    end = min(len(facts.lines), last + _WINDOW_AFTER)
    return start, tuple(facts.lines[start - 1 : end])


def without_own_state(condition: Condition, phase: str) -> Condition:
    """Drop "not already off" of the rule's own phase: it says when the write is needed, not why it happens."""
    own = ("decode", "prefill") if phase == "both" else (phase,)
    if condition.op == "not" and condition.args[0].op == "off":
        return TRUE if condition.args[0].name in own else condition
    if condition.op == "off":
        return FALSE if condition.name in own else condition
    if condition.op in ("and", "or"):
        parts = [without_own_state(part, phase) for part in condition.args]
        return conjunction(parts) if condition.op == "and" else disjunction(parts)
    if condition.op == "not":
        inner = condition.args[0]
        if inner.op in ("and", "or"):
            flipped = [without_own_state(negate(part), phase) for part in inner.args]
            return disjunction(flipped) if inner.op == "and" else conjunction(flipped)
    return condition


def _flags(
    trees: dict[str, ast.Module], facts: dict[str, FileFacts], declared: Declared, rules: list[GraphRule]
) -> Iterator[GraphRule]:
    """Disabling flags that work without a rule, because the setting itself is the switch (to 0.5.11)."""
    acted_on = {node.name for rule in rules for node in nodes(rule.tree) if node.op == "requested"}
    for name in sorted(OFF_FIELDS & declared.names - acted_on):
        file, line = _add_argument(trees, "--" + name.replace("_", "-")) or declared.lines[name]
        tree = Condition("requested", name=name)
        phase = phase_of_field(name, facts[file].dialect)
        start, lines = _window(facts[file], line, line, line)
        yield GraphRule(phase, file, line, "add_cli_args", name, tree, "flag", None, line, start, lines)


def _add_argument(trees: dict[str, ast.Module], option: str) -> tuple[str, int] | None:
    tree = trees.get("srt/server_args.py")
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and name_of(node.func) == "add_argument":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and argument.value == option:
                    return "srt/server_args.py", argument.lineno
    return None


def _merged(rules: list[GraphRule]) -> list[GraphRule]:
    """The same write found for both phases (a loop over the phases) becomes one rule; exact repeats go."""
    found: dict[tuple[str, int, int, str, str], GraphRule] = {}
    for rule in rules:
        key = (rule.file, rule.line, rule.guard_line, rule.condition, rule.kind)
        other = found.get(key)
        if other is None and (twin := _loop_twin(rule, list(found.values()))) is not None:
            key = (twin.file, twin.line, twin.guard_line, twin.condition, twin.kind)
            other = twin
        if other is None:
            found[key] = rule
        elif other.phase != rule.phase:
            found[key] = _as_both(other)
    return list(found.values())


def _loop_twin(rule: GraphRule, found: list[GraphRule]) -> GraphRule | None:
    for other in found:
        same = (other.file, other.line, other.condition, other.kind) == (
            rule.file,
            rule.line,
            rule.condition,
            rule.kind,
        )
        if same and other.phase != rule.phase:
            return other
    return None


def _as_both(rule: GraphRule) -> GraphRule:
    values = {name: getattr(rule, name) for name in rule.__struct_fields__}
    return GraphRule(**{**values, "phase": "both"})

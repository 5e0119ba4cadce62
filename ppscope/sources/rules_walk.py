"""Walks the statements of a function with the guards that lead to each: enclosing branches, and earlier ways out."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ppscope.sources.rules_algebra import comparison, truth
from ppscope.sources.rules_expr import Converter, bind_entry, entries_of, source_text
from ppscope.sources.rules_model import FALSE, TRUE, Condition, conjunction, disjunction, fact, literal, negate
from ppscope.sources.rules_scope import Scope, branches


class Guard(NamedTuple):
    """A condition that holds at a statement, and its line; `early` when it is an earlier way out, negated."""

    condition: Condition
    line: int
    early: bool = False


Guards = tuple[Guard, ...]
"""What holds at a statement, outermost first."""


@dataclass(frozen=True)
class Event:
    """A statement, its guards, the scope it sees, and the blocks around it (innermost last) with its place in each."""

    statement: ast.stmt
    guards: Guards
    scope: Scope
    blocks: tuple[tuple[list[ast.stmt], int], ...]
    in_handler: bool = False


class Walker:
    """One pass over a function; `visit` is called for every statement in order. A loop over a literal list is unrolled."""

    def __init__(self, visit: Callable[[Event], None]) -> None:
        self.visit = visit
        self.budget = 20_000
        """Statements visited at most: a hostile file unrolls no further."""

    def block(
        self,
        body: list[ast.stmt],
        guards: Guards,
        scope: Scope,
        blocks: tuple[tuple[list[ast.stmt], int], ...] = (),
        in_handler: bool = False,
    ) -> None:
        """Visit a block; what follows an early return carries that return's negated guard."""
        for index, statement in enumerate(body):
            self.budget -= 1
            if self.budget < 0:
                return
            here = (*blocks, (body, index))
            self.visit(Event(statement, guards, scope, here, in_handler))
            self._inside(statement, guards, scope, here, in_handler)
            left = leaves(statement, scope, in_loop=True)
            if left.op == "true":
                return
            if left.op != "false":
                guards = (*guards, Guard(negate(left), statement.lineno, True))

    def _inside(
        self,
        statement: ast.stmt,
        guards: Guards,
        scope: Scope,
        here: tuple[tuple[list[ast.stmt], int], ...],
        in_handler: bool,
    ) -> None:
        line = statement.lineno
        if isinstance(statement, ast.If):
            test = truth(Converter(scope).convert(statement.test))
            at = _test_line(statement.test, scope)
            self.block(statement.body, _with(guards, test, at), scope, here, in_handler)
            # A server that runs did not raise, so the other branch of a check needs no guard.
            other = guards if always_raises(statement.body) else _with(guards, negate(test), at)
            self.block(statement.orelse, other, scope, here, in_handler)
        elif isinstance(statement, (ast.For, ast.AsyncFor)):
            for condition, at, inner in unrolled(statement, scope):
                self.block(statement.body, _with(guards, condition, at), inner, here, in_handler)
            self.block(statement.orelse, guards, scope, here, in_handler)
        elif isinstance(statement, ast.Match):
            for case, condition in cases(statement, scope):
                self.block(case.body, _with(guards, condition, case.pattern.lineno), scope, here, in_handler)
        elif isinstance(handlers := getattr(statement, "handlers", None), list):
            for block, _tests in branches(statement):
                handler = next((item for item in handlers if item.body is block), None)
                if handler is None:
                    self.block(block, guards, scope, here, in_handler)
                else:
                    raised = fact(_handler_text(statement, handler))
                    self.block(block, _with(guards, raised, handler.lineno), scope, here, True)
        else:
            for block, tests in branches(statement):
                inner_guards = guards
                for test_node, branch in tests:
                    if test_node is not None:
                        held = truth(Converter(scope).convert(test_node))
                        inner_guards = _with(inner_guards, held if branch else negate(held), line)
                self.block(block, inner_guards, scope, here, in_handler)


def _test_line(test: ast.expr, scope: Scope) -> int:
    """The line of a test; that of the rule-list entry when the test is the entry's predicate."""
    called = test.func if isinstance(test, ast.Call) else test
    bound = scope.bound.get(called.id) if isinstance(called, ast.Name) else None
    return bound.lineno if bound is not None else test.lineno


def _with(guards: Guards, condition: Condition, line: int) -> Guards:
    return guards if condition.op == "true" else (*guards, Guard(condition, line))


def unrolled(loop: ast.For | ast.AsyncFor, scope: Scope) -> list[tuple[Condition, int, Scope]]:
    """One turn per element of a literal list, with its names bound; a single turn under a fact for any other loop."""
    converter = Converter(scope)
    entries = entries_of(loop.iter, converter)
    unknown = fact(f"for {source_text(loop.target)} in {source_text(loop.iter)}")
    if entries is None:
        return [(unknown, loop.lineno, scope)]
    if not entries:
        return [(FALSE, loop.lineno, scope)]
    turns: list[tuple[Condition, int, Scope]] = []
    for entry in entries[:200]:
        names = bind_entry(loop.target, entry)
        turns.append((unknown, loop.lineno, scope) if names is None else (TRUE, entry.lineno, scope.with_bound(names)))
    return turns


def cases(statement: ast.Match, scope: Scope) -> list[tuple[ast.match_case, Condition]]:
    """Each case of a match with its condition; patterns other than constants stay facts."""
    subject = Converter(scope).convert(statement.subject)
    found: list[tuple[ast.match_case, Condition]] = []
    before: list[Condition] = []
    for case in statement.cases:
        own = _pattern(case.pattern, subject, scope)
        if case.guard is not None:
            own = conjunction([own, truth(Converter(scope).convert(case.guard))])
        found.append((case, conjunction([*before, own])))
        before.append(negate(own))
    return found


def _pattern(pattern: ast.pattern, subject: Condition, scope: Scope) -> Condition:
    if isinstance(pattern, ast.MatchValue):
        return comparison("==", subject, Converter(scope).convert(pattern.value))
    if isinstance(pattern, ast.MatchSingleton):
        return comparison("is", subject, literal(pattern.value))
    if isinstance(pattern, ast.MatchOr):
        return disjunction([_pattern(item, subject, scope) for item in pattern.patterns])
    if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
        return TRUE
    return fact(f"case {source_text(pattern)}")


def leaves(statement: ast.stmt, scope: Scope, in_loop: bool) -> Condition:
    """When a statement ends the block for good: by `return`, and inside a loop by `continue` or `break`. Raising does not count."""
    if isinstance(statement, ast.Return):
        return TRUE
    if isinstance(statement, (ast.Continue, ast.Break)):
        return TRUE if in_loop else FALSE
    if not _may_leave(statement):
        return FALSE
    if isinstance(statement, ast.If):
        then, otherwise = (_block_leaves(block, scope, in_loop) for block in (statement.body, statement.orelse))
        if then == otherwise:
            return then
        test = truth(Converter(scope).convert(statement.test))
        return disjunction([conjunction([test, then]), conjunction([negate(test), otherwise])])
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        if not _returns(statement):
            return FALSE
        turns = unrolled(statement, scope)
        return disjunction(
            [conjunction([held, _block_leaves(statement.body, inner, False)]) for held, _at, inner in turns]
        )
    if isinstance(statement, (ast.While, ast.Match)) or hasattr(statement, "handlers"):
        return fact(f"returned at line {statement.lineno}") if _returns(statement) else FALSE
    return disjunction([_block_leaves(block, scope, in_loop) for block, _tests in branches(statement)])


def _block_leaves(body: list[ast.stmt], scope: Scope, in_loop: bool) -> Condition:
    return disjunction([leaves(item, scope, in_loop) for item in body])


def _may_leave(statement: ast.stmt) -> bool:
    return any(isinstance(node, (ast.Return, ast.Continue, ast.Break)) for node in _own_nodes(statement))


def _returns(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Return) for node in _own_nodes(statement))


def _own_nodes(statement: ast.stmt) -> list[ast.stmt]:
    """Statements inside a statement, functions and classes not entered."""
    found: list[ast.stmt] = []
    stack = [statement]
    while stack:
        node = stack.pop()
        found.append(node)
        stack += [item for block, _tests in branches(node) for item in block]
    return found


def always_raises(body: list[ast.stmt]) -> bool:
    """The block ends by raising, whatever its inner branches do."""
    return bool(body) and isinstance(body[-1], ast.Raise)


def _handler_text(statement: ast.stmt, handler: ast.ExceptHandler) -> str:
    first = getattr(statement, "body", [None])[0]
    tried = source_text(first) if isinstance(first, ast.AST) else "the block"
    return f"{tried} raises {source_text(handler.type) if handler.type is not None else 'anything'}"

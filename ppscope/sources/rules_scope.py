"""Names inside one function of the source: what a local was assigned, under which guards, and what a loop bound it to."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Test = tuple[ast.expr | None, bool]
"""An enclosing `if` and the branch taken; None stands for something that is not an expression (a loop, a handler)."""


@dataclass(frozen=True)
class Assignment:
    """One binding of a local. `value` is None where it cannot be followed; `index` picks from an unpacked call."""

    value: ast.expr | None
    tests: tuple[Test, ...]
    line: int
    index: int | None = None


@dataclass
class FileFacts:
    """What the reader must know of a file to follow its names: module functions, methods by name, and all known settings."""

    file: str
    lines: list[str]
    settings: frozenset[str]
    dialect: str
    functions: dict[str, FunctionNode] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)


@dataclass
class Scope:
    """Locals of a function, its enclosing function's behind them, and the file's module level behind those."""

    file: FileFacts
    owner: str = ""
    """Name of the class the function is a method of."""
    parent: Scope | None = None
    assigned: dict[str, list[Assignment]] = field(default_factory=dict)
    bound: dict[str, ast.expr] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()

    def binding(self, name: str) -> ast.expr | None:
        """What a loop over a literal list, or an inlined call, bound the name to."""
        if name in self.bound:
            return self.bound[name]
        return self.parent.binding(name) if self.parent is not None and name not in self.assigned else None

    def assignments(self, name: str, before: int) -> list[Assignment]:
        """Bindings of a local that come before a line, in order; the enclosing function's when there are none here."""
        own = self.assigned.get(name)
        if own is None:
            if self.parent is not None and name not in self.parameters:
                return self.parent.assignments(name, 1 << 30)
            return []
        return [item for item in own if item.line < before]

    def with_bound(self, names: dict[str, ast.expr]) -> Scope:
        """The same scope with some names bound to expressions."""
        return Scope(self.file, self.owner, self.parent, self.assigned, {**self.bound, **names}, self.parameters)


def scope_of(function: FunctionNode, file: FileFacts, owner: str, parent: Scope | None = None) -> Scope:
    """Collect the locals of a function."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [item for item in (arguments.vararg, arguments.kwarg) if item is not None]
    scope = Scope(file, owner, parent, parameters=frozenset(item.arg for item in every))
    _collect(function.body, (), scope)
    return scope


def _collect(body: list[ast.stmt], tests: tuple[Test, ...], scope: Scope) -> None:
    for statement in body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                _bind(target, statement.value, tests, statement.lineno, scope)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            _bind(statement.target, statement.value, tests, statement.lineno, scope)
        elif isinstance(statement, ast.AugAssign):
            _bind(statement.target, None, tests, statement.lineno, scope)
        for walrus in _named(statement):
            _bind(walrus.target, walrus.value, tests, walrus.lineno, scope)
        for child, more in branches(statement):
            _collect(child, tests + more, scope)
        if isinstance(statement, (ast.For, ast.AsyncFor)):
            _bind(statement.target, None, (*tests, (None, True)), statement.lineno, scope)
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            for item in statement.items:
                if item.optional_vars is not None:
                    _bind(item.optional_vars, None, tests, statement.lineno, scope)


def _named(statement: ast.stmt) -> Iterator[ast.NamedExpr]:
    for value in own_expressions(statement):
        for node in ast.walk(value):
            if isinstance(node, ast.NamedExpr):
                yield node


def own_expressions(statement: ast.stmt) -> list[ast.expr]:
    """Expressions of a statement itself, without those of the statements inside it."""
    return [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr)]


def branches(statement: ast.stmt) -> list[tuple[list[ast.stmt], tuple[Test, ...]]]:
    """Blocks inside a statement, each with the tests that lead into it; functions and classes are not entered."""
    if isinstance(statement, ast.If):
        return [(statement.body, ((statement.test, True),)), (statement.orelse, ((statement.test, False),))]
    if isinstance(statement, ast.While):
        return [(statement.body, ((statement.test, True),)), (statement.orelse, ())]
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return [(statement.body, ((None, True),)), (statement.orelse, ())]
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return [(statement.body, ())]
    if isinstance(statement, ast.Match):
        return [(case.body, ((None, True),)) for case in statement.cases]
    if isinstance(statement, ast.Try) or type(statement).__name__ == "TryStar":
        blocks: list[tuple[list[ast.stmt], tuple[Test, ...]]] = [(getattr(statement, "body", []), ())]
        blocks += [(handler.body, ((None, True),)) for handler in getattr(statement, "handlers", [])]
        return [*blocks, (getattr(statement, "orelse", []), ()), (getattr(statement, "finalbody", []), ())]
    return []


def _bind(target: ast.expr, value: ast.expr | None, tests: tuple[Test, ...], line: int, scope: Scope) -> None:
    if isinstance(target, ast.Name):
        scope.assigned.setdefault(target.id, []).append(Assignment(value, tests, line))
        return
    if isinstance(target, ast.Starred):
        _bind(target.value, None, tests, line, scope)
        return
    if not isinstance(target, (ast.Tuple, ast.List)):
        return
    values = value.elts if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts) else None
    for index, item in enumerate(target.elts):
        if values is not None:
            _bind(item, values[index], tests, line, scope)
        elif isinstance(item, ast.Name) and value is not None:
            scope.assigned.setdefault(item.id, []).append(Assignment(value, tests, line, index))
        else:
            _bind(item, None, tests, line, scope)

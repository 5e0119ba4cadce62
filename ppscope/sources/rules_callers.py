"""How a function of SGLang's source is reached: the guards of its callers, and whether it runs before another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ppscope.sources.rules_model import TRUE, Condition, conjunction, disjunction, fact
from ppscope.sources.rules_scope import FileFacts, FunctionNode, Scope, scope_of
from ppscope.sources.rules_walk import Event, Walker

_CALLERS_DEEP = 4


@dataclass(frozen=True)
class Function:
    """A function of the parsed source and where it stands."""

    file: str
    owner: str
    node: FunctionNode
    parent: Function | None = None


def functions_of(tree: ast.Module, file: str) -> Iterator[Function]:
    """Every function and method of a file, with its class and the function around it."""
    stack: list[tuple[ast.AST, str, Function | None]] = [(tree, "", None)]
    while stack:
        node, owner, parent = stack.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                function = Function(file, owner, child, parent)
                yield function
                stack.append((child, owner, function))
            elif isinstance(child, ast.ClassDef):
                stack.append((child, child.name, parent))
            elif isinstance(child, ast.stmt):
                stack.append((child, owner, parent))


def scope_for(function: Function, facts: FileFacts) -> Scope:
    """The scope of a function with those of the functions around it behind it."""
    parent = scope_for(function.parent, facts) if function.parent is not None else None
    return scope_of(function.node, facts, function.owner, parent)


class Callers:
    """Under which guards a function is reached: those at the places that call it, when all of them are known."""

    def __init__(self, functions: list[Function], facts: dict[str, FileFacts]) -> None:
        self._facts = facts
        self._functions = functions
        self._calls: dict[str, list[Function]] = {}
        self._passed: set[str] = set()
        self._references: dict[int, list[tuple[str, int]]] = {}
        self._named: dict[str, int] = {}
        self._entries: dict[int, Condition] = {}
        for function in functions:
            self._named[function.node.name] = self._named.get(function.node.name, 0) + 1
        for function in functions:
            if function.parent is None:
                self._index(function)

    def _index(self, function: Function) -> None:
        callees: set[int] = set()
        references: list[tuple[str, int, int]] = []
        for node in ast.walk(function.node):
            if isinstance(node, ast.Call):
                callees.add(id(node.func))
            if isinstance(node, (ast.Name, ast.Attribute)) and (name := name_of(node)) in self._named:
                references.append((name, node.lineno, id(node)))
        for name, line, key in references:
            self._references.setdefault(id(function.node), []).append((name, line))
            if key not in callees:
                # A function handed on as a value (a hook, a registry) is called from where we cannot see.
                self._passed.add(name)
            elif function not in self._calls.setdefault(name, []):
                self._calls[name].append(function)

    def entry(self, function: Function, depth: int = 0) -> Condition:
        """When the function is reached; True when it is an entry of its own, or when callers are not all in sight."""
        known = self._entries.get(id(function.node))
        if known is not None:
            return known
        name = function.node.name
        callers = [item for item in self._calls.get(name, []) if item.node is not function.node]
        if depth >= _CALLERS_DEEP or not callers or self._named[name] > 1 or name in self._passed:
            return TRUE
        self._entries[id(function.node)] = TRUE  # a cycle ends here
        result = disjunction([part for caller in callers for part in self._paths(caller, function, depth)])
        self._entries[id(function.node)] = result = TRUE if result.op == "false" else result
        return result

    def _paths(self, caller: Function, function: Function, depth: int) -> list[Condition]:
        name = function.node.name
        if caller.node.name == "__post_init__":
            return [TRUE]
        # A method called from another class: the object may be of any class that has one.
        foreign = function.owner not in ("", "ServerArgs", caller.owner)
        others = [fact(f"{function.owner}.{name} is the one called")] if foreign else []
        found: list[Condition] = []

        def visit(event: Event) -> None:
            header = [node for node in ast.iter_child_nodes(event.statement) if isinstance(node, ast.expr)]
            if any(isinstance(n, ast.Call) and name_of(n.func) == name for item in header for n in ast.walk(item)):
                found.append(conjunction([guard.condition for guard in event.guards]))

        Walker(visit).block(caller.node.body, (), scope_for(caller, self._facts[caller.file]))
        reached = self.entry(caller, depth + 1)
        return [conjunction([reached, *others, item]) for item in found] or [TRUE]

    def heard(self, function: Function) -> Condition:
        """Whether a write to the flag for all graphs (from 0.5.15) comes before the flag is read into `cuda_graph_config`.

        True when some function starts this one first; the op `late` when the flag was read before; a fact when no function
        starts both.
        """
        readers = self._upward({item.node.name for item in self._functions if _reads_flag(item)})
        writers = self._upward({function.node.name}) - readers
        for references in self._references.values():
            writes = [line for name, line in references if name in writers]
            reads = [line for name, line in references if name in readers]
            if writes and reads:
                first = min(writes) < min(reads)
                return TRUE if first else Condition("late", name="the flag had not been read yet")
        return fact("disable_cuda_graph is read after this write")

    def orders(self, functions: list[Function]) -> dict[str, int]:
        """Where the start-up sequence starts each function: the line in the one body that names most of them.

        `__post_init__` to 0.5.15, `run_resolution_pipeline` from 0.5.2x; functions it does not reach are left out.
        """
        upward = {item.node.name: self._upward({item.node.name}) for item in functions}
        wanted = set().union(*upward.values()) if upward else set()
        bodies = [[ref for ref in references if ref[0] in wanted] for references in self._references.values()]
        sequence = max(bodies, key=lambda body: len({name for name, _line in body}), default=[])
        found: dict[str, int] = {}
        for name, reachable in upward.items():
            lines = [line for called, line in sequence if called in reachable]
            if lines:
                found[name] = min(lines)
        return found

    def _upward(self, names: set[str]) -> set[str]:
        """Names and those of the functions that call them, two steps up; the launcher's own entry points stay out."""
        found = set(names)
        for _ in range(2):
            for name in tuple(found):
                callers = {item.node.name for item in self._calls.get(name, [])}
                found |= {item for item in callers if not item.startswith("__") and len(self._calls.get(item, [])) <= 2}
        return found


def name_of(node: ast.expr) -> str:
    """The last name of a reference; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _reads_flag(function: Function) -> bool:
    """The function that turns `disable_cuda_graph` into `cuda_graph_config`."""
    if "cuda_graph_config" not in function.node.name:
        return False
    return any(
        isinstance(node, ast.If) and isinstance(node.test, ast.Attribute) and node.test.attr == "disable_cuda_graph"
        for node in function.node.body
    )

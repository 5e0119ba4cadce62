"""Defaults of SGLang's settings, from the class bodies that declare them; nothing is imported or run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from ppscope.sources.rules_expr import PHASES, Converter
from ppscope.sources.rules_model import Condition, Scalar, literal, travels
from ppscope.sources.rules_scope import FileFacts, Scope

_RESOLVERS = ("declare_resolution", "override", "_override", "declare")


@dataclass
class Declared:
    """Names of all settings, the defaults that are literals, and those that start-up replaces."""

    names: set[str] = field(default_factory=set)
    values: dict[str, Scalar] = field(default_factory=dict)
    lines: dict[str, tuple[str, int]] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)
    """Settings written during start-up, whatever their default."""

    def resolved_late(self) -> frozenset[str]:
        """Settings whose default only means "choose for me": None or "auto", and something at start-up writes them."""
        return frozenset(name for name in self.late if self.values.get(name, 0) in (None, "auto"))


def is_settings_file(file: str) -> bool:
    """Whether a file declares settings: `server_args.py`, and from 0.5.2x `arg_groups/fields/`."""
    return file.endswith("srt/server_args.py") or "arg_groups/fields/" in file


def read_declared(trees: dict[str, ast.Module]) -> Declared:
    """Settings that the classes of the settings files declare. A file is skipped, not fatal, when it has none."""
    declared = Declared()
    for file, tree in trees.items():
        if is_settings_file(file):
            constants = module_constants(tree)
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and (node.name == "ServerArgs" or "arg_groups/fields/" in file):
                    _read_class(node, file, constants, declared)
    for file, tree in trees.items():
        if is_settings_file(file) or "arg_groups/" in file:
            declared.late.update(_written(tree) & declared.names)
    return declared


def module_constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Names bound once at module level to an expression."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
    return found


def _read_class(node: ast.ClassDef, file: str, constants: dict[str, ast.expr], declared: Declared) -> None:
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        name = item.target.id
        declared.names.add(name)
        declared.lines[name] = (file, item.lineno)
        value = constants.get(item.value.id) if isinstance(item.value, ast.Name) else item.value
        if (
            isinstance(value, ast.UnaryOp)
            and isinstance(value.op, ast.USub)
            and isinstance(value.operand, ast.Constant)
        ):
            number = value.operand.value
            if isinstance(number, (int, float)) and travels(-number):
                declared.values[name] = -number
        elif (
            isinstance(value, ast.Constant)
            and (value.value is None or isinstance(value.value, (bool, int, float, str)))
            and travels(value.value)
        ):
            declared.values[name] = value.value


def _written(tree: ast.Module) -> set[str]:
    """Names written on `self` or passed to a resolution call."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and not _is_none(node.value)
                ):
                    found.add(target.attr)
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in _RESOLVERS:
                found.update(item.arg for item in node.keywords if item.arg is not None and not _is_none(item.value))
            elif called == "Override" or called.endswith("Overrides"):
                found.update(item.arg for item in node.keywords if item.arg is not None)
    return found | set(_resolvable(tree))


def _resolvable(tree: ast.Module) -> Iterator[str]:
    """Fields that are declared `Arg(resolvable=True)` (0.5.2x)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            for call in ast.walk(node.annotation):
                if isinstance(call, ast.keyword) and call.arg == "resolvable" and not _is_none(call.value):
                    yield node.target.id


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def default_backends(trees: dict[str, ast.Module], facts: dict[str, FileFacts]) -> dict[str, Condition]:
    """The backend each phase uses when nobody asks, from the class `CudaGraphConfig`; empty where there is no such class."""
    found: dict[str, Condition] = {}
    for file, tree in trees.items():
        for node in tree.body:
            if not isinstance(node, ast.ClassDef) or node.name != "CudaGraphConfig":
                continue
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id in PHASES:
                    backend = _default_backend(item, facts[file])
                    if backend is not None:
                        found[item.target.id] = backend
    return found


def _default_backend(item: ast.AnnAssign, file: FileFacts) -> Condition | None:
    if item.value is None:
        return None
    for node in ast.walk(item.value):
        if isinstance(node, ast.keyword) and node.arg == "backend":
            chosen = Converter(Scope(file)).convert(node.value)
            return _returned_backend(chosen, node.value, file)
    return literal("disabled")


def _returned_backend(chosen: Condition, value: ast.expr, file: FileFacts) -> Condition:
    """A helper with an import before its `return` is not inlined as a one-liner: take its only `return`."""
    if chosen.op != "fact" or not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
        return chosen
    helper = file.functions.get(value.func.id)
    returns = [node for node in ast.walk(helper) if isinstance(node, ast.Return)] if helper is not None else []
    if len(returns) == 1 and returns[0].value is not None:
        return Converter(Scope(file)).convert(returns[0].value)
    return chosen

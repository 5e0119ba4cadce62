"""Flags that are kept for old command lines and stand for a value of another setting (0.5.15 server_args.py 6267-6290)."""

from __future__ import annotations

import ast
from collections.abc import Collection

from ppscope.sources.rules_callers import name_of
from ppscope.sources.rules_model import Scalar, travels


def read_aliases(trees: dict[str, ast.Module], names: Collection[str]) -> dict[str, tuple[str, Scalar]]:
    """By the flag's name as a setting is spelled: the setting that it stands for, and the value."""
    found: dict[str, tuple[str, Scalar]] = {}
    tree = trees.get("srt/server_args.py")
    for node in ast.walk(tree) if tree is not None else ():
        if not isinstance(node, ast.Call) or name_of(node.func) != "add_argument":
            continue
        words = {keyword.arg: keyword.value for keyword in node.keywords}
        target, given = words.get("dest"), words.get("const_value", words.get("const"))
        value = _value(given)
        if not isinstance(target, ast.Constant) or target.value not in names or value is None:
            continue
        for argument in node.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                found[argument.value.lstrip("-").replace("-", "_")] = (str(target.value), value)
    return {flag: stands_for for flag, stands_for in found.items() if flag not in names}


def _value(node: ast.expr | None) -> Scalar:
    """A constant, or what a member of an enumeration of strings is called: `Backend.TC_PIECEWISE` is "tc_piecewise"."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str)) and travels(node.value):
        return node.value
    return node.attr.lower() if isinstance(node, ast.Attribute) and node.attr.isupper() else None

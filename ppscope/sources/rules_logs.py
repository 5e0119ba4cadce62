"""Finds the log line that goes with a write: what an operator saw, or could have seen, when the rule fired."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ppscope.sources.rules_algebra import truth
from ppscope.sources.rules_expr import Converter
from ppscope.sources.rules_scope import Scope
from ppscope.sources.rules_walk import Event

_LOGS = re.compile(r"(^|\.)(log|logger|warning\w*|warn|info|error|debug|print|log_info_on_rank0|rank0_log)(_once)?$")
_SPEAKS = re.compile("graph", re.I)
_ENABLES = re.compile(r"\benabl(es|ing)\b[^.]*graph", re.I)


def nearby_logs(event: Event, outer: bool = True) -> Iterator[str]:
    """Texts logged around a statement: before it in its block (nearest first), after it, then in the blocks around."""
    for body, index in reversed(event.blocks):
        for item in [*reversed(body[:index]), *body[index + 1 :]]:
            for statement in _reached(item, event.scope):
                if isinstance(statement, ast.Expr) and (text := log_text(statement.value, event.scope)) is not None:
                    yield text
        if not outer:
            return


def message_of(event: Event) -> str | None:
    """The log line that belongs to a write: the nearest one around it that speaks of graphs; None when there is none."""
    statement = event.statement
    blocks = event.blocks[-2:]
    near = Event(statement, event.guards, event.scope, blocks, event.in_handler)
    own = next(
        (text for text in nearby_logs(near, outer=False) if _SPEAKS.search(text) and not _ENABLES.search(text)), None
    )
    if own is not None or not isinstance(
        event.blocks[-2][0][event.blocks[-2][1]] if len(blocks) > 1 else None, ast.For
    ):
        return own
    return next((text for text in nearby_logs(near) if _SPEAKS.search(text) and not _ENABLES.search(text)), None)


def log_text(node: ast.expr, scope: Scope) -> str | None:
    """The text a logging call writes, its `%s` filled where the source says with what; None for any other call."""
    if not isinstance(node, ast.Call):
        return None
    called = ast.unparse(node.func)
    if not _LOGS.search(called):
        return None
    for index, argument in enumerate(node.args):
        template = _text_of(argument, scope)
        if template is not None:
            return " ".join(_filled(template, node.args[index + 1 :], scope).split())
    return None


def _text_of(node: ast.expr, scope: Scope) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                bound = Converter(scope).convert(part.value)
                parts.append(str(bound.value) if bound.op == "literal" else "{" + ast.unparse(part.value) + "}")
            elif isinstance(part, ast.Constant):
                parts.append(str(part.value))
        return "".join(parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mod)):
        left = _text_of(node.left, scope)
        right = _text_of(node.right, scope) if isinstance(node.op, ast.Add) else ""
        return left + right if left is not None and right is not None else None
    return None


def _filled(template: str, arguments: list[ast.expr], scope: Scope) -> str:
    for argument in arguments:
        if "%s" not in template:
            break
        value = Converter(scope).convert(argument)
        shown = str(value.value) if value.op == "literal" else "{" + " ".join(ast.unparse(argument).split()) + "}"
        template = template.replace("%s", shown, 1)
    return template


def _reached(statement: ast.stmt, scope: Scope) -> list[ast.stmt]:
    """The statement, or the body of an `if` that stands beside the write only to log and is not known to be skipped."""
    if not isinstance(statement, ast.If) or statement.orelse:
        return [statement]
    return [] if truth(Converter(scope).convert(statement.test)).op == "false" else statement.body

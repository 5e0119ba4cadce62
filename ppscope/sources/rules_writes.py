"""Recognises the statements that turn a CUDA graph off, in every shape SGLang has used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ppscope.sources.rules_algebra import comparison, truth
from ppscope.sources.rules_expr import PHASES, Converter
from ppscope.sources.rules_logs import nearby_logs
from ppscope.sources.rules_model import TRUE, Condition, conjunction, literal, negate
from ppscope.sources.rules_scope import FileFacts, FunctionNode, own_expressions
from ppscope.sources.rules_walk import Event

_OFF_PHASE = {
    "disable_piecewise_cuda_graph": "prefill",
    "disable_prefill_cuda_graph": "prefill",
    "disable_decode_cuda_graph": "decode",
}
OFF_FIELDS = frozenset({*_OFF_PHASE, "disable_cuda_graph"})
ON_FIELDS = {"enable_piecewise_cuda_graph": "prefill"}
_DISABLED = literal("disabled")
_SETTER = re.compile(r"^(_?set\w*|setattr|_?override\w*|_?update\w*)$")
_BACKEND_CALL = re.compile(r"(with_phase|replace|_?set\w*|PhaseConfig)$")
_CAPTURE = re.compile(r"^_?(init|capture)_(?!\w*(draft|lora|metadata|state|forward|attn))(\w+_)?graphs?$")
_GIVES_UP = re.compile(r"disabl\w+[^.]*(cuda ?graph)|(cuda ?graph)[^.]*disabled", re.I)
_DEFAULT = re.compile(
    r"(default|resolve|choose|pick)\w*(prefill|decode)\w*backend|(prefill|decode)\w*(default)\w*backend"
)


@dataclass(frozen=True)
class Write:
    """A write that turns a graph off: which phase, where, the condition its own value adds, and the kind of rule."""

    phase: str
    line: int
    extra: Condition = TRUE
    kind: str = "setting"


def phase_of_field(name: str, dialect: str) -> str:
    """The phase a disabling flag stands for; the flag for all graphs means decode until 0.5.11 and both from 0.5.15 on."""
    return _OFF_PHASE.get(name) or ("decode" if dialect == "flags" else "both")


def writes_of(event: Event, function: FunctionNode) -> Iterator[Write]:
    """Every write of one statement, those of the blocks inside it not counted."""
    statement, converter = event.statement, Converter(event.scope)
    file = event.scope.file
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and statement.value is not None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            yield from _assigned(target, statement.value, converter, statement.lineno)
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return
    for value in own_expressions(statement):
        yield from _in_expression(value, converter, file, TRUE)
    if file.dialect == "config":
        yield from _json_loop(statement, function, converter)
    if isinstance(statement, ast.Return):
        yield from _returned(statement, converter, function)
        yield from _given_up(event, statement, function)


def _assigned(target: ast.expr, value: ast.expr, converter: Converter, line: int) -> Iterator[Write]:
    dialect = converter.scope.file.dialect
    if not isinstance(target, (ast.Attribute, ast.Subscript)):
        return
    _root, names = converter.chain(target)
    if not names:
        return
    name = names[-1]
    if name in OFF_FIELDS:
        if (extra := turned_off(value, converter)) is not None:
            yield Write(phase_of_field(name, dialect), line, extra)
    elif name in ON_FIELDS and isinstance(value, ast.Constant) and value.value is False:
        yield Write(ON_FIELDS[name], line)
    elif name == "backend" and len(names) > 1 and names[-2] in PHASES:
        yield from _backend(names[-2], value, converter, line)


def turned_off(value: ast.expr, converter: Converter) -> Condition | None:
    """When a value written to a disabling flag is true; None for copies of a flag, restored backups and False."""
    if isinstance(value, ast.Constant):
        return TRUE if value.value is True else None
    if not isinstance(value, (ast.BoolOp, ast.Compare, ast.UnaryOp, ast.IfExp)):
        return None
    condition = truth(converter.convert(value))
    if condition.op == "or":  # `x = x or cond`: the flag itself is no reason
        kept = [part for part in condition.args if part.op not in ("off", "requested")]
        condition = Condition("or", tuple(kept)) if len(kept) > 1 else kept[0] if kept else condition
    return None if condition.op in ("false", "off", "requested") else condition


def _backend(phase: str, value: ast.expr, converter: Converter, line: int, kind: str = "setting") -> Iterator[Write]:
    chosen = converter.convert(value)
    if chosen == _DISABLED:
        yield Write(phase, _line_of_disabled(value, converter, line), TRUE, kind)
    elif chosen.op == "if" and _mentions_disabled(chosen):
        yield Write(phase, _line_of_disabled(value, converter, line), comparison("==", chosen, _DISABLED), kind)
    elif chosen.op == "requested":
        yield Write(phase, line, comparison("==", chosen, _DISABLED), "flag")


def _mentions_disabled(condition: Condition) -> bool:
    return condition == _DISABLED or any(_mentions_disabled(part) for part in condition.args[-2:])


def _line_of_disabled(value: ast.expr, converter: Converter, line: int) -> int:
    """Where the disabled backend is written down: here, or where the local that carries it was set."""
    if isinstance(value, ast.Name):
        for item in converter.scope.assignments(value.id, value.lineno):
            if item.value is not None and converter.deeper().convert(item.value) == _DISABLED:
                return item.line
        return line
    for node in ast.walk(value):
        if isinstance(node, (ast.Attribute, ast.Constant)) and converter.convert(node) == _DISABLED:
            return node.lineno
    return value.lineno


def _in_expression(node: ast.expr, converter: Converter, file: FileFacts, guard: Condition) -> Iterator[Write]:
    """Writes inside an expression: keywords and arguments of calls, entries of dicts, under the tests of any `a if b else c`."""
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, ast.IfExp):
        test = truth(converter.convert(node.test))
        yield from _in_expression(node.test, converter, file, guard)
        yield from _in_expression(node.body, converter, file, conjunction([guard, test]))
        yield from _in_expression(node.orelse, converter, file, conjunction([guard, negate(test)]))
        return
    found = _in_call(node, converter, file) if isinstance(node, ast.Call) else _in_dict(node, converter, file)
    for write in found:
        yield Write(write.phase, write.line, conjunction([guard, write.extra]), write.kind)
    for child in ast.iter_child_nodes(node):
        inner = child.value if isinstance(child, ast.keyword) else child
        if isinstance(inner, ast.expr):
            yield from _in_expression(inner, converter, file, guard)


def _in_dict(node: ast.expr, converter: Converter, file: FileFacts) -> Iterator[Write]:
    if not isinstance(node, ast.Dict):
        return
    for key, value in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            continue
        if key.value in OFF_FIELDS:
            if (extra := turned_off(value, converter)) is not None:
                yield Write(phase_of_field(key.value, file.dialect), key.lineno, extra)
        elif key.value in PHASES and isinstance(value, ast.Dict):
            for inner, backend in zip(value.keys, value.values, strict=True):
                if isinstance(inner, ast.Constant) and inner.value == "backend":
                    yield from _backend(key.value, backend, converter, inner.lineno)


def _in_call(node: ast.Call, converter: Converter, file: FileFacts) -> Iterator[Write]:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    for keyword in node.keywords:
        if keyword.arg in OFF_FIELDS:
            if (extra := turned_off(keyword.value, converter)) is not None:
                yield Write(phase_of_field(keyword.arg, file.dialect), keyword.value.lineno, extra)
        elif keyword.arg == "backend" and _BACKEND_CALL.search(called):
            for phase in _phases_of(node.args, converter):
                yield from _backend(phase, keyword.value, converter, keyword.value.lineno)
    if _SETTER.match(called):
        yield from _set_call(node, converter, file)


def _set_call(node: ast.Call, converter: Converter, file: FileFacts) -> Iterator[Write]:
    """`_set(Phase.X, "backend", value)`, `setattr(config.decode, "backend", value)`, `setattr(args, "disable_…", True)`."""
    if len(node.args) != 3:
        return
    key = converter.convert(node.args[1])
    value = node.args[2]
    if key.op == "literal" and isinstance(key.value, str) and key.value in OFF_FIELDS:
        if (extra := turned_off(value, converter)) is not None:
            yield Write(phase_of_field(key.value, file.dialect), node.lineno, extra)
    elif key == literal("backend"):
        for phase in _phases_of(node.args[:1], converter):
            yield from _backend(phase, value, converter, node.lineno)


def _json_loop(statement: ast.stmt, function: FunctionNode, converter: Converter) -> Iterator[Write]:
    """The loop over the JSON of --cuda-graph-config hands every key to the function's own setter: `_set(phase, key, value)`."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or len(call.args) != 3:
        return
    setters = {item.name for item in function.body if isinstance(item, ast.FunctionDef)}
    if call.func.id not in setters or not all(isinstance(item, ast.Name) for item in call.args):
        return
    if converter.convert(call.args[1]).op == "fact" and "cuda_graph_config" in ast.unparse(function):
        for phase in PHASES:
            asked = Condition("requested", name=f"cuda_graph_config.{phase}.backend")
            yield Write(phase, statement.lineno, comparison("==", asked, _DISABLED), "json")


def _phases_of(arguments: list[ast.expr], converter: Converter) -> list[str]:
    """Phases that arguments name: a `Phase.X` literal, or an attribute chain that ends in one."""
    for argument in arguments:
        if isinstance(argument, ast.Starred):
            continue
        value = converter.convert(argument)
        if value.op == "literal" and value.value in PHASES:
            return [str(value.value)]
    for argument in arguments:
        if not isinstance(argument, ast.Starred):
            _root, names = converter.chain(argument)
            if names and names[-1] in PHASES:
                return [names[-1]]
    return []


def _returned(statement: ast.Return, converter: Converter, function: FunctionNode) -> Iterator[Write]:
    """A function that names the backend a phase uses by default."""
    if statement.value is None or not _DEFAULT.search(function.name):
        return
    phase = "prefill" if "prefill" in function.name else "decode"
    yield from _backend(phase, statement.value, converter, statement.lineno, "default")


def _given_up(event: Event, statement: ast.Return, function: FunctionNode) -> Iterator[Write]:
    """An early return out of the code that captures, or one whose log line says that graphs are disabled."""
    said = next((text for text in nearby_logs(event, outer=False) if _GIVES_UP.search(text)), None)
    name = function.name
    if len(event.blocks) < 2 or not ("graph" in name and (said is not None or _CAPTURE.match(name))):
        return
    if "speculative/" in event.scope.file.file or name.startswith("can_run_graph"):
        return
    if isinstance(statement.value, ast.Constant) and statement.value.value is True:
        return
    words = (
        name if "graph_" not in name and re.search("decode|prefill|piecewise|device", name) else f"{name} {said or ''}"
    )
    phase = "prefill" if re.search("prefill|piecewise", words, re.I) else "decode"
    yield Write(phase, statement.lineno, TRUE, "capture")


def restored_fields(function: FunctionNode) -> frozenset[str]:
    """Disabling flags that a function backs up and writes back: what it does in between is not a rule."""
    saved: dict[str, set[str]] = {}
    back: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            read = {part.attr for part in ast.walk(node.value) if isinstance(part, ast.Attribute)} & OFF_FIELDS
            for target in node.targets:
                if isinstance(target, ast.Name) and read:
                    saved.setdefault(target.id, set()).update(read)
    for node in ast.walk(function):
        pairs: list[tuple[str, ast.expr]] = []
        if isinstance(node, ast.Assign):
            targets = [item for target in node.targets for item in getattr(target, "elts", [target])]
            pairs = [(target.attr, node.value) for target in targets if isinstance(target, ast.Attribute)]
        elif isinstance(node, ast.keyword) and node.arg is not None:
            pairs = [(node.arg, node.value)]
        for name, value in pairs:
            base = value.value if isinstance(value, ast.Subscript) else value
            if isinstance(base, ast.Name) and name in saved.get(base.id, set()):
                back.add(name)
    return frozenset(back)

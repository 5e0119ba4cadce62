"""From an expression of SGLang's source to a `Condition`: settings, phases and platform helpers named, locals followed."""

from __future__ import annotations

import ast
import re

from ppscope.sources.rules_algebra import choice, comparison, first_truthy, truth
from ppscope.sources.rules_model import Condition, conjunction, disjunction, fact, literal, negate, travels
from ppscope.sources.rules_scope import Assignment, Scope

PHASES = ("decode", "prefill")
_OPERATORS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.In: "in", ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not",
}  # fmt: skip
_VIEW = re.compile(r"^_?(resolv\w*|\w*server_args\w*)$")
_CONTEXT = re.compile(r"^get_[a-z_]+$")
_ROOTS = frozenset({"cfg", "server_args", "args", "view"})
_PLATFORM = re.compile(r"^_?is_(cuda|hip|npu|cpu|mps|xpu|musa|hpu)$")
_PLATFORM_PART = re.compile(r"^is_(sm\d+\w*|blackwell\w*|hopper\w*|out_of_tree)$")
_ENUMS = frozenset({"Phase", "Backend", "ModelImpl"})
_DEPTH = 24
_TEXT = 90

REQUESTED = frozenset(
    {
        "disable_prefill_cuda_graph",
        "disable_decode_cuda_graph",
        "cuda_graph_backend_decode",
        "cuda_graph_backend_prefill",
    }
)
"""Settings of 0.5.15 and later that only ever hold what the user asked for."""


def source_text(node: ast.AST) -> str:
    """The expression on one line, cut when long."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _TEXT else text[: _TEXT - 1] + "…"


class Converter:
    """Reads expressions of one function; `depth` bounds how far locals and helpers are followed."""

    def __init__(self, scope: Scope, depth: int = 0) -> None:
        self.scope = scope
        self.depth = depth

    def deeper(self, scope: Scope | None = None) -> Converter:
        """The converter for what a name or helper stands for: one step further from the source."""
        return Converter(scope or self.scope, self.depth + 1)

    def convert(self, node: ast.expr) -> Condition:
        """The condition an expression stands for; what is not understood becomes a fact with its text."""
        if self.depth > _DEPTH:
            return fact(source_text(node))
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        result = handler(node) if handler is not None else None
        return result if isinstance(result, Condition) else fact(source_text(node))

    def _constant(self, node: ast.Constant) -> Condition | None:
        value = node.value
        return (
            literal(value) if value is None or (isinstance(value, (bool, int, float, str)) and travels(value)) else None
        )

    def _boolop(self, node: ast.BoolOp) -> Condition:
        parts = [self.convert(value) for value in node.values]
        return conjunction([truth(part) for part in parts]) if isinstance(node.op, ast.And) else first_truthy(parts)

    def _unaryop(self, node: ast.UnaryOp) -> Condition | None:
        if isinstance(node.op, ast.Not):
            return negate(truth(self.convert(node.operand)))
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            value = node.operand.value
            return literal(-value) if isinstance(value, (int, float)) and travels(-value) else None
        return None

    def _compare(self, node: ast.Compare) -> Condition:
        parts: list[Condition] = []
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            parts.append(self._pair(left, type(operator), right))
            left = right
        return conjunction(parts)

    def _pair(self, left: ast.expr, operator: type[ast.cmpop], right: ast.expr) -> Condition:
        op = _OPERATORS[operator]
        if op in ("in", "not in") and isinstance(left, ast.Tuple) and "_config_locked" in self._full_text(right):
            key = [self.convert(item) for item in left.elts]
            locked = Condition("locked", name=".".join(str(part.value) for part in key))
            return locked if op == "in" else negate(locked)
        return comparison(op, self.convert(left), self.convert(right))

    def _full_text(self, node: ast.expr) -> str:
        value = self._single(node.id, node.lineno) if isinstance(node, ast.Name) else None
        return ast.unparse(value if value is not None else node)

    def _ifexp(self, node: ast.IfExp) -> Condition:
        return choice(truth(self.convert(node.test)), self.convert(node.body), self.convert(node.orelse))

    def _namedexpr(self, node: ast.NamedExpr) -> Condition:
        return self.convert(node.value)

    def _tuple(self, node: ast.Tuple | ast.List | ast.Set) -> Condition:
        return Condition("tuple", tuple(self.convert(item) for item in node.elts))

    _list = _tuple
    _set = _tuple

    def _name(self, node: ast.Name) -> Condition | None:
        bound = self.scope.binding(node.id)
        if bound is not None:
            return self.deeper().convert(bound)
        if (match := _PLATFORM.match(node.id)) is not None:
            return Condition("platform", name=match[1])
        items = self.scope.assignments(node.id, node.lineno)
        if items:
            return self.deeper()._assigned(node.id, items)
        constant = self.scope.file.constants.get(node.id)
        if constant is not None and node.id not in self.scope.parameters:
            return self.deeper().convert(constant)
        return None

    def _assigned(self, name: str, items: list[Assignment]) -> Condition:
        """A local's value: the last binding whose guards hold, else the one before it."""
        result: Condition | None = None
        shared = _shared_tests(items)
        for item in items:
            value = self._value(name, item)
            tests = item.tests[shared:]
            if not tests or (result is None and _has_else(item, items, shared)):
                result = value
                continue
            guards = [
                fact(f"{name} (set at line {item.line})")
                if test is None
                else (truth(self.convert(test)) if branch else negate(truth(self.convert(test))))
                for test, branch in tests
            ]
            result = choice(conjunction(guards), value, result if result is not None else fact(name))
        return result if result is not None else fact(name)

    def _value(self, name: str, item: Assignment) -> Condition:
        if item.value is None:
            return fact(name)
        if item.index is None:
            return self.convert(item.value)
        if isinstance(item.value, ast.Call) and "attention_backends" in ast.unparse(item.value.func) and item.index < 2:
            own = ("prefill_attention_backend", "decode_attention_backend")[item.index]
            return first_truthy([Condition("setting", name=own), Condition("setting", name="attention_backend")])
        return fact(f"{source_text(item.value)}[{item.index}]")

    def _single(self, name: str, before: int) -> ast.expr | None:
        bound = self.scope.binding(name)
        if bound is not None:
            return bound
        items = self.scope.assignments(name, before)
        return items[0].value if len(items) == 1 and items[0].index is None else None

    def chain(self, node: ast.expr) -> tuple[ast.expr, list[str]]:
        """The root of an attribute chain and the names after it, locals and `getattr` followed."""
        names: list[str] = []
        for _ in range(_DEPTH):
            if isinstance(node, ast.Attribute):
                names.insert(0, node.attr)
                node = node.value
            elif isinstance(node, ast.Call) and _called(node) == "getattr" and len(node.args) >= 2:
                key = self.deeper().convert(node.args[1])
                if key.op != "literal" or not isinstance(key.value, str):
                    return node, names
                names.insert(0, key.value)
                node = node.args[0]
            elif isinstance(node, ast.Subscript):
                key = self.deeper().convert(node.slice)
                if key.op != "literal" or not isinstance(key.value, str):
                    return node, names
                names.insert(0, key.value)
                node = node.value
            elif isinstance(node, ast.Name) and (value := self._single(node.id, node.lineno)) is not None:
                if not isinstance(value, (ast.Attribute, ast.Name, ast.Call, ast.Subscript)) or value is node:
                    return node, names
                node = value
            else:
                break
        return node, names

    def _attribute(self, node: ast.Attribute | ast.Call | ast.Subscript) -> Condition | None:
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in _ENUMS and node.attr.isupper():
                return literal(node.attr.lower())
            if (match := _PLATFORM.match(node.attr)) is not None:
                return Condition("platform", name=match[1])
            if (match := _PLATFORM_PART.match(node.attr)) is not None:
                return Condition("platform", name=match[1])
        root, names = self.chain(node)
        if not names:
            return None
        if "cuda_graph_config" in names:
            return _graph_config(names[names.index("cuda_graph_config") + 1 :])
        return self._setting(root, names)

    def _subscript(self, node: ast.Subscript) -> Condition | None:
        return self._attribute(node)

    def _setting(self, root: ast.expr, names: list[str]) -> Condition | None:
        name, known = names[-1], self.scope.file.settings
        own = False
        if isinstance(root, ast.Name):
            if root.id == "self" and names[0] != "server_args":
                own = self.scope.owner == "ServerArgs" and len(names) == 1
            else:
                own = root.id in _ROOTS or (root.id == "self" and len(names) == 2)
        elif isinstance(root, ast.Call):
            called = _called(root)
            own = _VIEW.match(called) is not None
            if not own and not (_CONTEXT.match(called) and "config" not in called and "backend" not in called):
                return None
        if any("config" in part for part in names[:-1]) or (not own and name not in known):
            return None
        if not own and len(names) > 2 and "server_args" not in names and not isinstance(root, ast.Call):
            return None
        return self._named_setting(name)

    def _named_setting(self, name: str) -> Condition:
        if self.scope.file.dialect == "flags" and name in ("disable_cuda_graph", "disable_piecewise_cuda_graph"):
            return Condition("off", name="decode" if name == "disable_cuda_graph" else "prefill")
        if self.scope.file.dialect == "config" and (name in REQUESTED or name == "disable_cuda_graph"):
            return Condition("requested", name=name)
        return Condition("setting", name=name)

    def _call(self, node: ast.Call) -> Condition | None:
        called = _called(node)
        if isinstance(node.func, ast.Name):
            target = self.scope.binding(node.func.id) or self._single(node.func.id, node.lineno)
            if isinstance(target, ast.Lambda):
                return self.deeper().convert(target.body)
        if called == "bool" and len(node.args) == 1:
            return truth(self.convert(node.args[0]))
        if called == "getattr":
            return self._attribute(node)
        if called in ("any", "all") and len(node.args) == 1:
            return self._quantified(called, node.args[0])
        if called == "check_cuda_graph_backend" and len(node.args) == 2:
            phase, backend = (self.convert(item) for item in node.args)
            return comparison("==", Condition("backend", name=str(phase.value)), backend)
        if called == "cuda_graph_fully_disabled":
            return conjunction([Condition("off", name=phase) for phase in PHASES])
        if (match := _PLATFORM.match(called) or _PLATFORM_PART.match(called)) is not None and not node.args:
            return Condition("platform", name=match[1])
        if called in ("lower", "upper") and isinstance(node.func, ast.Attribute) and not node.args:
            return Condition("lower", (self.convert(node.func.value),)) if called == "lower" else None
        if isinstance(node.func, ast.Attribute) and "spec_algorithm" in ast.unparse(node.func.value):
            return _speculative(node)
        return self._inlined(node, called)

    def _inlined(self, node: ast.Call, called: str) -> Condition | None:
        """A helper of the same file whose body is one `return`: read as if written here."""
        helper = self.scope.file.functions.get(called)
        if helper is None or node.keywords:
            return None
        body = [
            item for item in helper.body if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))
        ]
        if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
            return None
        names = [item.arg for item in helper.args.args]
        if names and names[0] in ("self", "cls"):
            names = names[1:]
        bound = dict(zip(names, node.args, strict=False))
        scope = Scope(self.scope.file, self.scope.owner, self.scope, bound=bound, parameters=frozenset(names))
        inner = self.deeper(scope).convert(body[0].value)
        return None if inner.op == "fact" else inner

    def _quantified(self, called: str, node: ast.expr) -> Condition | None:
        if not isinstance(node, (ast.GeneratorExp, ast.ListComp)):
            items = node.elts if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else None
            parts = [truth(self.convert(item)) for item in items] if items is not None else None
        else:
            generator = node.generators[0]
            entries = entries_of(generator.iter, self)
            if len(node.generators) != 1 or generator.ifs or entries is None:
                return None
            parts = []
            for entry in entries:
                names = bind_entry(generator.target, entry)
                if names is None:
                    return None
                parts.append(truth(self.deeper(self.scope.with_bound(names)).convert(node.elt)))
        if parts is None:
            return None
        return disjunction(parts) if called == "any" else conjunction(parts)


def entries_of(node: ast.expr, converter: Converter) -> list[ast.expr] | None:
    """Elements of a literal list, tuple or dict (`.items()`) that a loop runs over, also through a local; None if unknown."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "items"
        and not node.args
    ):
        node = node.func.value
        node = (converter._single(node.id, node.lineno) or node) if isinstance(node, ast.Name) else node
        if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
            pairs = zip(node.keys, node.values, strict=True)
            return [
                ast.copy_location(ast.Tuple([key, value], ast.Load()), key) for key, value in pairs if key is not None
            ]
        return None
    if isinstance(node, ast.Name):
        node = converter._single(node.id, node.lineno) or node
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return None if any(isinstance(item, ast.Starred) for item in node.elts) else list(node.elts)
    if isinstance(node, ast.Attribute) and ast.unparse(node) == "Phase.ALL":
        return [ast.copy_location(ast.Constant(phase), node) for phase in PHASES]
    return None


def bind_entry(target: ast.expr, entry: ast.expr) -> dict[str, ast.expr] | None:
    """Names of a loop target bound to one element; None when the shapes differ."""
    if isinstance(target, ast.Name):
        return {target.id: entry}
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(entry, (ast.Tuple, ast.List)):
        if len(target.elts) != len(entry.elts):
            return None
        names: dict[str, ast.expr] = {}
        for part, value in zip(target.elts, entry.elts, strict=True):
            if not isinstance(part, ast.Name):
                return None
            names[part.id] = value
        return names
    return None


def _graph_config(names: list[str]) -> Condition | None:
    if len(names) == 2 and names[0] in PHASES:
        if names[1] == "backend":
            return Condition("backend", name=names[0])
        return Condition("setting", name=f"cuda_graph_config.{names[0]}.{names[1]}")
    return Condition("fact", name="cuda_graph_config") if not names else None


def _speculative(node: ast.Call) -> Condition:
    called, algorithm = _called(node), Condition("setting", name="speculative_algorithm")
    chosen = Condition("is not", (algorithm, literal(None)))
    if called == "is_none":
        return negate(chosen)
    return chosen if called == "is_speculative" else conjunction([chosen, fact(source_text(node))])


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Name):
        return node.func.id
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def _has_else(first: Assignment, items: list[Assignment], shared: int) -> bool:
    """Whether the branches of one `if` that bind a name leave no way round: one of them is all `else`."""
    test = first.tests[shared][0]
    if test is None or len(first.tests) > shared + 1:
        return False
    others = [item.tests[shared:] for item in items if item is not first and len(item.tests) > shared]
    return any(tests[0] == (test, False) and all(not branch for _test, branch in tests) for tests in others)


def _shared_tests(items: list[Assignment]) -> int:
    """How many leading tests all bindings have in common: they held wherever the name is used."""
    shared = 0
    first = items[0].tests
    while shared < len(first) and all(len(i.tests) > shared and i.tests[shared] == first[shared] for i in items):
        shared += 1
    return shared if len(items) > 1 else len(first)

"""Import borders: who may import what, read from the source, so that a slip fails here and not on a production box."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shared import ROOT

FILES = sorted(
    path
    for folder in ("ppscope", "widgets")
    for path in (ROOT / folder).rglob("*.py")
    if "ppscope/widgets" not in str(path)
)
IO = {"subprocess", "socket", "http", "urllib", "pynvml", "psutil", "shutil", "tempfile", "sqlite3", "msgspec.msgpack"}
HEAVY = {
    "textual",
    "torch",
    "pynvml",
    "rich",
    "psutil",
    "http",
    "ppscope.session",
    "ppscope.collect",
    "ppscope.sources",
}


def module_of(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] == "widgets":
        parts = ["ppscope", *parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, *, top_level: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    nodes: Iterator[ast.AST] = _top(tree) if top_level else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _top(tree: ast.Module) -> Iterator[ast.AST]:
    for node in tree.body:
        guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not guarded:
            yield from (child for child in ast.walk(node) if not isinstance(node, ast.FunctionDef | ast.ClassDef))


def within(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_borders(path: Path) -> None:
    module, imported = module_of(path), set(imports_of(path))
    if not module.startswith(("ppscope.app", "ppscope.widgets")):
        assert not [name for name in imported if within(name, {"textual"})], "textual belongs to app and widgets"
    if module.startswith("ppscope.widgets"):
        assert not [name for name in imported if within(name, IO)], "widgets do no I/O"
        assert "open(" not in path.read_text().replace("open()", ""), "widgets open no files"
    if module.startswith("ppscope.probe"):
        foreign = {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names) - {"__future__"}
        inside = {name for name in imported if name.startswith("ppscope") and not within(name, {"ppscope.probe"})}
        assert foreign <= {"ppscope"}, "the probe runs inside SGLang: standard library only"
        assert not inside, "the probe runs inside SGLang: standard library only"
    if not module.startswith(("ppscope.emulator", "ppscope.cli", "ppscope.commands")):
        assert not [name for name in imported if within(name, {"ppscope.emulator"})], "only the CLI starts the emulator"
    assert not [name for name in imported if within(name, {"torch"})] or module.startswith("ppscope.emulator")
    if module.startswith(("ppscope.collect.collector", "ppscope.sources", "ppscope.target")):
        assert not [
            name for name in imported if within(name, {"ppscope.session", "ppscope.diagnose", "ppscope.views"})
        ] or (module == "ppscope.target.phases"), "facts on the wire, meaning in the view"


def test_the_cli_imports_nothing_heavy() -> None:
    assert not [name for name in imports_of(ROOT / "ppscope/cli.py", top_level=True) if within(name, HEAVY)]


def test_no_import_cycles() -> None:
    modules = {module_of(path): path for path in FILES}
    graph = {
        name: {imported for imported in imports_of(path, top_level=True) if imported in modules and imported != name}
        for name, path in modules.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " → ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for imported in sorted(graph[name]):
                if not name.startswith(imported + "."):  # a package's __init__ is loaded anyway
                    visit(imported, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())

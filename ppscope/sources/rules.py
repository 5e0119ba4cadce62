"""Reads, from an installed SGLang's source, every rule that turns a decode or prefill CUDA graph off.

The source is parsed with `ast`; nothing of it is imported or run. No rule, name or line number comes from this file: a
version that was never seen is read like the others, and what cannot be parsed is said.
"""

from __future__ import annotations

import ast
import re
import time
import warnings
from pathlib import Path

from ppscope.sources.rules_aliases import read_aliases
from ppscope.sources.rules_assemble import assemble
from ppscope.sources.rules_callers import functions_of
from ppscope.sources.rules_defaults import default_backends, is_settings_file, module_constants, read_declared
from ppscope.sources.rules_model import RuleBook
from ppscope.sources.rules_scope import FileFacts, FunctionNode

_MENTIONS = re.compile(rb"cuda_graph|CUDA graph|cuda graph|graphs?\(")
_WRITES = re.compile(
    rb"(disable_(piecewise_|prefill_|decode_)?|enable_piecewise_)cuda_graph\b|Backend\.DISABLED|[\"']disabled[\"']"
    rb"|def _?(init|capture|can_run)_\w*graphs?\("
)
_MAX_BYTES = 8 << 20


class NotSglang(Exception):
    """The folder is no sglang package, or its settings cannot be parsed; the text is one line for the user."""


def find_package(source: Path) -> Path:
    """The sglang package folder named by a path: itself, the folder above it, or its `srt`.

    Raises NotSglang when there is no `srt/server_args.py` in reach.
    """
    try:
        for folder in (source, source / "sglang", source.parent, source / "python" / "sglang"):
            if (folder / "srt" / "server_args.py").is_file():
                return folder.resolve()
        exists = source.exists()
    except OSError as error:  # Path asks quietly of what is not there, not of what may not be seen
        raise NotSglang(f"{source}: {error.strerror or error}") from error
    what = "no such folder" if not exists else "not the sglang package folder: it has no srt/server_args.py"
    raise NotSglang(f"{source}: {what}")


def read_version(package: Path) -> str | None:
    """SGLang's version from the metadata beside the package, or from `_version.py`; None when neither is there."""
    for folder in sorted(package.parent.glob("sglang-*.dist-info")):
        return folder.name[len("sglang-") : -len(".dist-info")]
    for name in ("_version.py", "version.py"):
        try:
            text = (package / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        match = re.search(r"^(?:__version__|version)\b.*=\s*['\"]([^'\"]+)['\"]", text, re.M)
        if match is not None:
            return match[1]
    return None


def read_rules(source: Path) -> RuleBook:
    """Every rule of the sglang package at `source`. Takes 0.8 s (0.5.6) to 4 s (0.5.23) of one core: cache it by version and path.

    Raises NotSglang when the folder is none, or when `server_args.py` cannot be parsed. Any other file that cannot be
    parsed is listed in `unreadable`.
    """
    began = time.monotonic()
    package = find_package(source)
    trees: dict[str, ast.Module] = {}
    lines: dict[str, list[str]] = {}
    unreadable: list[tuple[str, str]] = []
    for path in sorted((package / "srt").rglob("*.py")):
        file = path.relative_to(package).as_posix()
        try:
            text = _relevant(path, file)
            if text is None:
                continue
            trees[file] = parse(text)
            lines[file] = text.decode("utf-8", errors="replace").splitlines()
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            unreadable.append((file, _reason(error)))
    if "srt/server_args.py" not in trees:
        reason = dict(unreadable).get("srt/server_args.py", "not readable")
        raise NotSglang(f"{package / 'srt' / 'server_args.py'}: cannot parse: {reason}")
    return build(package, version=read_version(package), trees=trees, lines=lines, unreadable=unreadable, began=began)


def build(
    package: Path,
    *,
    version: str | None,
    trees: dict[str, ast.Module],
    lines: dict[str, list[str]],
    unreadable: list[tuple[str, str]],
    began: float,
) -> RuleBook:
    """The rules of parsed files; a file too deeply nested to walk joins `unreadable`."""
    declared = read_declared(trees)
    dialect = "config" if "cuda_graph_config" in declared.names else "flags"
    names = frozenset(declared.names)
    facts = {
        file: FileFacts(file, lines[file], names, dialect, _functions(tree), module_constants(tree))
        for file, tree in trees.items()
    }
    rules, failed = assemble(trees, facts, declared)
    return RuleBook(
        version=version,
        path=str(package),
        dialect=dialect,
        rules=tuple(rules),
        settings=names,
        defaults=declared.values,
        resolved_late=declared.resolved_late(),
        backends=default_backends(trees, facts),
        aliases=read_aliases(trees, names),
        files_parsed=len(trees),
        read_s=round(time.monotonic() - began, 3),
        unreadable=tuple(unreadable + failed),
    )


def parse(text: bytes) -> ast.Module:
    """Parse source bytes; the parser's own warnings about foreign source are nobody's business here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _relevant(path: Path, file: str) -> bytes | None:
    """A file's bytes if it can hold a rule, a default or a caller of a rule; None otherwise."""
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"larger than {_MAX_BYTES >> 20} MiB")
    text = path.read_bytes()
    if is_settings_file(file) or "srt/arg_groups/" in file:
        return text
    return text if _MENTIONS.search(text) is not None and _WRITES.search(text) is not None else None


def _functions(tree: ast.Module) -> dict[str, FunctionNode]:
    """Functions and methods by name; a name that stands twice is left out, since it cannot be followed."""
    found: dict[str, FunctionNode] = {}
    twice: set[str] = set()
    for function in functions_of(tree, ""):
        if function.node.name in found:
            twice.add(function.node.name)
        found[function.node.name] = function.node
    return {name: node for name, node in found.items() if name not in twice}


def _reason(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    return str(error) or type(error).__name__

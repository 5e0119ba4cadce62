"""What a command line is: a Python module, script or code, one of multiprocessing's helpers, or an SGLang launcher."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*[a-z]?(?:-\w+)?", re.ASCII)
_SPAWN_CODE = re.compile(r"from multiprocessing[.\w]* import (?:spawn_main|main)\b")
_WITH_VALUE = "WX"
_LAUNCH_MODULES = frozenset(
    {
        "sglang.launch_server",
        "sglang.srt.entrypoints.http_server",
        "sglang.srt.entrypoints.grpc_server",
    }
)
_SERVE_MODULES = frozenset({"sglang", "sglang.cli.main", "sglang.cli.serve"})


class PythonCommand(NamedTuple):
    """A Python command line taken apart. Exactly one of `module`, `script`, `code` is set, or none for an interactive one."""

    module: str | None
    script: str | None
    code: str | None
    arguments: tuple[str, ...]
    isolated: bool = False
    """`-P` or `-I`: the working directory is not on sys.path."""


def is_python(program: str) -> bool:
    """Whether a path or name is that of a Python interpreter."""
    return _PYTHON.fullmatch(os.path.basename(program).removesuffix(" (deleted)")) is not None


def parse_python(argv: Sequence[str]) -> PythonCommand | None:
    """Take a Python command line apart; None when the program is not Python."""
    if not argv or not is_python(argv[0]):
        return None
    isolated = False
    index = 1
    while index < len(argv):
        word = argv[index]
        index += 1
        if word.startswith("--"):
            index += word == "--check-hash-based-pycs"
            continue
        if not word.startswith("-") or word == "-":
            return PythonCommand(None, None if word == "-" else word, None, tuple(argv[index:]), isolated)
        for place, letter in enumerate(word[1:], start=2):
            isolated = isolated or letter in "PI"
            if letter not in "mc" + _WITH_VALUE:
                continue
            value = word[place:]
            if not value:
                value = argv[index] if index < len(argv) else ""
                index += 1
            if letter == "m":
                return PythonCommand(value, None, None, tuple(argv[index:]), isolated)
            if letter == "c":
                return PythonCommand(None, None, value, tuple(argv[index:]), isolated)
            break
    return PythonCommand(None, None, None, (), isolated)


def is_multiprocessing_helper(argv: Sequence[str]) -> bool:
    """Whether this is a child of multiprocessing that has no title of its own yet: spawn, forkserver, resource tracker."""
    if "--multiprocessing-fork" in argv:
        return True
    return any(_SPAWN_CODE.match(word) for word in argv[1:8])


def is_resource_tracker(argv: Sequence[str]) -> bool:
    """Whether this is multiprocessing's resource tracker, which never becomes anything else."""
    return any("multiprocessing.resource_tracker" in word for word in argv[1:8])


def launcher_kind(argv: Sequence[str]) -> str | None:
    """`launch_server` or `serve` when this command line starts an SGLang server, else None.

    Only Python processes count: a shell or a tool that merely names SGLang in its arguments is a wrapper.
    """
    command = parse_python(argv)
    if command is None:
        return None
    first = command.arguments[0] if command.arguments else ""
    if command.module is not None:
        if command.module in _LAUNCH_MODULES:
            return "launch_server"
        return "serve" if command.module in _SERVE_MODULES and first == "serve" else None
    if command.script is not None:
        folder, name = os.path.split(command.script)
        if name == "sglang" and first == "serve":
            return "serve"
        if name == "launch_server.py" and (
            os.path.basename(folder) == "sglang" or any(_names_model(word) for word in command.arguments)
        ):
            return "launch_server"
    return None


def _names_model(word: str) -> bool:
    return word.partition("=")[0] in ("--model-path", "--model")


def hidden_launcher_kind(argv: Sequence[str]) -> str | None:
    """The kind of a launcher run inside another Python tool: `python -m cProfile -m sglang.launch_server …`.

    Only for a process that is known to own schedulers: a mere wrapper has the same words on its command line.
    """
    for place, word in enumerate(argv):
        following = argv[place + 1] if place + 1 < len(argv) else ""
        if word in _LAUNCH_MODULES or word.endswith("sglang/launch_server.py"):
            return "launch_server"
        if os.path.basename(word) == "sglang" and following == "serve":
            return "serve"
    return None

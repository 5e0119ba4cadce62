"""The settings of `--config FILE`, as SGLang puts them on the command line before it reads that."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence

from ppscope.target.arguments import arguments_of
from ppscope.target.installed import Root
from ppscope.target.procfs import Proc

_MOST_BYTES = 256 * 1024
_MOST_TEXT = 4 * _MOST_BYTES
_DEEPEST = 32


class ConfigProblem(Exception):
    """Why a config file says nothing, in a few words."""


def config_words(proc: Proc, pid: int, argv: Sequence[str]) -> tuple[str, ...]:
    """The options of the file that `argv` names, as the launcher `pid` sees it; empty without one. Raises ConfigProblem.

    SGLang puts them before those of the command line, which win (`ConfigArgumentMerger`, utils/server_args_config_parser.py
    of 0.5.23; server_args_config_parser.py before). A switch that is off there is `--name=false` here.
    """
    path = arguments_of(argv).config
    if path is None:
        return ()
    place = Root(proc.path(pid, "root")).resolve(os.path.join(proc.link(pid, "cwd") or "/", path))
    try:
        # O_NONBLOCK: a pipe in its place would wait for a writer.
        with open(os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigProblem("it is no regular file")
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigProblem(error.strerror or "it cannot be read") from None
    if len(raw) > _MOST_BYTES:
        raise ConfigProblem("it is too large")
    return words_of(raw)


def words_of(raw: bytes) -> tuple[str, ...]:
    """A config file as options. Raises ConfigProblem when it is not a YAML mapping."""
    # Imported here: few servers have such a file, and the parser costs memory.
    from msgspec import MsgspecError, yaml

    try:
        found = yaml.decode(raw)
    except (MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise ConfigProblem(f"it is not YAML ({type(error).__name__})") from None
    if found is None:
        return ()
    if not isinstance(found, dict):
        raise ConfigProblem("it is not a mapping")
    words: list[str] = []
    left = _MOST_TEXT
    for key, value in found.items():
        left = _count_down(value, left, _DEEPEST)
        name = f"--{key}"
        if isinstance(value, bool):
            words.append(name if value else f"{name}=false")
        elif isinstance(value, list):
            words += [name, *map(str, value)] if value else []
        elif isinstance(value, dict):
            words.append(f"{name}={json.dumps(value, default=str)}")
        elif value is not None:
            words.append(f"{name}={value}")
    return tuple(words)


def _count_down(value: object, left: int, deeper: int) -> int:
    """How much more text there may be; an anchor stands for its content each time, and may lie within itself."""
    if left <= 0 or deeper <= 0:
        raise ConfigProblem("it holds too much")
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in inside:
        left = _count_down(part, left, deeper - 1)
    return left - 1 - (len(value) if isinstance(value, str) else 0)

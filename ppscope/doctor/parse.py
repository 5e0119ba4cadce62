"""Facts out of text: /proc status lines, version lines, names of Python's files."""

from __future__ import annotations

import re
from collections.abc import Iterable

_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?")
_PYTHON = re.compile(r"(?:^|/)(?:lib)?python(\d)\.(\d{1,2})(t?)(?=$|/|\.so|d?m?\.so|\.)")


def status_number(status: bytes, name: str, base: int = 10) -> int | None:
    """A number of a /proc/PID/status file; None where the line is absent or odd."""
    head = name.encode() + b":"
    for line in status.split(b"\n"):
        if line.startswith(head):
            words = line[len(head) :].split()
            try:
                return int(words[0], base) if words else None
            except ValueError:
                return None
    return None


def version(text: str) -> tuple[int, ...] | None:
    """The first dotted version in a text, without trailing parts that are not numbers."""
    found = _VERSION.search(text)
    return tuple(int(part) for part in found.groups() if part is not None) if found else None


def python_of(paths: Iterable[str]) -> tuple[tuple[int, int], bool] | None:
    """(major, minor) and whether it is a free-threaded build, by the first of these paths that names it; None when none does.

    Paths in order of trust: the executable, libpython, then anything in a `python3.X` folder. A free-threaded build has a `t`
    behind its version in all of them (PEP 703).
    """
    for path in paths:
        found = list(_PYTHON.finditer(path))
        if found:
            last = found[-1]
            return (int(last[1]), int(last[2])), bool(last[3])
    return None

"""Which Python a process runs, by the names of its files; nothing of it is started or read."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ppscope.target.procfs import Proc

_PYTHON = re.compile(r"(?:^|/)(?:lib)?python(\d)\.(\d{1,2})(t?)(?=$|/|\.so|d?m?\.so|\.)")
_EXTENSION = re.compile(r"\.cpython-(\d)(\d{1,2})t-[^/]*\.so$")


def python_of(paths: Sequence[str]) -> tuple[tuple[int, int], bool] | None:
    """(major, minor) and whether it is a free-threaded build, by the first of these paths that names it; None when none does.

    Paths in order of trust: the executable, libpython, then anything in a `python3.X` folder. A free-threaded build has a `t`
    behind its version (PEP 703), but for its `bin/python3.13`, which is the same file as `python3.13t`: so one of the others tells.
    """
    for path in paths:
        found = list(_PYTHON.finditer(path))
        if found:
            version = int(found[-1][1]), int(found[-1][2])
            return version, bool(found[-1][3]) or any(_is_free_threaded(other, version) for other in paths)
    return None


def _is_free_threaded(path: str, version: tuple[int, int]) -> bool:
    names = [(one[1], one[2]) for one in _PYTHON.finditer(path) if one[3]]
    names += [(one[1], one[2]) for one in _EXTENSION.finditer(path)]
    return any((int(major), int(minor)) == version for major, minor in names)


def python_files(proc: Proc, pid: int) -> list[str]:
    """Paths that tell the Python of a process, the most trusted first; none without permission."""
    exe = proc.link(pid, "exe")
    mapped = sorted(proc.mapped_files(pid) or ())
    libraries = [path for path in mapped if "/libpython" in path]
    return [path for path in (exe, *libraries, *mapped) if path]

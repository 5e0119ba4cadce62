"""Many files read here and there, few of them open: a recording may have more parts than a process may have descriptors."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path

from ppscope.snapshot.files import identity

_MOST = 64


class Handles:
    """Files that are known by what they are: one that gets another name meanwhile, as a part that is closed does, is found again.

    The most recently used stay open, also when they are removed.
    """

    def __init__(self) -> None:
        self._paths: dict[tuple[int, int], Path] = {}
        self._open: OrderedDict[tuple[int, int], int] = OrderedDict()

    def add(self, path: Path) -> tuple[int, int]:
        """Take in a file; what `read` knows it by. Raises OSError."""
        fd = _open(path)
        found = os.fstat(fd)
        file = found.st_dev, found.st_ino
        self._paths[file] = path
        if file in self._open:
            os.close(self._open.pop(file))
        self._keep(file, fd)
        return file

    def read(self, file: tuple[int, int], size: int, at: int) -> bytes:
        """Up to so many bytes from an offset on. Raises OSError, also for a file that was closed here and is no longer there."""
        fd = self._open.get(file)
        if fd is None:
            fd = self._find(file)
            self._keep(file, fd)
        self._open.move_to_end(file)
        return os.pread(fd, size, at)

    def close(self) -> None:
        """Close them all."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _keep(self, file: tuple[int, int], fd: int) -> None:
        self._open[file] = fd
        while len(self._open) > _MOST:
            os.close(self._open.popitem(last=False)[1])

    def _find(self, file: tuple[int, int]) -> int:
        path = self._paths[file]
        if identity(path) != file:
            with os.scandir(path.parent) as entries:
                names = [entry.name for entry in entries if entry.inode() == file[1]]
            path = next((path.with_name(name) for name in names if identity(path.with_name(name)) == file), path)
            self._paths[file] = path
        fd = _open(path)
        if identity(fd) != file:
            os.close(fd)
            raise FileNotFoundError(path)
        return fd


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

"""Graph rules that were read before, kept under $XDG_CACHE_HOME/ppscope: reading takes seconds of a core."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

import msgspec

from ppscope.sources.rules import read_version
from ppscope.sources.rules_model import RuleBook

FORMAT = "1"
"""Raised whenever the reader finds more or says it otherwise."""
_KEPT = 8


def folder() -> Path | None:
    """Our own folder, private to us; None where it cannot be had."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = Path(base) / "ppscope"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError:
        return None
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return path if mine else None


def key(package: Path) -> str:
    """Names the state of a package: version, path, and size and time of every Python file below `srt`; and our own reader."""
    state = hashlib.sha256()
    state.update(f"{FORMAT}\0{read_version(package)}\0{package}\0".encode(errors="surrogateescape"))
    for root, folders, files in os.walk(package / "srt"):
        folders.sort()
        for name in sorted(files):
            if name.endswith(".py"):
                found = os.stat(os.path.join(root, name))
                state.update(f"{root}/{name}\0{found.st_size}\0{found.st_mtime_ns}\0".encode(errors="surrogateescape"))
    own = Path(__file__).parent
    for path in sorted(own.glob("rules*.py")):
        found = path.stat()
        state.update(f"{path.name}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return state.hexdigest()[:32]


def load(package: Path) -> bytes | None:
    """The msgpack of the rules of a package in its present state; None when there is none that can be read."""
    base = folder()
    if base is None:
        return None
    try:
        file = os.open(base / f"rules-{key(package)}.msgpack", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(file, "rb") as opened:
            book = opened.read(64 << 20)
        msgspec.msgpack.decode(book, type=RuleBook)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return None
    return book


def store(package: Path, book: bytes) -> None:
    """Keep the rules, whole or not at all; the oldest of more than a few are dropped. A cache that cannot be written is none."""
    base = folder()
    if base is None:
        return
    try:
        handle, name = tempfile.mkstemp(prefix=".rules-", dir=base)
        try:
            with os.fdopen(handle, "wb") as opened:
                opened.write(book)
            os.replace(name, base / f"rules-{key(package)}.msgpack")
        except OSError:
            os.unlink(name)
            raise
        kept = sorted(base.glob("rules-*.msgpack"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in kept[_KEPT:]:
            path.unlink()
    except OSError:
        return

"""Standard streams that are closed or full: one line and an exit code, not a traceback."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import re
import sys
from pathlib import Path

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_CONTROL = re.compile(r"[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What JSON lets through and a terminal obeys: control characters beyond ASCII's, and those that turn the direction of writing."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF, errno.EIO)


def mend() -> None:
    """Give closed standard streams a form that can be asked about; a write to a closed stdout then fails as an OSError.

    And have what stdout's encoding lacks written as escapes, as it is on stderr: an exception would end the command with 1, which
    means findings.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        # Taken for reading alone, so that no other file becomes descriptor 1 and gets what was meant for the terminal.
        descriptor = os.open(os.devnull, os.O_RDONLY)
        if descriptor != 1:
            os.dup2(descriptor, 1)
            os.close(descriptor)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        if isinstance(sys.stdout.buffer, io.FileIO):
            # PYTHONUNBUFFERED, as container images set it: what a pipe does not take at once would be lost without a word.
            sys.stdout = open(1, "w", encoding=sys.stdout.encoding, closefd=False)  # noqa: SIM115
        sys.stdout.reconfigure(errors="backslashreplace")


def require() -> None:
    """Raise OSError where nothing can be written to stdout, for a command that would look long and then say nothing."""
    try:
        mode = fcntl.fcntl(sys.stdout.fileno(), fcntl.F_GETFL) & os.O_ACCMODE
    except io.UnsupportedOperation:  # a test's own stream
        return
    if mode == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def is_ours(error: OSError) -> bool:
    """Whether a write to a standard stream may have failed with it: those errors name no file."""
    return error.errno in _FULL and error.filename is None


def give_up(error: OSError) -> None:
    """Say that stdout took no more, and let the interpreter's own last flush go nowhere."""
    reason = "it is closed" if error.errno == errno.EBADF else error.strerror
    try:
        sys.stderr.write(f"ppscope: cannot write to standard output: {reason}\n")
    except OSError:  # a terminal that is gone takes both with it
        discard(2)
    discard()


def discard(descriptor: int = 1) -> None:
    """Let all that is still written to a standard stream go nowhere, the interpreter's own last flush as well."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), descriptor)


def harmless(text: str) -> str:
    """Text that a terminal obeys in nothing but its line breaks: the names of files, servers and kernels may hold anything."""
    return "".join(char if char == "\n" or char.isprintable() else "?" for char in text)


def write_text(text: str) -> None:
    """Text to read; what stdout's encoding lacks is written as escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(harmless(text).encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def write_json(data: bytes) -> None:
    """JSON on a line of its own; what a terminal would obey is escaped as JSON has it, and what stdout's encoding lacks."""
    text = _CONTROL.sub(_escaped, data.decode())
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = _NOT_ASCII.sub(_escaped, text)
    sys.stdout.write(text + "\n")


def _escaped(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]


def write_path(path: Path) -> None:
    """A path on a line of its own, byte for byte as the file system has it, but on a terminal, which would obey it."""
    if sys.stdout.isatty():
        write_text(f"{path}\n")
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(os.fsencode(path) + b"\n")
    sys.stdout.buffer.flush()

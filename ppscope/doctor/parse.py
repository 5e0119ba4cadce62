"""Facts out of text: /proc status lines, version lines."""

from __future__ import annotations

import re

_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?")


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

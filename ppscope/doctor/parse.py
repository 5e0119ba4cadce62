"""Facts out of text: version lines."""

from __future__ import annotations

import re

_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?")


def version(text: str) -> tuple[int, ...] | None:
    """The first dotted version in a text, without trailing parts that are not numbers."""
    found = _VERSION.search(text)
    return tuple(int(part) for part in found.groups() if part is not None) if found else None

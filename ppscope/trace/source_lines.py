"""Python frames as the profiler writes them: `path/file.py(123): function`."""

from __future__ import annotations

import re
from typing import NamedTuple

_FRAME = re.compile(r"^(?P<file>.+?)\((?P<line>\d{1,9})\): (?P<function>.*)$", re.DOTALL)


class SourceLine(NamedTuple):
    """A frame taken apart; all None without a frame, `function` alone where it is no Python line."""

    file: str | None = None
    line: int | None = None
    function: str | None = None


def parse_line(frame: str | None) -> SourceLine:
    """Takes a frame apart."""
    if frame is None:
        return SourceLine()
    match = _FRAME.match(frame)
    if match is None:
        return SourceLine(function=frame)
    return SourceLine(match["file"], int(match["line"]), match["function"])

"""Which part of a recording a command uses: what `--from` and `--until` say, else its last minutes."""

from __future__ import annotations

import re
from typing import NamedTuple

DEFAULT_S = 600.0
EXACT_S = 60.0
"""With exact spans a minute is as much as ten of sampled ones."""
_SECOND = 1_000_000_000
_TIME = re.compile(r"(-?)(?:(?:(\d{1,4}):)?(\d{1,6}):)?(\d{1,7}(?:\.\d{1,3})?)")


class NotThere(ValueError):
    """A stretch that a recording does not have; the message is one line."""


class Asked(NamedTuple):
    """What the user asked for, in seconds from the beginning of a recording, negative ones from its end; None is not asked."""

    from_s: float | None = None
    until_s: float | None = None

    @property
    def nothing(self) -> bool:
        """Whether the choice is left to the command."""
        return self.from_s is None and self.until_s is None


USUAL = Asked()


def seconds_of(text: str) -> float:
    """`90`, `1:30`, `1:02:03`, or `-2:00` for two minutes before the end. Raises ValueError."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text[:40]!r} is not a time like 90, 1:30 or 62:03; -2:00 counts from the end")
    sign, hours, minutes, seconds = found.groups()
    whole = 3600 * int(hours or 0) + 60 * int(minutes or 0) + float(seconds)
    return -whole if sign else whole


def clock(seconds: float) -> str:
    """`62:03`, `0:08`, as on the axis of the view."""
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02}"


def choose(extent: tuple[int, int], asked: Asked, most_s: float = DEFAULT_S) -> tuple[int, int] | None:
    """Nanoseconds from and until, `most_s` where nothing says when to begin; None for all of it. Raises NotThere."""
    begin, end = extent
    length_s = (end - begin) / _SECOND
    if asked.nothing and length_s <= most_s + 5:
        return None
    until_s = min(_from_start(length_s if asked.until_s is None else asked.until_s, length_s), length_s)
    default_s = max(until_s - most_s, 0.0)
    from_s = max(_from_start(default_s if asked.from_s is None else asked.from_s, length_s), 0.0)
    if from_s >= until_s:
        raise NotThere(
            f"is {clock(length_s)} long and has nothing from {_said(asked.from_s)} until {_said(asked.until_s)}"
        )
    return begin + int(from_s * _SECOND), begin + int(until_s * _SECOND)


def _from_start(seconds: float, length_s: float) -> float:
    return seconds + length_s if seconds < 0 else seconds


def _said(seconds: float | None) -> str:
    if seconds is None:
        return "there"
    return f"-{clock(-seconds)}" if seconds < 0 else clock(seconds)


def in_words(extent: tuple[int, int], chosen: tuple[int, int]) -> str:
    """`50:00 to 60:00 of 60:00`."""
    begin, end = extent
    edges = [clock((at - begin) / _SECOND) for at in chosen]
    return f"{edges[0]} to {edges[1]} of {clock((end - begin) / _SECOND)}"

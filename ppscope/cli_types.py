"""What the command line takes: click's own types, but for the values that they let through or name in their own words."""

from __future__ import annotations

import math
import os
from typing import Any

import click


class Pid(click.IntRange):
    """A process id."""

    def __init__(self) -> None:
        super().__init__(min=1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """A whole number from 1 up."""
        try:
            return int(super().convert(value, param, ctx))
        except click.BadParameter:
            self.fail(f"{value!r} is not a process id: a whole number from 1 up", param, ctx)


TOO_LARGE = 1e9
"""Seconds, megabytes: what is larger than any use has, and small enough for every clock and counter."""


class Number(click.FloatRange):
    """A number in a range that one can count with: `nan` lies in every range for click, `inf` in one without an upper end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """A finite number, and no giant."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        if abs(number) > TOO_LARGE:
            self.fail(f"{value!r} is too large: {TOO_LARGE:.0f} at most", param, ctx)
        return number


class PathName(click.Path):
    """A path that is not empty: an empty one, a variable of the shell that was not set, would mean the current folder."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """The path as it was given."""
        if not os.fspath(value):
            self.fail("the name is empty", param, ctx)
        return super().convert(value, param, ctx)

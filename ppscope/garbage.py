"""Python's garbage collector, kept from holding up the screen and long reads.

A full collection looks at every object: the hundred thousand of the imports alone take 60 to 120 ms, and they stay anyway.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def hold() -> None:
    """Collect nothing while a command starts: what its imports make stays."""
    gc.disable()


def settle() -> None:
    """From now on collect, but never again look at what is there already."""
    gc.freeze()
    gc.enable()


def release() -> None:
    """Collect as ever, where a command ends before it has settled."""
    gc.enable()


@contextmanager
def no_collection() -> Iterator[None]:
    """Off for a block, if it is on: among very many small values without cycles, to look for them is a quarter of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

"""Python's garbage collector, kept from holding up the screen.

A full collection looks at every object: the hundred thousand of the imports alone take 60 to 120 ms, and they stay anyway.
"""

from __future__ import annotations

import gc


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

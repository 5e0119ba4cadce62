"""What a command says beside its result: one clear line on stderr."""

from __future__ import annotations

import sys
from contextlib import suppress

from ppscope.stdout import harmless


def complain(message: str, remedy: str = "") -> None:
    """One clear line on stderr, and how to mend it where that is known: one command a line."""
    text = f"ppscope: {message}\n" + "".join(f"  try: {command}\n" for command in remedy.split("\n") if command)
    with suppress(OSError):  # the terminal may be gone, and what goes on without it shall
        sys.stderr.write(harmless(text))

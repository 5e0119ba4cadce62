"""Run as a child: reads the graph rules of the package folder named in argv and writes them, msgpack, to stdout."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from ppscope.sources.rules import NotSglang, read_rules

NICE = 19


def main(argv: list[str]) -> int:
    """0, or 1 with the reason as the last line of stderr."""
    os.nice(NICE)
    try:
        book = read_rules(Path(argv[0]))
    except (NotSglang, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.buffer.write(msgspec.msgpack.encode(book))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

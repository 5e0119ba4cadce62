"""The `ppscope` command, also as `python -m ppscope`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; ctrl-c while it is still being imported ends it as ctrl-c later does."""
    try:
        from ppscope.cli import main as command_line
    except KeyboardInterrupt:
        sys.exit(130)
    command_line(prog_name="ppscope")


if __name__ == "__main__":
    main()

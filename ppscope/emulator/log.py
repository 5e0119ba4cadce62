"""Lines of the server's log: standard output, which is a file, written with one call a line so that processes do not mix theirs."""

from __future__ import annotations

import os
import time


def write_log(text: str, prefix: str = "") -> None:
    """Write `[YYYY-MM-DD HH:MM:SS PREFIX] text`; a failing write (a full disk) loses the line, as a server would."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S") + (f" {prefix}" if prefix else "")
    try:
        os.write(1, f"[{stamp}] {text}\n".encode())
    except OSError:
        return

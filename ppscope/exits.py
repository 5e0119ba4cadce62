"""Exit codes of every command; see the README."""

from __future__ import annotations

OK = 0
FINDINGS = 1
USAGE = 2
CANNOT_ATTACH = 3
TARGET_ENDED = 4
INTERRUPTED = 130

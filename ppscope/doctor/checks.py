"""All checks in the order in which they are told."""

from __future__ import annotations

from collections.abc import Callable

from ppscope.doctor import checks_access, checks_server, checks_terminal, checks_tools
from ppscope.doctor.facts import Check, Facts

ACCESS: tuple[Callable[[Facts], Check | None], ...] = (
    checks_access.memory,
    checks_access.user,
    checks_access.scope,
    checks_access.capability,
    checks_access.seccomp,
    checks_access.hidepid,
    checks_access.namespace,
)
"""Those that say why an attach was refused."""

_LOOKED_INTO = (
    *(checks_tools.python, checks_server.port, checks_server.key, checks_server.metrics),
    *(checks_server.log, checks_server.folder),
)
"""Those of a server that was looked into."""

ALL: tuple[Callable[[Facts], Check | None], ...] = (
    checks_server.found,
    *ACCESS,
    checks_tools.pyspy,
    checks_tools.python,
    checks_tools.nvml,
    checks_tools.driver,
    checks_tools.mig,
    checks_server.port,
    checks_server.key,
    checks_server.metrics,
    checks_server.log,
    checks_server.folder,
    checks_tools.shm,
    checks_terminal.locale,
    checks_terminal.size,
    checks_terminal.colours,
    checks_terminal.tmux,
)


def judge(facts: Facts, checks: tuple[Callable[[Facts], Check | None], ...] = ALL) -> list[Check]:
    """Every check that applies to these facts."""
    left_out = _LOOKED_INTO if facts.target is not None and facts.target.unlooked else ()
    return [verdict for check in checks if check not in left_out and (verdict := check(facts)) is not None]


def problems(verdicts: list[Check]) -> list[Check]:
    """Those that need something done."""
    return [check for check in verdicts if check.state == "problem"]

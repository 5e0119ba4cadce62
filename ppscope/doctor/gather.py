"""Gathers all facts for one run of the doctor, or the few that a refused attach needs."""

from __future__ import annotations

import threading
from dataclasses import replace

from ppscope.doctor import gather_own, gather_target
from ppscope.doctor.checks import ACCESS, judge, problems
from ppscope.doctor.facts import Check, Facts, Target
from ppscope.doctor.gather_tools import tools
from ppscope.target import errors
from ppscope.target.errors import AttachError
from ppscope.target.found import Found
from ppscope.target.processes import find_server, find_servers

LOOK_S = 10.0


def gather(pid: int | None) -> tuple[Facts, AttachError | None]:
    """All facts, and why there is no server where one was asked for; about six seconds at most."""
    facts = Facts(own=gather_own.own(), terminal=gather_own.terminal(), shm=gather_own.shm())
    error: AttachError | None = None
    found: Found | None = None
    try:
        found = find_server(pid) if pid is not None else _only_server()
    except AttachError as caught:
        asked = pid is not None
        error = caught if asked else None
        facts = replace(facts, missing=(caught.message, errors.for_command(caught.remedy, "doctor"), asked))
    about: list[Target] = []
    looking = threading.Thread(target=_look_into, args=(found, about), daemon=True)
    looking.start()
    facts = replace(facts, tools=tools(ask_nvml=found is None or not found.emulated))
    looking.join(LOOK_S)
    if found is not None:
        slow = replace(gather_target.brief_target(found), unlooked=f"looking into it took more than {LOOK_S:g} s")
        facts = replace(facts, target=about[0] if about else slow)
    return facts, error


def _look_into(found: Found | None, about: list[Target]) -> None:
    if found is None:
        return
    try:
        about.append(gather_target.target(found))
    except Exception as problem:  # noqa: BLE001  the other checks are told all the same
        why = f"fault in ppscope: {type(problem).__name__}: {problem}"[:200]
        about.append(replace(gather_target.brief_target(found), unlooked=why))


def _only_server() -> Found:
    servers = find_servers()
    if len(servers) == 1:
        return servers[0]
    if not servers:
        raise AttachError("no SGLang server found on this machine: only the node itself is checked")
    raise errors.several([server.line() for server in servers])


def refused(pid: int | None) -> list[Check]:
    """What stands in the way of looking into the server of a pid, worst first; fast, and without any child."""
    facts = Facts(own=gather_own.own())
    try:
        found = find_server(pid) if pid is not None else _only_server()
        facts = replace(facts, target=gather_target.brief_target(found))
    except AttachError:
        pass
    return [check for check in problems(judge(facts, ACCESS)) if check.id not in ("target.memory", "target.user")]

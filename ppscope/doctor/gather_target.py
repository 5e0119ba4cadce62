"""Facts about the server: whose it is, whether its memory opens, how its port, log and folders answer. Nothing is changed."""

from __future__ import annotations

import os
import threading
import time

from ppscope.doctor.facts import Answer, Target
from ppscope.doctor.gather_own import no_room
from ppscope.records import Server
from ppscope.sources.burst_folder import LEAST_FREE_BYTES, PARENTS, VARIABLE, FolderError, not_entered, root_of
from ppscope.sources.burst_plan import default_rounds, loop_size, make_plan
from ppscope.sources.burst_temp import check_room
from ppscope.sources.server_http import HttpError
from ppscope.sources.server_keys import Keys
from ppscope.sources.server_log import LogError, LogTail
from ppscope.sources.server_worker import Desk
from ppscope.target.entering import who
from ppscope.target.found import Found
from ppscope.target.procfs import Proc
from ppscope.target.python_build import python_files, python_of


def target(found: Found) -> Target:
    """Everything about one server; takes about five seconds at most, when its port does not answer."""
    proc = Proc()
    first = found.ranks[0].pid if found.ranks else found.launcher_pid
    python = python_of(python_files(proc, first))
    status = proc.status(found.launcher_pid)
    server = found.to_record(time.monotonic_ns())
    desk = Desk(lambda _: None, server, Keys(), threading.Event())
    closed = desk.no_http()
    log, usual = _log(found.launcher_pid)
    return Target(
        pid=found.launcher_pid,
        name=found.line(),
        user=found.user,
        uid=found.uid,
        device=found.device,
        emulated=found.emulated,
        pids_inside=status.ns_pids if status is not None else (),
        unreadable=unreadable([rank.pid for rank in found.ranks] or [found.launcher_pid]),
        python=python[0] if python else None,
        free_threaded=python[1] if python else None,
        no_http=closed,
        state=found.state,
        port=found.port,
        http=_ask(desk, "/model_info") if closed is None else None,
        metrics=_ask(desk, "/metrics") if desk.no_metrics() is None else None,
        log=log,
        log_usual=usual,
        folders=_folders(proc, first),
        no_export=_no_export(server),
    )


def brief_target(found: Found) -> Target:
    """Only what permissions are about; returns at once."""
    pids = [rank.pid for rank in found.ranks] or [found.launcher_pid]
    return Target(found.launcher_pid, found.line(), found.user, found.uid, unreadable=unreadable(pids))


def unreadable(pids: list[int]) -> tuple[int, ...] | None:
    """Those of the processes whose memory does not open for reading; the same right as py-spy's reads need. None: all are gone."""
    refused, alive = [], 0
    for pid in pids:
        try:
            os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
        except PermissionError:
            refused.append(pid)
        except OSError:
            continue
        alive += 1
    return tuple(refused) if alive else None


def _ask(desk: Desk, path: str) -> Answer:
    """One GET, and again with each key where one is wanted."""
    while True:
        try:
            with desk.client().get(path) as reply:
                status = reply.status
        except HttpError as error:
            return Answer(trouble=str(error))
        if status not in (401, 403):
            return Answer(status)
        if not desk.keys.refused(desk.port_owner()):
            return Answer(status, key=desk.keys.advice(desk.port_owner()))


def _log(pid: int) -> tuple[str, bool]:
    try:
        LogTail.open(pid).close()
    except LogError as error:
        return str(error), error.usual
    return "", True


def _no_export(server: Server) -> tuple[str, str] | None:
    slots = loop_size(server.pp_loop_size, server.pp_size)
    steps = make_plan(server.version, slots, default_rounds(slots)).num_steps
    try:
        check_room(server, steps)
    except FolderError as error:
        return str(error), error.remedy
    return None


def _folders(proc: Proc, pid: int) -> tuple[tuple[str, str], ...]:
    chosen = os.environ.get(VARIABLE)
    try:
        root = root_of(proc, pid)
    except FolderError:
        return ()
    visitor = who(proc, pid)
    return tuple(
        (name, no_room(root + name, LEAST_FREE_BYTES) or not_entered(name, root, visitor))
        for name in ((chosen,) if chosen else PARENTS)
    )

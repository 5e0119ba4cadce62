"""`rules`: which rules of an installed SGLang turn CUDA graphs off, for a running server or for settings alone."""

from __future__ import annotations

import time

from ppscope import exits
from ppscope.collect.client import CollectorProcess
from ppscope.commands.live import wait_for_server
from ppscope.complain import complain
from ppscope.diagnose.rules_command import run
from ppscope.records import End
from ppscope.session import Session
from ppscope.target.errors import AttachError, for_command
from ppscope.target.processes import resolve

_SETTINGS_S = 6.0
_Settings = dict[str, object]


def rules(pid: int | None, *, source: str | None, settings: dict[str, str], as_json: bool, show_all: bool) -> int:
    """Print the rules and which fire; returns the exit code. With `source` and no pid no server is asked."""
    if source is not None and pid is None:
        return run(source, settings, None, None, as_json, show_all=show_all)
    try:
        found = resolve(pid)
    except AttachError as error:
        complain(error.message, for_command(error.remedy, "rules"))
        return error.exit_code
    package = source or found.sglang_path_here
    if found.emulated and source is None:
        complain("this server is ppscope's emulator: there is no SGLang to read", "ppscope rules --source DIR")
        return exits.CANNOT_ATTACH
    if package is None:
        complain(
            "the installed SGLang of this server was not found", f"ppscope rules {found.launcher_pid} --source DIR"
        )
        return exits.CANNOT_ATTACH
    end, requested, resolved = _ask(found.launcher_pid)
    if end is not None:
        complain(end.message or end.reason, for_command(end.remedy, "rules"))
        return end.exit_code or exits.CANNOT_ATTACH
    if resolved is None:
        complain("the server did not tell its settings; the rules are judged by its command line alone")
    return run(package, settings, resolved, found.device, as_json, requested=requested, show_all=show_all)


def _ask(pid: int) -> tuple[End | None, _Settings | None, _Settings | None]:
    """The server's settings as asked and as resolved, by the same collector as everywhere."""
    stream = CollectorProcess(["--pid", str(pid)])
    session = Session(stream)
    try:
        end = wait_for_server(session, stream)
        deadline = time.monotonic() + _SETTINGS_S
        while end is None and session.settings.resolved is None and time.monotonic() < deadline:
            stream.wait(0.2)
            session.poll()
            end = session.end
        return end, session.settings.requested, session.settings.resolved
    finally:
        session.close()

"""`check`: look for some seconds, then say what is wrong; no screen."""

from __future__ import annotations

import json
import time

from ppscope import exits, stdout
from ppscope.collect.client import CollectorProcess, collector_arguments
from ppscope.commands.live import wait_for_server
from ppscope.complain import complain
from ppscope.diagnose.check_report import CheckReport, to_json
from ppscope.diagnose.check_text import render
from ppscope.diagnose.findings import judge
from ppscope.diagnose.occupancy import ENOUGH, GOOD, likely
from ppscope.diagnose.queue import BLOCKED_S
from ppscope.records import End
from ppscope.session import Session
from ppscope.session.dumping import burst
from ppscope.session.evidence import JUDGED_NS, gather
from ppscope.session.troubles import blind
from ppscope.target.errors import for_command
from ppscope.target.processes import has_ended
from ppscope.views import Occupancy

DUMP_CORES = 0.5
"""A look of seconds takes its dumps at twice the pace of the live view, which has all the time."""
_EXTEND = 3
_LONGER_S = 10.0
_AGAIN_S = 1.0
_AGAIN_DUMPS = 16
_FIRST_S = 3.0
_SAID_WITHIN_S = 3.0
"""The collector tells of an end within a second."""
_TO_DECIDE = 80
"""Samples that are enough where fewer leave open whether half of the slots are in use."""
_WANTED = {
    "server": "a server that serves",
    "settings": "the server's settings, which it did not answer",
    "stacks": "stacks",
    "slots": "samples enough to tell the slots in use",
    "load": "readings enough of the load",
    "rules": "the rules of the installed SGLang",
}


def most_s(seconds: float) -> float:
    """The longest look while evidence is missing: three times what was asked, and at most ten seconds more."""
    return min(_EXTEND * seconds, seconds + _LONGER_S)


def check(pid: int | None, *, as_json: bool, seconds: float, rate_hz: float) -> int:
    """Print the findings of the server of a pid; returns the exit code."""
    stdout.require()
    stream = CollectorProcess(collector_arguments(pid, rate_hz))
    session = Session(stream, dump_cores=DUMP_CORES)
    try:
        end = wait_for_server(session, stream)
        if end is None:
            end = look(session, stream, seconds) or _blind(session)
        if end is not None:
            complain(end.message or end.reason, for_command(end.remedy, "check"))
            return end.exit_code or exits.CANNOT_ATTACH
        report = report_of(session)
    finally:
        session.close()
    stdout.write_text(json.dumps(to_json(report), indent=2) + "\n" if as_json else render(report))
    return exits.FINDINGS if report.alarms else exits.OK


def _blind(session: Session) -> End | None:
    reason = blind(session)
    if reason is None:
        return None
    said = f"no stacks can be read on any rank: {reason.message}"
    return End(0, "attach_failed", said, reason.remedy, exits.CANNOT_ATTACH)


def look(session: Session, stream: CollectorProcess, seconds: float) -> End | None:
    """Take in records until enough was seen; an End record instead says why it will not be."""
    started = time.monotonic()
    asked = started + _FIRST_S - _AGAIN_S
    while True:
        stream.wait(0.2)
        session.poll()
        now = time.monotonic()
        if session.gone is not None or (session.server is not None and session.server.state == "gone"):
            return _ended()
        if session.end is not None:
            gone = session.end.reason == "target_gone"
            return session.end if not gone else End(0, "target_gone", session.end.message, exit_code=exits.TARGET_ENDED)
        if now - started >= seconds and (now - started >= most_s(seconds) or not missing(session)):
            server = session.server
            ended = server is not None and has_ended(server.launcher_pid, server.launcher_started_ticks)
            if ended and now - started < most_s(seconds) + _SAID_WITHIN_S:
                continue
            return _ended() if ended else None
        if session.server is not None and now - asked >= _AGAIN_S and "slots" in missing(session):
            asked = now
            for command in burst(session.server, _AGAIN_DUMPS, DUMP_CORES):
                session.send(command)


def _ended() -> End:
    return End(0, "target_gone", "the server ended before enough was seen", exit_code=exits.TARGET_ENDED)


def missing(session: Session) -> set[str]:
    """What is worth a longer look: the server's answers, the samples for slots, the rules that explain graphs."""
    now = session.present_ns()
    server = session.server
    if server is None or server.state == "loading":
        return {"server"}
    lacks = set()
    http = session.sources.get(("http", None))
    if session.settings.resolved is None and (http is None or http.state in ("ok", "degraded")):
        lacks.add("settings")
    active = session.active(now)
    slots = session.settings.slots(server)
    if active is None:
        lacks.update(() if blind(session) else ("stacks",))
    elif active and server.pp_size > 1 and slots is not None and not _enough(session.occupancy(now)):
        lacks.add("slots")
    if _load_is_open(session, now, active):
        lacks.add("load")
    decode, _ = session.settings.graphs(session.load.recent_batches(now), now)
    explained = session.rules.book is not None or bool(session.rules.problem) or server.emulated
    if active and decode.resolved == "off" and not explained:
        lacks.add("rules")
    return lacks


def _load_is_open(session: Session, now_ns: int, active: bool | None) -> bool:
    """Whether a few readings more would tell if requests are too few, or blocked in the queue."""
    if active:
        return session.load.in_flight(now_ns) is not None and session.load.in_flight_most(now_ns) is None
    since = session.load.queued_since(now_ns)
    return session.load.queue_is_open(now_ns) if since is None else now_ns - since < BLOCKED_S * 1e9


def _enough(found: Occupancy) -> bool:
    """Whether there are samples to say how many slots are in use: as soon as it is clear whether that is more than half of them."""
    between = likely(found)
    if found.slots is None or between is None or found.provenance == "exact":
        return found.samples >= GOOD
    undecided = between[0] <= found.slots / 2 < int(between[1])
    return found.samples >= (_TO_DECIDE if undecided else ENOUGH)


def report_of(session: Session) -> CheckReport:
    """Judge what was seen since the attach, of a longer look the last minute, once."""
    now = session.present_ns()
    seen_ns = max(now - session.started_ns, 1)
    evidence = gather(session, now, min(seen_ns, JUDGED_NS))
    assert evidence is not None, "the server is known"
    cost = session.cost
    return CheckReport(
        evidence=evidence,
        seen_s=seen_ns / 1e9,
        findings=tuple(judge(evidence)),
        overhead_cores=cost.cores if cost else None,
        host=session.hello.host if session.hello else "",
        lacking={name: _WANTED[name] for name in sorted(missing(session))},
    )

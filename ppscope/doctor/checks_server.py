"""What the server itself lets us see: its port, keys, metrics, log, and a folder for its traces."""

from __future__ import annotations

from ppscope.doctor.checks_access import right
from ppscope.doctor.facts import Check, Facts


def found(facts: Facts) -> Check | None:
    """Which server this is about."""
    if facts.target is not None:
        if facts.target.unlooked:
            return Check("target.found", "unknown", f"{facts.target.name}: {facts.target.unlooked}")
        return Check("target.found", "ok", facts.target.name)
    if facts.missing is None:
        return None
    said, remedy, asked = facts.missing
    return Check("target.found", "problem" if asked else "info", said, remedy)


def port(facts: Facts) -> Check | None:
    """Whether its API answers."""
    target = facts.target
    if target is None:
        return None
    if target.no_http is not None:
        said, remedy = target.no_http
        return Check("http.port", "problem" if remedy and target.state != "loading" else "info", said, remedy)
    if target.http is None:
        return Check("http.port", "unknown", f"port {target.port} was not asked")
    if target.http.status is None:
        loading = target.state == "loading"
        said = f"port {target.port}: {target.http.trouble}"
        return Check(
            "http.port", "info" if loading else "problem", said + (" yet: the server is loading" if loading else ""),
            "" if loading else "look into the server's log; stacks and GPUs can be seen all the same",
        )  # fmt: skip
    if target.http.status >= 500:
        return Check(
            "http.port", "problem", f"port {target.port} answers {target.http.status}", "look into the server's log"
        )
    return Check("http.port", "ok", f"port {target.port} answers")


def key(facts: Facts) -> Check | None:
    """Whether it wants a key, and gets it."""
    target = facts.target
    if target is None or target.http is None or target.http.status is None:
        return None
    if target.http.key is not None:
        said, remedy = target.http.key
        return Check("http.key", "problem", said, remedy)
    return Check("http.key", "ok", "no key is missing")


def metrics(facts: Facts) -> Check | None:
    """Whether /metrics is on."""
    target = facts.target
    if target is None or target.metrics is None:
        return None
    answer = target.metrics
    if answer.status == 404:
        said = "the server runs without --enable-metrics: load comes from its log or /v1/loads"
        return Check("http.metrics", "info", said, "start it with --enable-metrics")
    if answer.status is None or answer.status not in (200, 307, 308):
        return Check(
            "http.metrics",
            "problem",
            f"/metrics: {answer.trouble or f'answers {answer.status}'}",
            "look into the server's log",
        )
    return Check("http.metrics", "ok", "/metrics answers")


def log(facts: Facts) -> Check | None:
    """Whether the log can be followed."""
    target = facts.target
    if target is None or target.log is None:
        return None
    if not target.log:
        return Check("log", "ok", "the server's log is a file and can be read")
    remedy = "start the server with > server.log 2>&1 behind its command" if target.log_usual else right(facts)
    return Check("log", "info" if target.log_usual else "problem", target.log, remedy)


def folder(facts: Facts) -> Check | None:
    """Whether a profile burst would find a folder that the server can write to and we can read."""
    target = facts.target
    if target is None:
        return None
    if not target.folders:
        return Check("trace.folder", "unknown", "the server's files cannot be opened")
    if target.no_export is not None:
        return Check("trace.folder", "problem", *target.no_export)
    for name, why in target.folders:
        if not why:
            return Check("trace.folder", "ok", f"a profile burst can use {name}")
    reasons = "; ".join(f"{name}: {why}" for name, why in target.folders)
    remedy = (
        f"PPSCOPE_PROFILE_FOLDER=DIR ppscope attach {target.pid}  # DIR: 1 GB free, the server's user can write to it"
    )
    return Check("trace.folder", "problem", f"no folder for the traces of a profile burst: {reasons}", remedy)

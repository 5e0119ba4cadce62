"""Reads lines of SGLang's log: batch lines and a closed list of messages, in the words of 0.5.6 to 0.5.23.

Logs may hold prompts (`--log-requests`), so nothing of a line leaves that is not one of the forms below. Sources: batch lines
`scheduler_metrics_mixin.py` (to 0.5.11), `scheduler_components/metrics_reporter.py` (0.5.15, 0.5.23); capture
`model_runner.py`, `cuda_graph_runner.py`, `cuda_graph_setup.py`; the rest as in the messages themselves.
"""

from __future__ import annotations

import calendar
import math
import re

import msgspec

from ppscope.records import BatchLog, LogNote
from ppscope.target.redact import redact_text
from ppscope.whole import whole

LINE_LIMIT = 4096

CANDIDATE = re.compile(
    rb"(?:Decode|Prefill) batch|raph|hit an exception|Retract requests|rofiling|watchdog timeout|sigquit"
)
"""What every line of interest contains; a cheap first look at raw bytes."""

_PREFIX = re.compile(
    r"(?:\x1b\[[\d;]*m)*(?:\([\w:.]+ pid=\d+[^)\n]{0,60}\)(?:\x1b\[[\d;]*m)*\s*)?"
    r"\[(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?((?: [A-Z][A-Z_]*\d{1,6})*)\] "
)
_RANK = re.compile(r"([A-Z][A-Z_]*?)(\d+)")
_BATCH = re.compile(r"(Decode|Prefill) batch(?: ?\[\d+\])?[,.] ")

_REST = r"[\w .,:;=/()\[\]{}`'%+*<>-]{0,600}"
_NOTES = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("error", r"Capture (?:[\w-]+ ){0,4}graph failed"),
        ("capture", r"Capture (?:[\w-]+ ){0,4}graphs? (?:begin|end)\." + _REST),
        ("capture", r"Capture cuda graph (?:bs|num tokens) \[[\d, ]*\]"),
        ("graph_disabled", r"(?:Piecewise )?[Cc](?:uda|UDA) graph(?: and server warmup)? (?:is|are) disabled" + _REST),
        ("graph_disabled", r"Disabl(?:e|ing) (?:[\w-]+ ){0,5}(?:CUDA|cuda) graphs?\b" + _REST),
        ("graph_disabled", r"(?:[\w-]+ ){0,3}CUDA graph(?: \(\w+\))? is (?:incompatible with|not enabled for)" + _REST),
        ("graph_disabled", r"When msProbe is enabled, cuda graph is disabled"),
        ("graph_disabled", r"expert_pack selected: CUDA graph and shared-experts fusion are disabled"),
        ("error", r"[A-Z]\w{0,40} hit an exception"),
        ("error", r"(?:[A-Z]\w{0,40} )?[Ww]atchdog timeout"),
        ("error", r"Received sigquit from a child process"),
        ("error", r"KV cache pool is full\. Retract requests"),
        ("profile", r"Profiling starts"),
        ("profile", r"Stop profiling"),
        ("profile", r"Profiling done"),
    )
)


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """The prefix of a line: its time as if it were UTC, in ns, and the ranks named behind it."""

    naive_ns: int
    ranks: dict[str, int]


def parse_line(line: bytes, at_ns: int, utc_offset_ns: int | None) -> BatchLog | LogNote | None:
    """A record for a line that is of a known form, else None; `wall_ns` stays None without a known offset from UTC."""
    if len(line) > LINE_LIMIT or not CANDIDATE.search(line):
        return None
    stamp, message = split_prefix(line.decode("utf-8", "replace"))
    batch = _BATCH.match(message)
    if batch is not None:
        if stamp is None:
            return None
        wall_ns = None if utc_offset_ns is None else stamp.naive_ns - utc_offset_ns
        return _batch(batch[1].lower(), message[batch.end() :], at_ns, wall_ns, stamp.ranks)
    for kind, pattern in _NOTES:
        # Only what the server's arguments decide is logged before its log is set up, without a prefix.
        if stamp is None and kind != "graph_disabled":
            continue
        if (found := pattern.match(message)) is not None:
            return LogNote(at_ns, kind, redact_text(found[0].rstrip()), stamp.ranks.get("PP") if stamp else None)
    return None


def split_prefix(line: str) -> tuple[Stamp | None, str]:
    """The stamp of a line and the message behind it; (None, the line) where there is no stamp."""
    found = _PREFIX.match(line)
    if found is None:
        return None, line
    year, month, day, hour, minute, second = (int(found[i]) for i in range(1, 7))
    if not (
        1970 <= year <= 2200 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second <= 60
    ):
        return None, line
    seconds = calendar.timegm((year, month, day, hour, minute, second))
    nanoseconds = int((found[7] or "0").ljust(9, "0"))
    ranks = {name: int(number) for name, number in _RANK.findall(found[8])}
    return Stamp(seconds * 1_000_000_000 + nanoseconds, ranks), line[found.end() :]


def _batch(mode: str, rest: str, at_ns: int, wall_ns: int | None, ranks: dict[str, int]) -> BatchLog | None:
    fields: dict[str, str] = {}
    for part in rest.split(", "):
        name, colon, value = part.strip().rstrip(",").partition(": ")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    running = whole(fields.get("#running-req"))
    new_sequences = whole(fields.get("#new-seq"))
    if (running if mode == "decode" else new_sequences) is None:
        return None
    graph = next((value for name, value in fields.items() if name.endswith(" graph")), None)
    rate = fields.get("gen throughput (token/s)" if mode == "decode" else "input throughput (token/s)")
    # Hybrid models print one usage per pool; "pre-allocated usage" is another thing (PD decode).
    usages = [
        usage
        for name, text in fields.items()
        if name.endswith(("token usage", "mamba usage")) and (usage := _float(text)) is not None
    ]
    return BatchLog(
        at_ns,
        wall_ns,
        mode,
        dp=ranks.get("DP"),
        pp=ranks.get("PP"),
        tp=ranks.get("TP"),
        running=running,
        queued=whole(fields.get("#queue-req")),
        tokens_per_s=_float(rate),
        graph={"True": True, "False": False}.get(graph or ""),
        new_sequences=new_sequences,
        new_tokens=whole(fields.get("#new-token")),
        token_usage=max(usages, default=None),
    )


def _float(text: str | None) -> float | None:
    if text is None or len(text) > 32:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None

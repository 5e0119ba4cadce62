"""The top of the screen: what is watched, its load, and the strip of findings and source notes."""

from __future__ import annotations

from collections.abc import Sequence

from ppscope.diagnose.occupancy import in_words
from ppscope.views import BurstProgress, Finding, GraphState, Header, Occupancy, SourceNote
from ppscope.widgets.text import UNKNOWN, Line, Span, clean, crop, joined, number, percent, spread, width_of

SEVERITY = {"high": ("✖", "bad"), "medium": ("▲", "warn"), "info": ("●", "accent")}


def title_line(header: Header, state: Span, width: int) -> Line:
    """First line: model, version, layout, host and pid; at the right rate, cost and state. Less important parts give way."""
    model = clean(header.model or "model " + UNKNOWN)
    if len(model) > max(20, width // 3):
        model = "…" + model[-max(20, width // 3) + 1 :]
    parts: list[tuple[int, Span]] = [
        (0, (model, "bold")),
        (3, (f"sglang {clean(header.version)}" if header.version else f"sglang {UNKNOWN}", "")),
        (1, (header.layout, "")),
        (2, (f"{clean(header.host)} pid {header.launcher_pid}" if header.launcher_pid else clean(header.host), "dim")),
    ]
    if header.emulated:
        parts.append((1, ("emulated GPUs", "warn")))
    right_parts: list[tuple[int, Span]] = [
        # That the node is busy is worth more room than the rate alone.
        (5 if header.idle_cores is None else 1, (_rate(header), "dim")),
        (4, (f"cost {number(header.cost_cores, 'core', 2)}", "dim")),
    ]
    for level in range(6, -1, -1):
        start = ((" ppscope  ", "accent bold"), *joined([span for rank, span in parts if rank < level]))
        end = (*joined([*(span for rank, span in right_parts if rank < level), state]), (" ", ""))
        if width_of(start) + width_of(end) < width or level == 0:
            return spread(start, end, width)
    return ()


def _rate(header: Header) -> str:
    rate = number(header.stack_rate_hz, "Hz")
    return rate if header.idle_cores is None else f"{rate}, {number(header.idle_cores, 'cores idle', 1)}"


def load_line(header: Header, occupancy: Occupancy, width: int) -> Line:
    """Second line: throughput, requests, decode share and occupied slots; at the right the state of the graphs."""
    load = header.load
    start: list[Line | Span | None] = [
        ((number(load.tokens_per_s, digits=1), "bold"), (" tok/s", "dim")),
        ((("≈" if load.running_provenance == "inferred" else "") + number(load.running), "bold"), (" running", "dim")),
        ((number(load.queued), "bold" if not load.queued else "warn bold"), (" queued", "dim")),
        (("decode ", "dim"), (percent(load.decode_share), "bold")),
    ]
    if occupancy.slots is not None:
        start.append((("slots ", "dim"), (in_words(occupancy), "bold")))
    graphs: list[Line | Span | None] = [_graph("decode", header.decode_graph)]
    if any((header.prefill_graph.requested, header.prefill_graph.resolved, header.prefill_graph.observed)):
        graphs.append(_graph("prefill", header.prefill_graph))
    end = (("graphs ", "dim"), *joined(graphs), (" ", ""))
    line = ((" ", ""), *joined(start))
    shorter = (
        (("graphs ", "dim"), *joined(graphs[:1]), (" ", "")),
        (*_graph("graph", header.decode_graph), (" ", "")),
    )
    for tail in (end, *shorter):
        if width_of(line) + width_of(tail) < width:
            return spread(line, tail, width)
    return crop(line, width)


def _graph(phase: str, state: GraphState) -> Line:
    value = state.observed or state.resolved or state.requested
    role = {"on": "good", "off": "bad", "mixed": "warn"}.get(value or "", "dim")
    return ((f"{phase} ", "dim"), (value or UNKNOWN, f"{role} bold"))


def finding_line(finding: Finding, width: int, hint: bool = False) -> Line:
    """One finding in one row: severity by glyph and colour, id, summary."""
    glyph, role = SEVERITY.get(finding.severity, ("●", "dim"))
    start = ((f" {glyph} ", role), (clean(finding.id), f"{role} bold"), ("  ", ""), (clean(finding.summary), ""))
    if not hint:
        return crop(start, width)
    return spread(crop(start, width - 6), (("[f]", "key"), (" ", "")), width)


def note_line(note: SourceNote, now_ns: int, width: int) -> Line:
    """One source that is not well: for how long, why, and what would help."""
    seconds = max(0, now_ns - note.since_ns) // 1_000_000_000
    since = f" {seconds} s" if note.state == "stalled" else ""
    spans: list[Span] = [(" ▲ ", "warn"), (f"{clean(note.name)} {clean(note.state)}{since}", "warn"), ("  ", "")]
    spans.append((clean(note.message), "dim"))
    if note.remedy:
        spans += [("  → ", "faint"), (clean(note.remedy), "")]
    return crop(tuple(spans), width)


def gone_line(header: Header, reason: str | None, width: int, live: bool = True) -> Line:
    """The banner of a server that is gone, with what can be attached to instead while the view is `live`."""
    text = clean(reason) if reason else f"the server is gone (pid {header.launcher_pid})"
    if not live or not header.candidates:
        others: Span = ("  no other server was found" if live else "", "dim")
        return crop(((" ■ ", "bad"), (text, "bad bold"), others), width)
    pid, name = header.candidates[0]
    more = f" and {len(header.candidates) - 1} more" if len(header.candidates) > 1 else ""
    return crop(
        ((" ■ ", "bad"), (text, "bad bold"), ("   ", ""), ("a", "key"), (f" attach to {pid} {clean(name)}{more}", "")),
        width,
    )


def begin_anew(header: Header) -> str:
    """What to type once ppscope's own collector has ended."""
    pid = header.launcher_pid
    if header.state == "gone":
        pid = header.candidates[0][0] if header.candidates else 0
    return f"ppscope's collector ended; `ppscope attach{f' {pid}' if pid else ''}` begins anew"


def ended_line(header: Header, reason: str, width: int) -> Line:
    """The banner of a view whose collector has ended, whatever the server does."""
    why = reason.partition("unexpectedly: ")[2] or reason
    return crop(((" ■ ", "bad"), (begin_anew(header), "bad bold"), (f"   {clean(why)}", "dim")), width)


BURST_SHOWN_NS = 20_000_000_000


def burst_line(progress: BurstProgress | None, now_ns: int, width: int) -> Line | None:
    """How far a profile burst is, and for a while how it ended; None when there is nothing to say."""
    if progress is None or (not progress.active and now_ns - progress.at_ns > BURST_SHOWN_NS):
        return None
    glyph, role = {"done": ("●", "good"), "failed": ("✖", "bad"), "cancelled": ("■", "dim")}.get(
        progress.state, ("◌", "accent")
    )
    spans: list[Span] = [(f" {glyph} ", role), (f"burst {progress.state}", f"{role} bold")]
    if progress.active:
        spans.append((f" {progress.seconds:.0f} s", ""))
    spans.append((f"  {clean(progress.message)}", "" if progress.active else "dim"))
    if progress.remedy:
        spans += [("  → ", "faint"), (clean(progress.remedy), "")]
    return crop(tuple(spans), width)


def strip_lines(
    header: Header, findings: Sequence[Finding], gone: Line | None, now_ns: int, width: int, rows: int
) -> list[Line]:
    """At most `rows` lines, most urgent first: banner, findings above info, notes, the rest."""
    lines: list[Line] = [gone] if gone else []
    urgent = [finding for finding in findings if finding.severity in {"high", "medium"}]
    rest = [finding for finding in findings if finding.severity not in {"high", "medium"}]
    room = max(0, rows - len(lines) - bool(header.notes))
    lines += [finding_line(finding, width, hint=place == 0) for place, finding in enumerate(urgent[:room])]
    lines += [note_line(note, now_ns, width) for note in header.notes]
    lines += [finding_line(finding, width) for finding in [*urgent[room:], *rest]]
    hidden = len(lines) - rows
    if hidden > 0:
        lines = lines[:rows]
        lines[-1] = spread(crop(lines[-1], width - 12), ((f"+{hidden} more ", "dim"),), width)
    return lines

"""The result of `ppscope check` as plain text, at most 80 columns wide, to paste into an issue."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable

from ppscope.diagnose.check_report import CheckReport
from ppscope.diagnose.evidence import Evidence, StageEvidence
from ppscope.diagnose.occupancy import ENOUGH, in_words
from ppscope.diagnose.say import no_pass, plural
from ppscope.figures import UNKNOWN, held, loose, share
from ppscope.views import Finding, GraphState

WIDTH = 80
DECIDES_S, LONGEST_S = 5, 600
"""The default of --seconds, and the most that it takes."""
_SHOWN = 0.05
_SIGNS = {"high": "✖", "medium": "▲", "info": "·"}
_CURL = re.compile(r"curl -X POST \S+ -H '[^']*' -d '[^']*'")


def render(report: CheckReport) -> str:
    """What was seen, then the findings, gravest first."""
    evidence = report.evidence
    lines = [*_head(report), *_graphs(evidence), "", *_stages(evidence), ""]
    for finding in report.findings:
        lines += [*_finding(finding), ""]
    if not report.findings:
        lines += [*_fit(_nothing(evidence), ""), ""]
    cost = "" if report.overhead_cores is None else f" at a cost of {report.overhead_cores:.2f} core"
    judged = f", judged by its last {evidence.seconds:.0f} s," if report.looked_s > evidence.seconds + 0.5 else ""
    lines.append(f"seen for {report.looked_s:.0f} s{judged}{cost}".rstrip(","))
    if report.lacking:
        lines += _fit(f"stopped without {'; '.join(report.lacking.values())}: {_longer(report.looked_s)}")
    return "\n".join(lines).rstrip() + "\n"


def _longer(seen_s: float) -> str:
    """The look that may tell more: what decides as a rule, or twice what was seen."""
    wanted_s = DECIDES_S if seen_s < DECIDES_S else min(math.ceil(2 * seen_s), LONGEST_S)
    return f"--seconds {wanted_s} may tell more"


def _nothing(evidence: Evidence) -> str:
    if evidence.server.state != "serving":
        return f"The server is {evidence.server.state}: nothing to measure yet."
    if evidence.idle:
        return "The server is idle: nothing to measure. Send it requests and check again."
    if evidence.active is None:
        return "No stacks were seen, so nothing can be said of the pipeline."
    if evidence.active is False:
        return f"{_waiting(evidence)} no forward pass began for {no_pass(evidence)}: the host phases say where the stages wait."
    return "Nothing found."


def _waiting(evidence: Evidence) -> str:
    load = evidence.load
    running = load.running if load.running_provenance == "exact" else None
    count = max(evidence.in_flight or 0, (running or 0) + (load.queued or 0))
    return f"{plural(count, 'request is', 'requests are')} open and" if count else "A stage waits with a batch and"


def _head(report: CheckReport) -> list[str]:
    evidence = report.evidence
    server, load, slots = evidence.server, evidence.load, evidence.occupancy
    layout = f"PP{server.pp_size}×TP{server.tp_size}" + (f"×DP{server.dp_size}" if server.dp_size > 1 else "")
    parts = [
        _clean(server.model or "model –"),
        f"sglang {_clean(server.version or UNKNOWN)}",
        layout,
        f"{_clean(report.host)} pid {server.launcher_pid}".strip(),
        *(["emulated"] if server.emulated else []),
    ]
    about = "≈" if load.running_provenance == "inferred" else ""
    facts = [
        f"{_number(load.tokens_per_s, 1)} tok/s",
        f"{about if load.running is not None else ''}{_number(load.running)} running",
        f"{_number(load.queued)} queued",
    ]
    if slots.slots is not None:
        few = f", too few to say (needs {ENOUGH})" if slots.mean is None else ""
        facts.append(
            f"slots {in_words(slots)} ({slots.samples} {'launches' if slots.provenance == 'exact' else 'samples'}{few})"
        )
    return [*_fit(" · ".join(parts)), *_fit(" · ".join(facts))]


def _graphs(evidence: Evidence) -> list[str]:
    return [_graph(name, state) for name, state in (("decode", evidence.decode), ("prefill", evidence.prefill))]


def _graph(name: str, state: GraphState) -> str:
    source = f" ({state.observed_source})" if state.observed is not None and state.observed_source else ""
    return (
        f"{name + ' graphs':<15} requested {state.requested or UNKNOWN} · resolved {state.resolved or UNKNOWN}"
        f" · observed {state.observed or UNKNOWN}{source}"
    )


def _stages(evidence: Evidence) -> list[str]:
    least = share(_SHOWN)
    lines = [f"{'stage':<7}{'gpu':<8}{'power':>13}{'util':>7}{'busy':>7}  host phases, {least} and more"]
    for stage in evidence.stages:
        label = f"PP{stage.pp}" if evidence.server.dp_size < 2 else f"D{stage.dp}PP{stage.pp}"
        head = f"{label:<7}{_gpus(stage):<8}{_power(stage):>13}{_util(stage):>7}{share(stage.busy):>7}  "
        told = sorted((pair for pair in stage.phases.items() if pair[1] >= _SHOWN), key=lambda pair: -pair[1])
        # A phase and its share are not torn apart.
        words = [
            f"{evidence.labels.get(name, name)} {share(part)}".replace(" ", "\N{NO-BREAK SPACE}") for name, part in told
        ]
        phases = textwrap.wrap(", ".join(words) or UNKNOWN, WIDTH - len(head), break_long_words=False)
        lines.append(head + phases[0])
        lines += [" " * len(head) + more for more in phases[1:]]
    return [loose(line) for line in lines]


def _gpus(stage: StageEvidence) -> str:
    indices = sorted({rank.gpu.index for rank in stage.ranks if rank.gpu is not None})
    text = ",".join(map(str, indices)) or UNKNOWN
    return text if len(text) < 8 else f"{indices[0]}–{indices[-1]}"


def _power(stage: StageEvidence) -> str:
    powers = [rank.gpu.power_w for rank in stage.ranks if rank.gpu is not None and rank.gpu.power_w is not None]
    limits = [rank.gpu.power_limit_w for rank in stage.ranks if rank.gpu is not None and rank.gpu.power_limit_w]
    if not powers:
        return UNKNOWN
    limit = f"/{sum(limits) / len(limits):.0f}" if limits else ""
    return f"{sum(powers) / len(powers):.0f}{limit} W"


def _util(stage: StageEvidence) -> str:
    utils = [
        rank.gpu.util_percent for rank in stage.ranks if rank.gpu is not None and rank.gpu.util_percent is not None
    ]
    return f"{sum(utils) / len(utils):.0f} %" if utils else UNKNOWN


def _number(value: float | None, digits: int = 0) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def _finding(finding: Finding) -> list[str]:
    stage = "" if finding.stage is None else f" (stage {finding.stage})"
    lines = _fit(
        f"{_SIGNS.get(finding.severity, '·')} {finding.id}{stage}, {finding.severity}: {finding.summary}", "    "
    )
    for line in finding.evidence:
        lines += _fit(f"    {line}", "      ")
    lines += [line for file, number in finding.source for line in _fit(f"    at sglang/{file}:{number}", "      ")]
    return [*lines, *_remedy(finding.remedy)]


def _remedy(text: str) -> list[str]:
    """Wrapped text; a curl command on lines of its own that can be pasted."""
    lines: list[str] = []
    start = 0
    for match in _CURL.finditer(text):
        lines += _fit(f"    {'→ ' if not lines else '  '}{text[start : match.start()].strip()}", "      ")
        lines += [f"      {part}" for part in _continued(match[0])]
        start = match.end()
    rest = text[start:].lstrip(". ").strip()
    if rest:
        lines += _fit(f"    {'→ ' if not lines else '  '}{rest}", "      ")
    return lines


def _continued(command: str) -> Iterable[str]:
    head, header, body = re.split(r" (?=-[Hd] ')", command)
    return (f"{head} \\", f"  {header} \\", f"  {body}")


def _fit(line: str, indent: str = "  ") -> list[str]:
    line = _clean(line)
    if len(line) <= WIDTH:
        return [line]
    first = " " * (len(line) - len(line.lstrip()))
    wrapped = textwrap.wrap(
        held(line.strip()), WIDTH, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False
    )
    return [loose(part) for part in wrapped]


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)

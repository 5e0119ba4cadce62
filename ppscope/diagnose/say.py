"""Small words that several findings share: figures, settings, the address of the server."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ppscope import figures
from ppscope.diagnose.evidence import ACTIVE_S, Evidence
from ppscope.diagnose.settings import resolved_value

share = figures.share


def window(evidence: Evidence) -> str:
    """`30 s`."""
    return f"{evidence.seconds:.0f} s"


def no_pass(evidence: Evidence) -> str:
    """For how long no forward pass was seen of a server that is not at work, at least: `6 s`."""
    return f"{min(evidence.seconds, ACTIVE_S):.0f} s"


def plural(count: int, one: str, many: str = "") -> str:
    """`1 stage`, `3 stages`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def stages(numbers: Iterable[int]) -> str:
    """`stage 3`, `stages 0, 1`."""
    listed = sorted(numbers)
    return f"stage{'s' if len(listed) != 1 else ''} {', '.join(map(str, listed))}"


def span(values: Iterable[float], unit: str) -> str:
    """The range of some figures: `84–88 W`."""
    listed = sorted(values)
    low, high = f"{listed[0]:.0f}", f"{listed[-1]:.0f}"
    return f"{low} {unit}" if low == high else f"{low}–{high} {unit}"


def setting(evidence: Evidence, name: str) -> object:
    """A setting as resolved, else as asked; None where neither says it."""
    value = resolved_value(evidence.resolved, name)
    if value is None and evidence.resolved:
        value = evidence.resolved.get(name)
    return evidence.requested.get(name) if value is None and evidence.requested else value


def number(evidence: Evidence, name: str) -> int | None:
    """A setting that is a whole number."""
    value = setting(evidence, name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def version(evidence: Evidence) -> tuple[int, ...] | None:
    """`0.5.6.post2` as (0, 5, 6); None when it is not known."""
    match = re.match(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", evidence.server.version or "")
    return tuple(map(int, match.groups())) if match else None


def url(evidence: Evidence, path: str) -> str:
    """An address of the server, for a command to paste."""
    server = evidence.server
    host = "127.0.0.1" if server.host in (None, "", "0.0.0.0", "::") else server.host
    scheme = "https" if server.tls else "http"
    return f"{scheme}://{f'[{host}]' if ':' in str(host) else host}:{server.port or 'PORT'}{path}"


def busy_by_stage(evidence: Evidence) -> dict[int, float] | None:
    """Busy share of every stage, if all have it from the same source; the mean over replicas."""
    if not evidence.stages or len({stage.busy_source for stage in evidence.stages}) != 1:
        return None
    shares: dict[int, list[float]] = {}
    for stage in evidence.stages:
        if stage.busy is None:
            return None
        shares.setdefault(stage.pp, []).append(stage.busy)
    return {pp: sum(values) / len(values) for pp, values in sorted(shares.items())}


def busy_source(evidence: Evidence) -> str:
    """Where the busy shares are from, in words."""
    source = evidence.stages[0].busy_source if evidence.stages else None
    return {
        "trace": "kernels in a trace",
        "probe": "CUDA events of the probe",
        "metric": "SGLang's own forward occupancy",
        "host": "forward pass on the CPU, sampled stacks",
    }.get(source or "", "unknown")


def busy_provenance(evidence: Evidence) -> str:
    """Provenance of a claim that rests on busy shares."""
    source = evidence.stages[0].busy_source if evidence.stages else None
    return "sampled" if source == "host" else "exact"


def gpu_source(evidence: Evidence) -> str:
    """Who read the GPUs: NVML, or nobody, because they are emulated."""
    return "emulated GPUs" if evidence.server.emulated else "NVML"

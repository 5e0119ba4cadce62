"""Are CUDA graphs asked for, resolved on, and seen to replay? Three facts for decode and three for prefill.

Two generations of settings: up to 0.5.11 `disable_cuda_graph`, `disable_piecewise_cuda_graph` or `enable_piecewise_cuda_graph`
(0.5.6, 0.5.9); from 0.5.15 on `cuda_graph_config.{decode,prefill}`. The old field stays in the new one's `/server_info` and is false
there though no graph runs (seen on 0.5.15 and 0.5.23), so where there is a `cuda_graph_config` nothing else decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ppscope.records import BatchLog, LogNote, Metric
from ppscope.views import GraphState
from ppscope.whole import whole

Settings = Mapping[str, object]

MOSTLY = 0.95
"""Share of passes from which a state is no longer `mixed`."""

_PASSES = "sglang:cuda_graph_passes_total"
_SIZES = re.compile(r"\bbs[= ]\[([\d, ]*)\]")


class Sizes(NamedTuple):
    """The batch sizes of the decode graphs. `source` is `captured` (the runner's own word, or the log's) or `configured`."""

    values: tuple[int, ...]
    source: str


def is_new_generation(resolved: Settings | None) -> bool | None:
    """Whether the server has `cuda_graph_config` (0.5.15 on); None without its settings."""
    return "cuda_graph_config" in resolved if resolved else None


def graph_states(
    requested: Settings | None,
    resolved: Settings | None,
    batches: Iterable[BatchLog] = (),
    metrics: Iterable[Metric] = (),
) -> tuple[GraphState, GraphState]:
    """The state of decode and of prefill graphs.

    `batches` and `metrics` are those of the window that is judged, oldest first; only what changed within it counts.
    """
    counts = _passes(metrics)
    lines = list(batches)
    states = []
    for phase in ("decode", "prefill"):
        observed, source = _observed(phase, lines, counts)
        states.append(GraphState(_requested(phase, requested, resolved), _resolved(phase, resolved), observed, source))
    return states[0], states[1]


def _requested(phase: str, requested: Settings | None, resolved: Settings | None) -> str | None:
    if requested is None:
        return None
    new = is_new_generation(resolved)
    # By strength: from 0.5.15 on a backend in the JSON counts before one of the selector, and both before the switches.
    backend = asked_config(requested, phase).get("backend") or requested.get(f"cuda_graph_backend_{phase}")
    if backend is not None:
        return "off" if backend == "disabled" else "on"
    if phase == "prefill":
        if requested.get("disable_piecewise_cuda_graph") is True:
            return "off"
        asked = ("enable_piecewise_cuda_graph", "enforce_piecewise_cuda_graph", "enable_breakable_cuda_graph")
        if any(requested.get(name) is True for name in asked):
            return "on"
    if requested.get(f"disable_{phase}_cuda_graph") is True:
        return "off"
    # Up to 0.5.11 it is about decode alone, from 0.5.15 on about both (cuda_graph_hook.py 55-57 of 0.5.23).
    off = requested.get("disable_cuda_graph") is True and (phase == "decode" or new)
    return "off" if off else None


def _resolved(phase: str, resolved: Settings | None) -> str | None:
    if not resolved:
        return None
    if is_new_generation(resolved):
        backend = _phase(resolved["cuda_graph_config"], phase).get("backend")
        if not isinstance(backend, str):
            return None
        if phase == "decode" and backend != "disabled":
            captured = [state["decode_cuda_graph_bs"] for state in _states(resolved) if "decode_cuda_graph_bs" in state]
            if captured and not all(captured):
                return "mixed" if any(captured) else "off"
        return "off" if backend == "disabled" else "on"
    if phase == "decode":
        return _switch(resolved.get("disable_cuda_graph"), "off", "on")
    if "disable_piecewise_cuda_graph" in resolved:
        return _switch(resolved["disable_piecewise_cuda_graph"], "off", "on")
    return _switch(resolved.get("enable_piecewise_cuda_graph"), "on", "off")


def _observed(phase: str, lines: Sequence[BatchLog], counts: Mapping[str, float]) -> tuple[str | None, str | None]:
    replayed, eager = counts.get(f"{phase}_cuda_graph", 0.0), counts.get(f"{phase}_none", 0.0)
    if replayed + eager > 0:
        return _share(replayed, eager), "metrics"
    flags = [line.graph for line in lines if line.mode == phase and line.graph is not None]
    if flags:
        return _share(flags.count(True), flags.count(False)), "log"
    return None, None


def _share(replayed: float, eager: float) -> str:
    share = replayed / (replayed + eager)
    return "on" if share >= MOSTLY else "off" if share <= 1 - MOSTLY else "mixed"


def _passes(metrics: Iterable[Metric]) -> dict[str, float]:
    """Passes per mode within the window, over all places. `sglang:is_cuda_graph` is no word on it: no release sets it (0.5.6 to 0.5.23)."""
    first: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    last: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    counts: dict[str, float] = {}
    for metric in metrics:
        if metric.name == _PASSES:
            key = (dict(metric.labels).get("mode", ""), metric.labels)
            if key not in first or metric.value < last[key]:
                first[key] = metric.value
            last[key] = metric.value
    for (mode, labels), value in last.items():
        counts[mode] = counts.get(mode, 0.0) + value - first[mode, labels]
    return counts


def captured_sizes(resolved: Settings | None, notes: Iterable[LogNote] = ()) -> Sizes | None:
    """The decode graphs' batch sizes, best word first: the runner's (0.5.23), the log's, the settings'; None without any."""
    for state in _states(resolved or {}):
        values = state.get("decode_cuda_graph_bs")
        if isinstance(values, list):
            return Sizes(_numbers(values), "captured")
    logged = None
    for note in notes:
        if note.kind == "capture" and "prefill" not in note.text and "draft" not in note.text:
            found = _SIZES.search(note.text)
            logged = _numbers(found[1].split(",")) if found else logged
    if logged:
        return Sizes(logged, "captured")
    if not resolved or _resolved("decode", resolved) == "off":
        return None
    config = _phase(resolved.get("cuda_graph_config"), "decode")
    values = config.get("bs") if is_new_generation(resolved) else resolved.get("cuda_graph_bs")
    return Sizes(_numbers(values), "configured") if isinstance(values, list) and values else None


def _states(resolved: Settings) -> list[Settings]:
    states = resolved.get("internal_states")
    return [state for state in states if isinstance(state, Mapping)] if isinstance(states, list) else []


def asked_config(requested: Settings | None, phase: str) -> Settings:
    """What `--cuda-graph-config` of a command line says of a phase; empty without it."""
    return _phase((requested or {}).get("cuda_graph_config"), phase)


def _phase(config: object, phase: str) -> Settings:
    """The part of a `cuda_graph_config` about one phase; on the command line it may be JSON text."""
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except (ValueError, RecursionError):
            return {}
    part = config.get(phase) if isinstance(config, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _switch(value: object, if_true: str, if_false: str) -> str | None:
    return {True: if_true, False: if_false}.get(value) if isinstance(value, bool) else None


def _numbers(values: Iterable[object]) -> tuple[int, ...]:
    return tuple(sorted({number for value in values if (number := whole(str(value).strip(), 7)) is not None}))

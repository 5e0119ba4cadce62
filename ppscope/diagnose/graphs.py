"""Why decode does not replay CUDA graphs."""

from __future__ import annotations

from ppscope.diagnose import say
from ppscope.diagnose.evidence import Evidence
from ppscope.diagnose.graph_reasons import decode_sizes, runtime_reasons
from ppscope.diagnose.graph_rules import Answer, Judged
from ppscope.diagnose.graph_state import asked_config, is_new_generation
from ppscope.diagnose.rules_text import short
from ppscope.target.server_info import CONFIG_PROBLEM
from ppscope.views import Finding

EAGER_SHARE = 0.5
_RULES_SHOWN = 3


def disabled(evidence: Evidence) -> Finding | None:
    """Decode graphs are off by what was resolved at start-up: by a flag, or by a rule of the installed source."""
    decode = evidence.decode
    off = decode.resolved == "off" or (decode.resolved is None and decode.requested == decode.observed == "off")
    if not off or decode.observed in ("on", "mixed") or evidence.active is not True or not _may_decode(evidence):
        return None
    fired = evidence.rule.fired if evidence.rule is not None else ()
    flag = fired[0].rule.kind == "flag" if fired else decode.requested == "off"
    if flag:
        return _by_flag(evidence, fired)
    if not fired and evidence.server.device == "cpu":
        return None  # without torch.compile there are no graphs on a CPU, and nothing turned them off
    if not fired and (evidence.requested is None or CONFIG_PROBLEM in evidence.requested):
        return None
    return _by_rule(evidence, fired)


def _may_decode(evidence: Evidence) -> bool:
    """Whether decode passes are this server's work at all: a prefill node of a disaggregated pair has none, nor have embeddings."""
    resolved = evidence.resolved or {}
    other = resolved.get("disaggregation_mode") == "prefill" or resolved.get("is_embedding") is True
    return not other and evidence.decodes is not False


def _facts(evidence: Evidence) -> list[str]:
    decode = evidence.decode
    asked = decode.requested or "default"
    if decode.requested is None and CONFIG_PROBLEM in (evidence.requested or {}):
        asked = "not known (its --config file could not be read)"
    lines = [f"requested {asked}, resolved {decode.resolved or 'not known'}"]
    if decode.observed is not None:
        seen = {"metrics": "the server's counter of passes", "log": "the log's cuda-graph flag"}
        lines.append(
            f"observed {decode.observed} over {say.window(evidence)} ({seen.get(decode.observed_source or '')})"
        )
    return lines


def _by_flag(evidence: Evidence, fired: tuple[Judged, ...]) -> Finding:
    flag = _flag(evidence, fired)
    later = evidence.rule.without if evidence.rule is not None and fired else None
    if later is None:
        what = "" if evidence.server.emulated else "ppscope rules PID tells whether graphs come on then"
    elif later.fired:
        what = f"graphs stay off all the same: {_rule_line(later.fired[0])}"
    elif later.undecided:
        what = (
            f"no rule that can be decided keeps graphs off then ({len(later.undecided)} cannot be; ppscope rules PID)"
        )
    else:
        what = "no rule of the installed source keeps graphs off then"
    return Finding(
        id="graphs.disabled_by_flag",
        severity="high",
        stage=None,
        summary=f"decode runs eager: {flag}",
        evidence=(*_facts(evidence), *([f"without the flag: {what}"] if what else [])),
        remedy=f"Start the server without {flag}. Cost: start-up captures graphs, and they take GPU memory.",
        provenance="exact" if evidence.decode.resolved is not None else "inferred",
        source=_sources(fired[:1]),
    )


def _flag(evidence: Evidence, fired: tuple[Judged, ...]) -> str:
    if fired:
        return short(fired[0].rule, {})
    requested = evidence.requested or {}
    for name in ("disable_cuda_graph", "disable_decode_cuda_graph"):
        if requested.get(name) is True:
            return "--" + name.replace("_", "-")
    backend = requested.get("cuda_graph_backend_decode")
    return f"--cuda-graph-backend-decode {backend}" if backend is not None else "--cuda-graph-config"


def _by_rule(evidence: Evidence, fired: tuple[Judged, ...]) -> Finding:
    lines = _facts(evidence)
    lines += [_rule_line(item) for item in fired[:_RULES_SHOWN]]
    lines += [f"log: {item.rule.message}" for item in fired[:1] if item.rule.message]
    if len(fired) > _RULES_SHOWN:
        lines.append(f"and {len(fired) - _RULES_SHOWN} more rules")
    if fired:
        summary = f"decode runs eager: a rule of the installed SGLang turns graphs off ({short(fired[0].rule, {})})"
        remedy = _remedy(fired[0], evidence.rule)
    else:
        summary = "decode runs eager: the server turned graphs off by itself"
        why = evidence.rules_problem or (
            f"{len(evidence.rule.undecided)} rules of the installed source cannot be decided from settings"
            if evidence.rule is not None
            else "the installed source has not been read so far"
        )
        lines.append(f"which rule did is not known: {why}")
        lines += _log_says(evidence)
        remedy = "ppscope rules PID lists every rule of the installed source that can turn decode graphs off."
    return Finding(
        id="graphs.disabled_by_rule",
        severity="high",
        stage=None,
        summary=summary,
        evidence=tuple(lines),
        remedy=remedy,
        provenance="exact" if fired else "inferred",
        source=_sources(fired[:_RULES_SHOWN]),
    )


def _log_says(evidence: Evidence) -> list[str]:
    """The log's own words on why decode graphs are off; lines about prefill and draft graphs are others."""
    said = [note.text for note in evidence.log_notes if note.kind == "graph_disabled"]
    other = ("prefill", "piecewise", "draft", "breakable")
    return [f"log: {text}" for text in dict.fromkeys(said) if not any(word in text.lower() for word in other)][:2]


def _remedy(first: Judged, answer: Answer | None) -> str:
    text = f"Start the server so that this is no longer true: {short(first.rule, {})}."
    rest = answer.without if answer is not None else None
    if rest is None or not rest.fired:
        return text
    return f"{text} Then {say.plural(len(rest.fired), 'more rule')} must be dealt with: {_rule_line(rest.fired[0])}"


def _rule_line(item: Judged) -> str:
    return f"{item.rule.file}:{item.rule.line} in {item.rule.function}(): if {short(item.rule, {})}"


def _sources(items: tuple[Judged, ...]) -> tuple[tuple[str, int], ...]:
    return tuple((item.rule.file, item.rule.line) for item in items)


def batch_over_captured(evidence: Evidence) -> Finding | None:
    """Decode micro-batches are larger than the largest captured graph, so they run eager on every stage."""
    captured = evidence.captured
    if captured is None or not captured.values or evidence.decode.resolved == "off" or evidence.active is not True:
        return None
    largest, seen = captured.values[-1], decode_sizes(evidence)
    over = [size for size in seen.sizes if size > largest]
    mean_over = evidence.micro_batch is not None and evidence.micro_batch > largest
    if not mean_over and (len(over) < 2 or 2 * len(over) < len(seen.sizes)):
        return None
    if evidence.replay_share is not None and evidence.replay_share >= EAGER_SHARE:
        return None
    size = max([*over, round(evidence.micro_batch or 0)])
    lines = [f"largest captured size {largest} ({captured.source}, {len(captured.values)} sizes)"]
    if over:
        lines.append(
            f"{len(over)} of {len(seen.sizes)} decode lines of the log have a micro-batch above it, up to {max(over)}"
        )
    if mean_over:
        lines.append(f"mean decode micro-batch {evidence.micro_batch:.0f}")
    if seen.across_dp:
        lines.append("with DP attention the largest micro-batch over all replicas counts")
    if evidence.replay_share is not None:
        lines.append(
            f"{say.share(1 - evidence.replay_share)} of decode passes eager over {say.window(evidence)} ({evidence.replay_source})"
        )
    return Finding(
        id="graphs.batch_over_captured",
        severity="high",
        stage=None,
        summary=f"decode micro-batches of {size} are above the largest captured graph of {largest}: they run eager",
        evidence=tuple(lines),
        remedy=f"{_capture(evidence, _next_size(size))} (cost: longer capture at start-up, more GPU memory for graphs), or"
        f" --pp-max-micro-batch-size {largest}, which caps running requests at {largest} × slots.",
        provenance="exact" if over else "sampled",
    )


def _capture(evidence: Evidence, size: int) -> str:
    """The flag that has this size captured: what was listed counts before a largest size, and JSON before both (0.5.15 on)."""
    requested, new = evidence.requested or {}, is_new_generation(evidence.resolved)
    config = asked_config(requested, "decode")
    suffix = "-decode" if new else ""
    if config.get("bs"):
        return f"add {size} to decode.bs in --cuda-graph-config"
    if requested.get("cuda_graph_bs_decode") or requested.get("cuda_graph_bs"):
        return f"add {size} to the sizes of --cuda-graph-bs{suffix}"
    if config.get("max_bs"):
        return f"decode.max_bs {size} in --cuda-graph-config"
    return f"--cuda-graph-max-bs{suffix} {size}"


def _next_size(size: int) -> int:
    step = 8 if size <= 256 else 16 if size <= 512 else 32
    return -(-size // step) * step


def eager_decode(evidence: Evidence) -> Finding | None:
    """Graphs are resolved on, yet most decode passes are eager, and no batch size explains it."""
    share = evidence.replay_share
    if evidence.decode.resolved not in ("on", "mixed") or share is None or share >= EAGER_SHARE:
        return None
    if evidence.active is not True or batch_over_captured(evidence) is not None:
        return None
    if evidence.server.device == "cpu" and not (evidence.resolved or {}).get("enable_torch_compile"):
        return None  # up to 0.5.15 the setting stays on there though no graph can be captured (ModelRunner.init_device_graphs)
    reasons = runtime_reasons(evidence)
    return Finding(
        id="graphs.eager_decode",
        severity="high",
        stage=None,
        summary=f"{say.share(1 - share)} of decode passes run eager although decode graphs are on",
        evidence=(
            f"resolved on, {say.share(share)} of decode passes replayed over {say.window(evidence)} ({evidence.replay_source})",
            *(reason.text for reason in reasons),
        ),
        remedy=next((reason.remedy for reason in reasons if reason.remedy), None)
        or "Take a short trace and read it: ppscope trace DIR names the eager launches and where they come from.",
        provenance="exact",
    )

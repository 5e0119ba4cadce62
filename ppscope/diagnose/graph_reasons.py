"""Why a decode pass may run eager while graphs are on: what the runner checks for every batch (`can_run`, 0.5.6 to 0.5.23)."""

from __future__ import annotations

from typing import NamedTuple

from ppscope.diagnose import say
from ppscope.diagnose.draft import draft_notes
from ppscope.diagnose.evidence import Evidence


class Reason(NamedTuple):
    """A reason in one line; `remedy` is empty where nothing can be changed or nobody can know."""

    text: str
    remedy: str = ""


class Sizes(NamedTuple):
    """Decode micro-batches of the log, the first stage's; `across_dp` where each is the largest over the replicas."""

    sizes: tuple[int, ...]
    across_dp: bool


def decode_sizes(evidence: Evidence) -> Sizes:
    """The sizes the captured range is compared with: with DP attention the maximum over replicas decides."""
    lines = [line for line in evidence.batches if line.mode == "decode" and line.running]
    first = min((line.pp or 0 for line in lines), default=0)
    lines = [line for line in lines if (line.pp or 0) == first]
    across = evidence.server.dp_size > 1 and say.setting(evidence, "enable_dp_attention") is True
    if not across:
        return Sizes(tuple(line.running or 0 for line in lines), False)
    latest: dict[int, int] = {}
    sizes = []
    for line in lines:
        latest[line.dp or 0] = line.running or 0
        sizes.append(max(latest.values()))
    return Sizes(tuple(sizes), True)


def _draft(evidence: Evidence) -> str:
    """What was seen of the draft model's own graphs."""
    eager, replayed = evidence.draft_eager, evidence.draft_replayed
    if eager is None or replayed is None or max(eager, replayed) == 0:
        return "the draft model has graphs of its own, and whether they replay was not seen"
    what = "replays" if replayed >= eager else "runs eager"
    return f"the draft model {what} ({say.share(replayed)} of the time in its replays, {say.share(eager)} in its eager launches, sampled)"


def runtime_reasons(evidence: Evidence) -> list[Reason]:
    """What could make passes eager one by one, most telling first, by the settings and the log."""
    found = []
    sizes = decode_sizes(evidence).sizes
    captured = evidence.captured.values if evidence.captured is not None else ()
    if say.setting(evidence, "disable_cuda_graph_padding") is True:
        missing = sorted({size for size in sizes if size not in captured})
        if missing and captured:
            found.append(
                Reason(
                    f"padding is disabled and sizes {', '.join(map(str, missing[:6]))} were not captured",
                    "Start without --disable-cuda-graph-padding, so that a batch is padded up to the next captured size.",
                )
            )
    if say.setting(evidence, "enable_mixed_chunk") is True:
        found.append(
            Reason(
                "mixed chunks are on: decode tokens that ride with a prefill chunk run in an eager pass, by design",
                "Start without --enable-mixed-chunk if decode latency matters more than prefill throughput.",
            )
        )
    if evidence.server.dp_size > 1 and say.setting(evidence, "enable_dp_attention") is True:
        found.append(
            Reason(
                "DP attention: one replica in prefill makes every replica's pass eager; which ones were cannot be seen here"
            )
        )
    if say.setting(evidence, "enable_two_batch_overlap") is True:
        found.append(Reason("two-batch overlap is on: a batch that cannot be split runs eager"))
    if (algorithm := say.setting(evidence, "speculative_algorithm")) not in (None, "", "none"):
        found.append(
            Reason(
                f"speculative decoding ({algorithm}): the counter holds verify passes of the target; {_draft(evidence)}"
            )
        )
        found += [Reason(text) for text in draft_notes(evidence)]
    if say.setting(evidence, "enable_return_hidden_states") is True:
        found.append(
            Reason(
                "requests may return hidden states, which needs another capture mode; which ones do cannot be known from here"
            )
        )
    return found

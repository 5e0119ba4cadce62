"""A draft model of speculative decoding that launches kernel by kernel while its target replays."""

from __future__ import annotations

from ppscope.diagnose import say
from ppscope.diagnose.evidence import Evidence
from ppscope.views import Finding

LEAST = 0.03
"""Of the schedulers' time: less is not worth a finding, and a few misread stacks."""
EAGER_SHARE = 0.5


def draft_eager(evidence: Evidence) -> Finding | None:
    """The target's decode passes replay, and the draft's were seen in eager launches more than in a replay."""
    eager, replayed = evidence.draft_eager, evidence.draft_replayed
    if eager is None or replayed is None or eager < LEAST or eager <= replayed or evidence.active is not True:
        return None
    if evidence.replay_share is None or evidence.replay_share < EAGER_SHARE:
        return None
    why = draft_notes(evidence)
    return Finding(
        id="graphs.eager_leak",
        severity="medium",
        stage=None,
        summary=f"the draft model runs eager beside its target's replays: {say.share(eager)} of the schedulers' time",
        evidence=(
            f"decode passes of the draft model: {say.share(eager)} of the time in eager launches, {say.share(replayed)} in replays"
            " (sampled stacks)",
            f"{say.share(evidence.replay_share)} of the target's passes replayed over {say.window(evidence)} ({evidence.replay_source})",
            *why,
        ),
        remedy="The draft has graphs of its own, which the server captures after the target's: its log tells why not, in lines with"
        " 'draft' and 'graph'. A draft backend that cannot be captured, or too little memory left, are the usual reasons.",
        provenance="sampled",
    )


def draft_notes(evidence: Evidence) -> list[str]:
    """What the log says of the draft's graphs."""
    notes = [note for note in evidence.log_notes if "draft" in note.text.lower()]
    told = list(dict.fromkeys(note.text for note in notes if note.kind in ("graph_disabled", "error")))
    captured = any(note.kind == "capture" for note in evidence.log_notes)
    if captured and not any(note.kind == "capture" for note in notes):
        told.append("the log tells of a capture for the target and of none for the draft model")
    return [f"log: {text}" if not text.startswith("the log") else text for text in told[:3]]

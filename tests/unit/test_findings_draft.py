"""What stacks tell of a draft model: its replays and its eager decode passes, and nothing of the target's or of a prefill."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ppscope.records import BatchLog, FrameDef, RankKey, StackDef, StackSpans
from ppscope.session import Session
from ppscope.session.evidence import gather
from tests.unit.pipeline_story import HEALTHY, SECOND, STAGES, Pipeline

WORKER = ("forward_batch_generation", "sglang/srt/speculative/eagle_worker_v2.py")
RUN = ("run_batch", "sglang/srt/managers/scheduler.py")
MODEL = ("forward", "sglang/srt/models/llama_eagle.py")
REPLAY = ("replay", "torch/cuda/graphs.py")
STACKS = {
    "draft replays": (RUN, WORKER, ("draft", WORKER[1]), ("execute", "sglang/srt/speculative/eagle_draft_cuda_graph_runner.py"), REPLAY),
    "draft eager": (RUN, WORKER, ("draft", WORKER[1]), ("draft_forward", WORKER[1]), MODEL),
    "extend eager": (RUN, WORKER, ("_draft_extend_for_decode", WORKER[1]), MODEL),
    "extend eager, to 0.5.11": (RUN, WORKER, ("EAGLEWorker.forward_draft_extend_after_decode", WORKER[1]), MODEL),
    "prefill of the draft": (RUN, WORKER, ("_draft_extend_for_prefill", WORKER[1]), MODEL),
    "target replays": (RUN, WORKER, ("verify", WORKER[1]), ("forward_batch_generation", "sglang/srt/managers/tp_worker.py"), REPLAY),
    "target eager": (RUN, WORKER, ("verify", WORKER[1]), ("forward_batch_generation", "sglang/srt/managers/tp_worker.py"), MODEL),
    "no speculation": (RUN, MODEL),
}  # fmt: skip


@pytest.mark.parametrize(
    ("stack", "algorithm", "expected"),
    [
        ("draft replays", "EAGLE", (0.25, 0.0)),
        ("draft eager", "EAGLE", (0.0, 0.25)),
        ("extend eager", "EAGLE", (0.0, 0.25)),
        ("extend eager, to 0.5.11", "EAGLE", (0.0, 0.25)),
        ("prefill of the draft", "EAGLE", (0.0, 0.0)),
        ("target replays", "EAGLE", (0.0, 0.0)),
        ("target eager", "EAGLE", (0.0, 0.0)),
        ("no speculation", "EAGLE", (None, None)),
        ("draft eager", None, (None, None)),
    ],
)
def test_shares_of_the_draft(stack: str, algorithm: str | None, expected: tuple[float | None, float | None]) -> None:
    stream = Pipeline(stack)
    session = Session(stream, clock=lambda: stream.at_ns)
    frames = [
        ("run_scheduler_process", RUN[1]),
        ("event_loop_pp", "sglang/srt/managers/scheduler_pp_mixin.py"),
        *STACKS[stack],
    ]
    stream.second(replace(HEALTHY, settings={"speculative_algorithm": algorithm}))
    stream.waiting = [record for record in stream.waiting if not isinstance(record, StackSpans | BatchLog)]
    stream.waiting += [FrameDef(90 + place, *frame, 1) for place, frame in enumerate(frames)]
    stream.waiting += [StackDef(90, tuple(range(90, 90 + len(frames)))), StackDef(91, (90, 91))]
    at, quarter = stream.at_ns, SECOND // 4
    stream.waiting += [
        StackSpans(
            RankKey(0, pp, 0), 100 + pp, "MainThread", at - SECOND, at, SECOND // 50,
            [at - SECOND, at - quarter], [at - quarter, at], [91, 90],
        )
        for pp in range(STAGES)
    ]  # fmt: skip
    session.poll()
    found = gather(session, at)
    assert found is not None
    assert (found.draft_replayed, found.draft_eager) == pytest.approx(expected)

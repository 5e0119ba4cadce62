"""What a burst asks of the server and what it may cost there, from the server's version and shape alone."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

WHOLE_STEPS = 16
"""A burst of the default length holds about this many micro-batches: enough of them to learn what is normal beside a replay."""
MOST_ROUNDS = 64
EXACT_SINCE = (0, 5, 23)
"""From here on `num_steps` whole steps are recorded; 0.5.11 and 0.5.15 cut the last one short (seen on all three)."""
OWN_ID_SINCE = (0, 5, 15)
"""From here on a client may name the profile itself (ProfileReq.profile_id)."""
RISKY_UNTIL = (0, 5, 11)


class Plan(NamedTuple):
    """`micro_batches` whole ones are wanted, and `num_steps` is what has to be asked for to get them."""

    rounds: int
    micro_batches: int
    num_steps: int


def parse_version(version: str | None) -> tuple[int, int, int] | None:
    """The three numbers of a version; None when there are none."""
    match = re.match(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", version or "")
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def loop_size(pp_loop_size: int | None, pp_size: int) -> int:
    """Micro-batches of one round of the pipeline: what the loop holds, else one a stage."""
    return max(pp_loop_size or pp_size, 1)


def default_rounds(slots: int) -> int:
    """Rounds of a burst of the usual length: two at least, so that a round is seen from its start to its end."""
    return max(2, -(-WHOLE_STEPS // slots))


def make_plan(version: str | None, slots: int, rounds: int) -> Plan:
    """Plans whole rounds of micro-batches; an unknown version gets one step more, for it may cut the last one."""
    rounds = max(1, min(rounds, MOST_ROUNDS))
    known = parse_version(version)
    exact = known is not None and known >= EXACT_SINCE
    micro_batches = rounds * slots
    return Plan(rounds, micro_batches, micro_batches + (not exact))


def start_body(
    plan: Plan, version: str | None, device: str | None, folder: str, token: str, with_stack: bool
) -> dict[str, Any]:
    """The body of /start_profile.

    SGLang's own default records stacks and shapes, which costs far more and has deadlocked servers (sglang-omni PR 1920); merging on
    the server misses the later stages (sglang #17567); profiling by stage raises in speculative decoding (sglang #34942).
    """
    body: dict[str, Any] = {
        "output_dir": folder,
        "num_steps": plan.num_steps,
        "activities": ["CPU"] if device == "cpu" else ["CPU", "GPU"],
        "with_stack": with_stack,
        "record_shapes": False,
        "profile_by_stage": False,
        "merge_profiles": False,
        "profile_prefix": token,
    }
    known = parse_version(version)
    if known is not None and known >= OWN_ID_SINCE:
        body["profile_id"] = token
    return body


def risks(version: str | None, with_stack: bool) -> tuple[str, ...]:
    """What is known to have gone wrong on this version, a sentence each, gravest first."""
    found = []
    known = parse_version(version)
    if known is None:
        found.append("The server's version is not known: up to 0.5.11 a profile can kill a scheduler.")
    elif known <= RISKY_UNTIL:
        found.append(
            f"{version}: a profile can kill this server. On 0.5.11 a scheduler ended with `free(): invalid pointer` in libkineto"
            " seconds after its trace was written, in 1 of 4 profiles (CPU, torch 2.13)."
        )
    if with_stack:
        found.append(
            "Python stacks make traces many times larger, and recording them has deadlocked servers (sglang-omni PR 1920)."
        )
    found.append(
        "A scheduler whose trace cannot be written raises, and that ends the server (sglang #3815); room is checked first."
    )
    return tuple(found)


COSTS = (
    "Every scheduler stands still while it writes its trace: requests wait for seconds, health checks may fail meanwhile.",
    "A short window is written in seconds; one of 242 MB took 25 s (sglang #34942).",
)

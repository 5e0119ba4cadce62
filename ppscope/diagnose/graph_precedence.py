"""Which of the user's words about a phase counts, from 0.5.15 on: they overwrite each other where the settings are put together.

Strongest first: a backend in --cuda-graph-config, --cuda-graph-backend-{decode,prefill}, and the switches that turn graphs off
(server_args.py 3195-3250 in 0.5.15, arg_groups/cuda_graph_hook.py 54-94 in 0.5.23). Up to 0.5.11 there are only switches.
"""

from __future__ import annotations

from ppscope.diagnose.graph_world import World
from ppscope.sources.rules_expr import PHASES
from ppscope.sources.rules_model import GraphRule, nodes

_WORDS = ("cuda_graph_config.{}.backend", "cuda_graph_backend_{}")
"""By strength; the switches are weaker than both."""


def phases_of(rule: GraphRule) -> tuple[str, ...]:
    """The phases that a rule turns off."""
    return PHASES if rule.phase == "both" else (rule.phase,)


def kept_on(rule: GraphRule, world: World) -> frozenset[str]:
    """Phases of a rule that a stronger word of the user's asks a backend for, so that what the rule writes is written over."""
    if world.book.dialect != "config":
        return frozenset()
    return frozenset(phase for phase in phases_of(rule) if _outvoted(rule, phase, world))


def _outvoted(rule: GraphRule, phase: str, world: World) -> bool:
    words = [word.format(phase) for word in _WORDS]
    if rule.kind == "flag":
        names = {node.name for node in nodes(rule.tree) if node.op == "requested"}
        stronger = next((place for place, word in enumerate(words) if word in names), len(words))
    elif rule.kind == "setting" and _before_the_words(rule, phase, world):
        stronger = len(words)
    else:
        return False
    asked = [world.request(word) for word in words[:stronger]]
    return any(isinstance(value, str) and value != "disabled" for value in asked)


def _before_the_words(rule: GraphRule, phase: str, world: World) -> bool:
    """Whether start-up comes to the rule before it reads the user's words: it can only have set a switch."""
    read = [other for other in world.book.rules if other.kind == "flag" and other.phase in (phase, "both")]
    return bool(read) and all(0 < rule.order < other.order for other in read)

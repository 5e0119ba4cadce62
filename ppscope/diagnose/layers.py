"""How a model's layers are spread over the stages, and how they should be."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ppscope.whole import whole

VARIABLE = "SGLANG_PP_LAYER_PARTITION"


def stage_layers(
    pp_size: int, layers: object, requested: Mapping[str, object] | None, version: str | None
) -> tuple[int, ...] | None:
    """Layers of each stage: the partition that was asked for, else SGLang's even split; None where it is not known.

    The even split gives the remainder to the last ranks since 0.5.7 (PRs #13282, #13977); what older ones do is not guessed.
    """
    asked = _partition(requested.get(VARIABLE) if requested else None)
    if asked is not None:
        return asked if len(asked) == pp_size else None
    if not isinstance(layers, int) or isinstance(layers, bool) or layers < pp_size or pp_size < 1:
        return None
    each, rest = divmod(layers, pp_size)
    old = re.match(r"0\.([0-4]\.|5\.[0-6](\D|$))", version or "0.0.")
    if rest and old:
        return None
    return tuple(each + (stage >= pp_size - rest) for stage in range(pp_size))


def _partition(value: object) -> tuple[int, ...] | None:
    """`"8,8,16"`, or one number that a typed command line made of it."""
    texts = str(value).split(",") if value is not None else []
    numbers = [number for text in texts if (number := whole(text.strip(), 5)) is not None]
    return tuple(numbers) if numbers and len(numbers) == len(texts) else None


def layer_cost(layers: Sequence[int], busy: Sequence[float]) -> tuple[tuple[float, float], ...] | None:
    """(fixed, per layer) time of each stage, in the unit of `busy`; None where it cannot be told.

    Stages with different numbers of layers tell the two apart, if one line fits them all; else each stage's whole time counts
    as its layers'.
    """
    if len(layers) != len(busy) or not layers or min(layers) < 1 or min(busy) <= 0:
        return None
    mean_x, mean_y = sum(layers) / len(layers), sum(busy) / len(busy)
    spread = sum((count - mean_x) ** 2 for count in layers)
    if spread and len(set(layers)) > 1 and len(layers) > 2:
        slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(layers, busy, strict=True)) / spread
        fixed = mean_y - slope * mean_x
        worst = max(abs(y - fixed - slope * x) for x, y in zip(layers, busy, strict=True))
        if slope > 0 and fixed >= 0 and worst <= 0.15 * max(busy):
            return tuple((fixed, slope) for _ in layers)
    return tuple((0.0, took / count) for count, took in zip(layers, busy, strict=True))


def balanced_split(layers: Sequence[int], busy: Sequence[float]) -> tuple[int, ...] | None:
    """The split of the same layers with the least busiest stage; `busy` are times or shares of time of the same work."""
    cost = layer_cost(layers, busy)
    if cost is None:
        return None
    split = [1] * len(layers)
    for _ in range(sum(layers) - len(layers)):
        # Each further layer goes where it makes the least busy stage of all.
        stage = min(range(len(split)), key=lambda index: cost[index][0] + (split[index] + 1) * cost[index][1])
        split[stage] += 1
    return tuple(split)

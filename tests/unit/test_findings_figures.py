"""The figures that findings rest on: running requests, layers of each stage, a split that evens them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.diagnose.layers import balanced_split, layer_cost, stage_layers
from ppscope.diagnose.running import estimate_running


@pytest.mark.parametrize(
    ("occupied", "micro_batch", "in_flight", "queued", "at_least", "estimate"),
    [
        (1.0, 8.0, None, 0, 8, 8),
        (8.0, 8.0, 64, 0, 64, 64),
        (1.0, 8.0, 1, 0, 8, 8),  # one request with eight prompts
        (2.0, 7.0, 8, 0, 8, 8),  # the log always caught the large slot
        (4.0, 2.0, 12, 4, 8, 8),
        (None, 8.0, None, None, 8, None),
        (None, None, 5, 1, 4, 4),
        (None, None, None, 3, None, None),
        (1.0, 3.0, 0, 0, 0, 0),  # the last half minute's lines are old news
    ],
)
def test_running(
    occupied: float | None,
    micro_batch: float | None,
    in_flight: int | None,
    queued: int | None,
    at_least: int | None,
    estimate: int | None,
) -> None:
    assert estimate_running(occupied, micro_batch, in_flight, queued) == (at_least, estimate)


@pytest.mark.parametrize(
    ("pp", "layers", "asked", "version", "expected"),
    [
        (4, 8, {"SGLANG_PP_LAYER_PARTITION": "1,1,4,2"}, "0.5.23", (1, 1, 4, 2)),
        (4, None, {"SGLANG_PP_LAYER_PARTITION": "1, 1,4,2"}, None, (1, 1, 4, 2)),
        (8, 61, {}, "0.5.11", (7, 7, 7, 8, 8, 8, 8, 8)),
        (8, 64, None, "0.5.6.post2", (8,) * 8),
        (8, 61, {}, "0.5.6.post2", None),
        (3, 8, {"SGLANG_PP_LAYER_PARTITION": "1,1,4,2"}, "0.5.23", None),
        (4, 8, {"SGLANG_PP_LAYER_PARTITION": "nonsense"}, "0.5.23", (2, 2, 2, 2)),
        (4, True, {}, "0.5.23", None),
        (4, 3, {}, "0.5.23", None),
        (1, 32, {"SGLANG_PP_LAYER_PARTITION": 32}, "0.5.23", (32,)),
    ],
)
def test_layers_of_stages(
    pp: int, layers: object, asked: dict[str, object] | None, version: str | None, expected: tuple[int, ...] | None
) -> None:
    assert stage_layers(pp, layers, asked, version) == expected


@pytest.mark.parametrize(
    ("layers", "busy", "split"),
    [
        ([1, 1, 4, 2], [0.1, 0.1, 0.4, 0.2], (2, 2, 2, 2)),
        ([1, 1, 4, 2], [0.2, 0.2, 0.5, 0.3], (2, 2, 2, 2)),  # a fixed cost beside the layers'
        ([7, 7, 7, 7], [0.35, 0.35, 0.7, 0.35], (8, 8, 4, 8)),  # one stage is slower a layer
        ([1, 1, 1, 1], [0.1, 0.1, 0.1, 0.2], (1, 1, 1, 1)),
        ([1, 1], [0.0, 0.2], None),
        ([1, 0], [0.1, 0.2], None),
        ([1, 1], [0.1], None),
    ],
)
def test_split(layers: list[int], busy: list[float], split: tuple[int, ...] | None) -> None:
    assert balanced_split(layers, busy) == split


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0.01, 1)), min_size=2, max_size=16))
def test_a_split_keeps_every_layer_and_is_no_worse(stages: list[tuple[int, float]]) -> None:
    layers, busy = [count for count, _ in stages], [share for _, share in stages]
    split, cost = balanced_split(layers, busy), layer_cost(layers, busy)
    assert split is not None
    assert cost is not None
    assert sum(split) == sum(layers)
    assert min(split) >= 1

    def busiest(counts: tuple[int, ...]) -> float:
        return max(fixed + each * count for (fixed, each), count in zip(cost, counts, strict=True))

    assert busiest(split) <= busiest(tuple(layers)) * (1 + 1e-9)

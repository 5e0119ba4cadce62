"""The figures that findings rest on: running requests, layers of each stage, a split that evens them."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppscope.diagnose.layers import balanced_split, layer_cost, stage_layers
from ppscope.diagnose.occupancy import in_words, likely, occupancy
from ppscope.diagnose.running import estimate_running
from ppscope.records import BatchLog
from ppscope.session.load import mean_size
from ppscope.views import Occupancy


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


def test_a_slot_that_was_seen_with_seven_runs_seven() -> None:
    """Slots of seven and one, though the dumps happened to show one slot alone."""
    assert estimate_running(1.3, 4.0, None, 0, largest=7) == (7, 7)
    assert estimate_running(None, 4.0, None, 0, largest=7) == (7, None)


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


@settings(deadline=None)
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


SECOND = 1_000_000_000


def dumps(slots: list[int], every_ns: int = SECOND // 5) -> list[tuple[int, int]]:
    return [(at * every_ns, slot) for at, slot in enumerate(slots)]


class TestOccupancy:
    """Slots in use by dumps of the same moment."""

    @pytest.mark.parametrize("used", [1, 2, 3, 4, 8])
    def test_equally_used_slots(self, used: int) -> None:
        chance = random.Random(used)
        means = []
        for _ in range(40):
            found = occupancy(dumps([chance.randrange(used) for _ in range(60)]), 8)
            assert found.mean is not None
            means.append(found.mean)
        assert sum(means) / len(means) == pytest.approx(used, rel=0.1)

    def test_one_request_that_moves_is_one(self) -> None:
        """One client: a new slot with every request, ten seconds each."""
        found = occupancy(dumps([(at // 50) % 4 for at in range(300)]), 4)
        assert found.mean is not None
        assert found.mean < 1.4

    @pytest.mark.parametrize("passes_per_s", [20.0, 100.0])
    def test_short_requests_on_a_fast_loop_too(self, passes_per_s: float) -> None:
        """Two and a half seconds each: the loop goes round often enough to look at shorter moments."""
        found = occupancy(dumps([(at // 13) % 4 for at in range(300)]), 4, passes_per_s)
        assert found.mean is not None
        assert found.mean < 1.5

    def test_a_slow_loop_needs_the_longer_look(self) -> None:
        """Four full slots, a pass of half a second each: dumps within a second see the same pass."""
        found = occupancy(dumps([(at // 3) % 4 for at in range(300)]), 4, 2.0)
        assert found.mean is not None
        assert found.mean > 3

    def test_an_uneven_load_is_between(self) -> None:
        chance = random.Random(1)
        found = occupancy(dumps([int(chance.random() < 0.25) for _ in range(200)]), 4)
        assert found.mean == pytest.approx(1 / (0.75**2 + 0.25**2), rel=0.15)

    @pytest.mark.parametrize(("count", "every_ns"), [(19, SECOND // 5), (30, 10 * SECOND), (0, SECOND)])
    def test_too_little_is_nothing(self, count: int, every_ns: int) -> None:
        found = occupancy(dumps([0] * count, every_ns), 4)
        assert (found.mean, found.provenance, found.samples) == (None, None, count)

    @settings(deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 60 * SECOND), st.integers(0, 7)), max_size=120), st.integers(1, 8))
    def test_never_more_than_the_slots_nor_less_than_one(self, seen: list[tuple[int, int]], slots: int) -> None:
        found = occupancy(seen, slots)
        assert found.mean is None or 1 <= found.mean <= slots


class TestMeanSize:
    """The mean micro-batch by decode lines."""

    @staticmethod
    def lines(sizes: list[int], rate: float, step_s: int = 2) -> list[BatchLog]:
        return [
            BatchLog(0, at * step_s * SECOND, "decode", None, 0, None, running=size, tokens_per_s=rate)
            for at, size in enumerate(sizes)
        ]

    def test_a_line_that_always_catches_the_large_slot(self) -> None:
        """Slots of seven and one, a pass each 0.1 s, a line every 20: 80 tokens in two seconds."""
        assert mean_size(self.lines([7] * 8, 40.0), 20) == pytest.approx(4.0)

    @pytest.mark.parametrize("interval", [None, 20])
    def test_few_lines_are_taken_at_their_word(self, interval: int | None) -> None:
        assert mean_size(self.lines([7, 7, 1], 40.0), interval) == pytest.approx(5.0)

    def test_a_pause_in_between_says_nothing_of_the_rate(self) -> None:
        lines = self.lines([6] * 6, 40.0)
        lines[5] = msgspec.structs.replace(lines[5], wall_ns=500 * SECOND)
        assert mean_size(lines, 20) == 6.0

    def test_nothing_is_nothing(self) -> None:
        assert mean_size([], 20) is None
        assert mean_size(self.lines([0, 0, 0, 0, 0, 0], 0.0), 20) is None


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Occupancy(8, 1.0, 64, "sampled"), "≈1 of 8"),
        (Occupancy(8, 4.9, 40, "sampled"), "≈3–8 of 8"),
        (Occupancy(8, 8.0, 60, "sampled"), "≈4–8 of 8"),
        (Occupancy(4, 2.0, 60, "sampled"), "≈2–3 of 4"),
        (Occupancy(8, 7.94, 900, "exact"), "7.9 of 8"),
        (Occupancy(8, None, 3, None), "– of 8"),
        (Occupancy(None, 1.0, 64, "sampled"), "≈1"),
    ],
)
def test_slots_are_said_as_far_as_they_are_known(found: Occupancy, words: str) -> None:
    assert in_words(found) == words


@given(st.integers(1, 40), st.floats(1, 40), st.integers(0, 500))
def test_the_likely_slots_hold_the_mean_and_narrow_with_samples(slots: int, mean: float, samples: int) -> None:
    mean = min(mean, float(slots))
    few, many = (likely(Occupancy(slots, mean, count, "sampled")) for count in (samples, samples * 4 + 4))
    assert few is not None
    assert many is not None
    assert 1 <= few[0] <= mean <= few[1] <= slots
    assert many[1] - many[0] <= few[1] - few[0] + 1e-9

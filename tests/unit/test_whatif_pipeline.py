"""The simulation of the pipeline loop against what can be worked out by hand, and predictions from evidence."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppscope.diagnose.evidence import Evidence
from ppscope.diagnose.predict import RANGE, predict, predicted, present
from ppscope.diagnose.whatif import TENSORS, Change, Pipeline, Stage, spread, tokens_per_s
from ppscope.views import Occupancy
from tests.unit.findings_tools import evidence, load, server, stage, stages

T = 0.01


def pipeline(
    times: list[float], slots: tuple[int, ...], *, host: float = 0.0, launch: float = 0.0, **more: Any
) -> Pipeline:
    return Pipeline(tuple(Stage(time, launch, host) for time in times), slots, **more)


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize(("count", "used"), [(2, 1), (2, 2), (4, 1), (4, 3), (8, 1), (8, 4), (8, 8)])
def test_k_full_slots_of_p_give_k_passes_a_round(count: int, used: int, synchronous: bool) -> None:
    """A micro-batch takes P × T once round; k of them share that."""
    slots = spread(8 * used, count, used)
    rate = tokens_per_s(pipeline([T] * count, slots, synchronous=synchronous))
    assert rate == pytest.approx(8 * used / (count * T))


def test_the_slowest_stage_sets_the_pace() -> None:
    assert tokens_per_s(pipeline([T, 3 * T, T, T], (2,) * 4)) == pytest.approx(2 / (3 * T))


def test_uneven_slots_take_turns_of_the_same_length() -> None:
    assert tokens_per_s(pipeline([T] * 4, (7, 1, 0, 0))) == pytest.approx(8 / (4 * T))


def test_launching_longer_than_computing_is_the_pace_of_an_eager_host() -> None:
    assert tokens_per_s(pipeline([T] * 4, (2,) * 4, launch=3 * T)) == pytest.approx(2 / (3 * T))


def test_at_depth_0_the_last_stage_waits_for_its_own_host() -> None:
    assert tokens_per_s(pipeline([T] * 4, (2,) * 4, host=T / 5)) == pytest.approx(2 / (T + T / 5))


def test_depth_1_hides_part_of_that() -> None:
    shallow = tokens_per_s(pipeline([T] * 4, (2,) * 4, host=T / 5))
    deep = tokens_per_s(pipeline([T] * 4, (2,) * 5, host=T / 5, depth=1))
    assert shallow < deep <= 2 / T * 1.0001


@pytest.mark.parametrize(("cores", "share"), [(4, 1), (2, 2), (1, 4), (None, 1)])
def test_stages_that_share_cores_take_turns(cores: int | None, share: int) -> None:
    rate = tokens_per_s(pipeline([T] * 4, (2,) * 4, synchronous=True, cores=cores))
    assert rate == pytest.approx(2 / (share * T), rel=0.02)


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_one_full_slot_needs_one_core(cores: int) -> None:
    assert tokens_per_s(pipeline([T] * 4, (8, 0, 0, 0), synchronous=True, cores=cores)) == pytest.approx(8 / (4 * T))


@pytest.mark.parametrize(("cores", "slots"), [(1, (8, 0, 0, 0)), (1, (2,) * 4), (2, (2,) * 4), (4, (2,) * 4)])
def test_messages_take_cores_from_the_stages(cores: int, slots: tuple[int, ...]) -> None:
    """Every pass, each of three links carries requests and activations, and outputs go to each of the four stages."""
    stages = tuple(Stage(T, message_s=T / 40) for _ in range(4))
    rate = tokens_per_s(Pipeline(stages, slots, synchronous=True, cores=cores))
    work = 4 * T + (3 + (3 + 4) * TENSORS) * T / 40
    assert rate <= sum(slots) / sum(map(bool, slots)) * cores / work * 1.0001
    if all(slots) and cores <= 2:
        assert rate == pytest.approx(2 * cores / work, rel=0.05)


def test_a_lone_micro_batch_waits_for_its_messages() -> None:
    stages = tuple(Stage(T, message_s=T / 40) for _ in range(4))
    rate = tokens_per_s(Pipeline(stages, (8, 0, 0, 0), synchronous=True, cores=4))
    assert rate == pytest.approx(8 / (4 * T + (3 + 1) * TENSORS * T / 40), rel=0.05)


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("slots", [(8, 0, 0, 0), (2,) * 4])
def test_requests_may_lengthen_a_forward_pass(slots: tuple[int, ...], synchronous: bool) -> None:
    stages = tuple(Stage(T, each_s=T / 8) for _ in range(4))
    took = T + max(slots) * T / 8
    passes = sum(map(bool, slots)) / (4 * took)
    assert tokens_per_s(Pipeline(stages, slots, synchronous=synchronous)) == pytest.approx(passes * max(slots))


def test_empty_slots_give_nothing_and_a_wrong_number_is_refused() -> None:
    assert tokens_per_s(pipeline([T, T], (0, 0))) == 0
    with pytest.raises(ValueError, match="another number of slots"):
        tokens_per_s(pipeline([T, T], (1, 1, 1)))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0.001, 0.05), min_size=2, max_size=6),
    st.lists(st.integers(0, 9), min_size=8, max_size=8),
    st.integers(0, 2),
    st.floats(0, 0.01),
)
def test_never_faster_than_the_slowest_stage_nor_slower_than_turns(
    times: list[float], sizes: list[int], depth: int, host: float
) -> None:
    slots = tuple(sizes[: len(times) + depth])
    rate = tokens_per_s(pipeline(times, slots, host=host, depth=depth))
    used = [size for size in slots if size]
    mean = sum(used) / len(used) if used else 0
    assert rate <= mean / max(times) * 1.0001
    assert rate >= (sum(used) / (len(slots) * (sum(times) + (host + 1e-9) * len(times)) * 2) if used else 0) * 0.999


@settings(deadline=None)
@given(st.integers(0, 99), st.integers(1, 20), st.integers(0, 30))
def test_spread_keeps_every_request(requests: int, slots: int, used: int) -> None:
    dealt = spread(requests, slots, used)
    assert (len(dealt), sum(dealt)) == (slots, requests)
    full = [size for size in dealt if size]
    assert not full or max(full) - min(full) <= 1


WAITING = {"wait_gpu": 1.0}
BUSY = {
    "stages": stages([0.25] * 4, phases=WAITING),
    "server": server(4),
    "load": load(8, 0, 200.0),
    "micro_batch": 8.0,
}
SERIAL = {**BUSY, "occupancy": Occupancy(4, 1.0, 50, "sampled")}


class TestPrediction:
    """From evidence to a sentence."""

    def test_serial_spread_over_all_slots(self) -> None:
        """Four stages busy a quarter each at 200 tokens/s: forward 10 ms. Two requests in each slot: the same 8 in four passes."""
        found = predict(evidence(**SERIAL), Change(slots_used=4))
        assert found is not None
        assert found.then == pytest.approx(200, rel=0.1)
        assert found.high / found.then == pytest.approx(1 + RANGE)
        assert found.low / found.then == pytest.approx(1 - RANGE)

    @pytest.mark.parametrize(("busy", "launch", "intake"), [(0.02, 0.09, 0.0), (0.02, 0.09, 0.3), (0.11, 0.01, 0.05)])
    def test_spreading_mostly_idle_stages_is_never_said_to_slow_them(
        self, busy: float, launch: float, intake: float
    ) -> None:
        """One slot of eight, stages idle nearly all the time; the loop's turns through empty slots are paid already."""
        phases = {"eager": launch, "intake": intake, "wait_activations": 1 - launch - intake}
        of = evidence(**{
            **SERIAL, "stages": stages([busy] * 8, phases=phases), "server": server(8),
            "occupancy": Occupancy(8, 1.0, 50, "sampled"), "load": load(8, 0, 18.0),
        })  # fmt: skip
        found = predict(of, Change(slots_used=8))
        assert found is not None
        assert found.then >= 0.9 * found.now
        assert "instead of 18" not in predicted(of, Change(slots_used=8)) or found.low > found.now

    def test_a_better_split(self) -> None:
        uneven = tuple(
            stage(k, busy=share, layers=n, phases=WAITING)
            for k, (share, n) in enumerate([(0.25, 1), (0.25, 1), (1.0, 4), (0.5, 2)])
        )
        of = evidence(
            **{**BUSY, "stages": uneven, "occupancy": Occupancy(4, 4.0, 50, "sampled"), "load": load(32, 0, 200.0)}
        )
        found = predict(of, Change(layers=(2, 2, 2, 2)))
        assert found is not None
        assert found.then == pytest.approx(400, rel=0.15)
        assert "time goes with layers" in predicted(of, Change(layers=(2, 2, 2, 2)))

    @pytest.mark.parametrize(
        "missing",
        [
            {"stages": stages(count=4)},
            {"load": load(8, 0, None)},
            {"micro_batch": None},
            {"occupancy": Occupancy(4, None, 3, None)},
            {"occupancy": Occupancy(None, 1.0, 30, "sampled")},
            {"stages": stages([0.01] * 4, phases=WAITING)},
        ],
        ids=["no busy", "no rate", "no size", "no samples", "no slots", "a model that does not fit"],
    )
    def test_withheld_without_its_evidence(self, missing: dict[str, Any]) -> None:
        of = evidence(**{**SERIAL, **missing})
        assert predict(of, Change(slots_used=4)) is None
        assert predicted(of, Change(slots_used=4)) == ""

    @staticmethod
    def on_cpu(phases: dict[str, float] = WAITING, busy: float = 0.25, **rank: Any) -> Evidence:
        seen = {"host_cpu": 0.125, "wait_share": rank.pop("wait", 0.0), "cores": (0, 1), **rank}
        crowded = tuple(
            msgspec.structs.replace(found, ranks=(msgspec.structs.replace(found.ranks[0], **seen),))
            for found in stages([busy] * 4, phases=phases, source="host", layers=2)
        )
        return evidence(**{**SERIAL, "stages": crowded, "server": server(4, device="cpu")})

    def test_on_a_cpu_server_the_forward_blocks_and_cores_are_shared(self) -> None:
        """Run time by the kernel, not by stacks: these wait for a core half of the time."""
        of = self.on_cpu()
        before = present(of)
        assert before is not None
        assert (before.synchronous, before.cores) == (True, 2)
        assert [made.forward_s for made in before.stages] == pytest.approx([0.005] * 4)
        found = predict(of, Change(slots_used=4))
        assert found is not None
        # Two of the four stages can run at once, where one did: twice the passes of a quarter the size.
        assert found.then == pytest.approx(100, rel=0.1)
        assert "2 cores as crowded as now" in found.assumptions

    @pytest.mark.parametrize(
        ("process_cpu", "per_s"), [(None, 0.0), (0.225, 0.4), (0.1, 0.0), (7.0, 0.0)],
        ids=["not told", "told", "below the main thread's", "threads that compute"],
    )  # fmt: skip
    def test_what_other_threads_of_a_stage_take_is_its_messages(self, process_cpu: float | None, per_s: float) -> None:
        """25 passes and 100 turns a second: three links with requests a turn and activations a pass, outputs to four stages."""
        before = present(self.on_cpu(process_cpu=process_cpu))
        assert before is not None
        assert [made.message_s for made in before.stages] == pytest.approx(
            [per_s / (3 * 100 + (3 + 4) * TENSORS * 25)] * 4
        )

    def test_run_time_outside_the_forward_pass_goes_to_messages_and_that_of_empty_slots_too(self) -> None:
        """A stack waits for a core half of the time it could run, so of a forward pass of 10 ms it runs 5."""
        before = present(self.on_cpu(host_cpu=0.2, wait=0.2))
        assert before is not None
        # 0.2 cores, less 25 passes of 5 ms, over 100 turns and two more for each pass.
        turn_s = (0.2 - 0.125) / 150
        for made in before.stages:
            assert (made.forward_s, made.empty_s, made.host_s) == pytest.approx((0.005, turn_s, 3 * turn_s))

    def test_on_a_cpu_server_only_what_goes_through_layers_goes_with_them(self) -> None:
        phases = {"eager": 0.15, "prepare": 0.06, "sample": 0.04, "wait_outputs": 0.75}
        before = present(self.on_cpu(phases, host_cpu=0.25))
        assert before is not None
        assert [made.forward_s for made in before.stages] == pytest.approx([0.006] * 4)
        assert [made.host_s for made in before.stages] == pytest.approx([0.004] * 4)

    def test_a_probe_on_a_cpu_server_changes_nothing_of_that(self) -> None:
        of = self.on_cpu()
        timed = tuple(msgspec.structs.replace(found, busy_source="probe") for found in of.stages)
        assert present(msgspec.structs.replace(of, stages=timed)) == present(of)

    def test_of_attention_that_goes_request_by_request_fewer_take_less(self) -> None:
        of = self.on_cpu({"eager": 0.25, "wait_outputs": 0.75}, host_cpu=0.25)
        half = msgspec.structs.replace(
            of, stages=tuple(msgspec.structs.replace(found, by_request=0.125) for found in of.stages)
        )
        before = present(half)
        assert before is not None
        assert before.stages[0].forward_s == pytest.approx(0.005)
        assert before.stages[0].each_s == pytest.approx(0.005 / 8)
        plain, found = predict(of, Change(slots_used=4)), predict(half, Change(slots_used=4))
        assert plain is not None
        assert found is not None
        # Passes of two requests take 5 ms and a quarter of 5 ms, not 10 ms.
        assert found.then / plain.then == pytest.approx(10 / 6.25, rel=0.05)
        assert "only attention goes with requests" in found.assumptions
        split = predict(half, Change(layers=(1, 1, 4, 2)))
        assert split is not None
        assert split.then == pytest.approx(split.now), "one micro-batch goes through all layers either way"

    @pytest.mark.parametrize(
        ("mean", "samples", "used"),
        [
            (1.48, ((2, 40), (3, 11)), 2),
            (1.0, ((0, 42), (1, 1)), 1),
            (1.1, ((0, 30), (1, 20)), 1),
            (3.4, ((0, 20), (1, 20), (2, 20), (3, 7)), 4),
            (2.4, ((0, 20), (1, 20), (2, 1)), 2),
            (2.4, ((0, 20), (1, 20), (2, 9), (3, 9)), 3),
            (2.6, (), 3),
        ],
    )
    def test_whole_slots(self, mean: float, samples: tuple[tuple[int, int], ...], used: int) -> None:
        of = evidence(**{**SERIAL, "occupancy": Occupancy(4, mean, 50, "sampled"), "slot_samples": samples})
        before = present(of)
        assert before is not None
        assert sum(map(bool, before.slots)) == used

"""Rank → GPU in the order of trust, and no index where none can be known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.records import GpuDevice, GpuRef, Rank, RankKey
from ppscope.target.gpu_map import Placement, gpu_id, map_gpus, visible_devices

PCI = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
GPUS = [GpuDevice(index, f"GPU-{index}aaa-{index}", "H200") for index in range(4)]


def rank(pp: int, pid: int, *, tp: int = 0, dp: int = 0, ns_pid: int | None = None) -> Rank:
    return Rank(RankKey(dp, pp, tp), pid, pid * 10, f"sglang::scheduler_PP{pp}", ns_pid=ns_pid)


PAIR = [rank(0, 100), rank(1, 101)]
PP2 = Placement(pp_size=2)


@pytest.mark.parametrize(
    ("key", "place", "expected"),
    [
        (RankKey(0, 1, 3), Placement(pp_size=2, tp_size=4), 7),
        (RankKey(0, 1, 3), Placement(pp_size=2, tp_size=4, gpu_id_step=2, base_gpu_id=1), 1 + 4 + 6),
        (RankKey(0, 1, 5), Placement(pp_size=2, tp_size=8, nnodes=2, node_rank=1), 5),
        (RankKey(0, 3, 2), Placement(pp_size=4, tp_size=4, nnodes=2, node_rank=1), 6),
        (RankKey(0, 0, 12), Placement(pp_size=1, tp_size=16, nnodes=2, node_rank=1), 4),
        (RankKey(2, 1, 0), Placement(pp_size=2, tp_size=1, dp_size=3), 2 * 2 + 1),
        (RankKey(1, 0, 3), Placement(pp_size=2, tp_size=4, dp_size=2, dp_attention=True), 3),
    ],
)
def test_the_formula_of_sglang(key: RankKey, place: Placement, expected: int) -> None:
    assert gpu_id(key, place) == expected


@given(
    st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2])
)
def test_ranks_of_one_node_never_share_a_gpu(pp: int, tp: int, nnodes: int, dp: int) -> None:
    if nnodes > 1 and (dp > 1 or (pp * tp) % nnodes or (pp % nnodes and nnodes % pp)):
        return
    place = Placement(pp_size=pp, tp_size=tp, dp_size=dp, nnodes=nnodes)
    keys = [RankKey(d, p, t) for d in range(dp) for p in range(place.pp_per_node) for t in range(place.tp_per_node)]
    assert sorted(gpu_id(key, place) for key in keys) == list(range(place.ranks_on_node))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("", ()),
        ("-1", ()),
        ("3,1", ("3", "1")),
        ("0,-1,2", ("0",)),
        ("1,1", ("1",)),
        (" GPU-ab , MIG-c", ("GPU-ab", "MIG-c")),
    ],
)
def test_visible_devices_stop_at_the_first_invalid_entry(value: str | None, expected: tuple[str, ...] | None) -> None:
    assert visible_devices(value) == expected


@pytest.mark.parametrize(
    ("env", "devices", "expected"),
    [
        (PCI, GPUS, [(0, GPUS[0].uuid), (1, GPUS[1].uuid)]),
        ({}, GPUS, [(None, None), (None, None)]),  # CUDA's default order sorts by speed
        ({}, [], [(None, None), (None, None)]),
        ({**PCI, "CUDA_VISIBLE_DEVICES": "3,2"}, GPUS, [(3, GPUS[3].uuid), (2, GPUS[2].uuid)]),
        ({"CUDA_VISIBLE_DEVICES": "3,2"}, GPUS, [(None, None), (None, None)]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-2aaa,GPU-0"}, GPUS, [(2, GPUS[2].uuid), (0, GPUS[0].uuid)]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-2aaa,GPU-0"}, [], [(None, "GPU-2aaa"), (None, "GPU-0")]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-GPU-1aaa-1/3/0,MIG-77"}, GPUS, [(1, "MIG-GPU-1aaa-1/3/0"), (None, "MIG-77")]),
        ({**PCI, "CUDA_VISIBLE_DEVICES": "2"}, GPUS, [(2, GPUS[2].uuid), (None, None)]),
    ],
)
def test_ordinals_become_gpus_only_where_that_is_certain(
    env: dict[str, str], devices: list[GpuDevice], expected: list[tuple[int | None, str | None]]
) -> None:
    found = map_gpus(PAIR, PP2, env, device="cuda", devices=devices)
    assert [(found[r.key].index, found[r.key].uuid) for r in PAIR] == expected
    assert [(found[r.key].cuda_ordinal, found[r.key].source) for r in PAIR] == [
        (0, "title_formula"),
        (1, "title_formula"),
    ]


def test_a_single_gpu_needs_no_order() -> None:
    assert map_gpus(PAIR[:1], Placement(), {}, device="cuda", devices=GPUS[:1])[PAIR[0].key].index == 0


def test_a_dump_beats_the_formula_and_nvml_beats_both() -> None:
    keys = [r.key for r in PAIR]
    dumps = {keys[0]: 3, keys[1]: 2}
    found = map_gpus(PAIR, PP2, PCI, device="cuda", devices=GPUS, dumps=dumps)
    assert [found[key].index for key in keys] == [3, 2]
    assert {found[key].source for key in keys} == {"dump_locals"}
    found = map_gpus(PAIR, PP2, {}, devices=GPUS, pids={0: {7}, 1: {101}, 2: {100}, 3: None}, dumps=dumps)
    assert [(found[key].index, found[key].source) for key in keys] == [(2, "nvml_pid"), (1, "nvml_pid")]


def test_a_rank_with_contexts_on_several_gpus_takes_the_one_that_fits() -> None:
    stray = {0: {100, 101}, 1: {101}}
    found = map_gpus(PAIR, PP2, PCI, device="cuda", devices=GPUS, pids=stray)
    assert [found[r.key].index for r in PAIR] == [0, 1]
    found = map_gpus(
        [rank(0, 100), rank(1, 101)],
        PP2,
        {},
        device="cuda",
        devices=GPUS,
        pids={2: {100}, 3: {100, 101}, 0: {101}, 1: set()},
    )
    assert {r.key.pp: found[r.key].source for r in PAIR} == {
        0: "title_formula",
        1: "title_formula",
    }  # two ways to read it: no claim


def test_across_pid_namespaces_a_number_alone_proves_nothing() -> None:
    inside = [rank(0, 9100, ns_pid=100), rank(1, 9101, ns_pid=101)]
    table = {2: {100, 9999}, 3: {101}}
    found = map_gpus(inside, PP2, {}, device="cuda", devices=GPUS, pids=table, foreign_pids=True)
    assert [(found[r.key].index, found[r.key].source) for r in inside] == [(2, "nvml_pid"), (3, "nvml_pid")]
    contradicted = map_gpus(inside, PP2, PCI, device="cuda", devices=GPUS, pids=table, foreign_pids=True)
    assert [(contradicted[r.key].index, contradicted[r.key].source) for r in inside] == [
        (0, "title_formula"),
        (1, "title_formula"),
    ]
    one_only = map_gpus(inside, PP2, {}, device="cuda", devices=GPUS, pids={2: {100}}, foreign_pids=True)
    assert one_only[inside[0].key].source == "title_formula"


@pytest.mark.parametrize("device", [None, "cpu"])
def test_without_sign_of_a_gpu_no_rank_has_one(device: str | None) -> None:
    assert map_gpus(PAIR, PP2, PCI, device=device, devices=GPUS, dumps={PAIR[0].key: 0}) == {}


def test_nvml_joins_where_the_device_is_not_told_and_never_on_a_cpu_server() -> None:
    listed = {2: {100}, 3: {101}}
    found = map_gpus(PAIR, PP2, PCI, device=None, devices=GPUS, pids=listed)
    assert [(found[r.key].index, found[r.key].source) for r in PAIR] == [(2, "nvml_pid"), (3, "nvml_pid")]
    assert map_gpus(PAIR, PP2, PCI, device="cpu", devices=GPUS, pids=listed) == {}


def test_emulated_gpus_go_by_index_and_say_so() -> None:
    found = map_gpus(PAIR, PP2, {"PPSCOPE_EMULATED_GPUS": "/x/gpus.json"}, device="cuda")
    assert found == {PAIR[0].key: GpuRef(0, None, 0, "emulated"), PAIR[1].key: GpuRef(1, None, 1, "emulated")}


def test_one_visible_device_per_process_is_read_from_the_ranks_own_environment() -> None:
    env = {**PCI, "SGLANG_ONE_VISIBLE_DEVICE_PER_PROCESS": "1", "CUDA_VISIBLE_DEVICES": "2,3"}
    own = {PAIR[0].key: {"CUDA_VISIBLE_DEVICES": "2"}, PAIR[1].key: {"CUDA_VISIBLE_DEVICES": "3"}}
    found = map_gpus(PAIR, PP2, env, device="cuda", devices=GPUS, rank_env=own, dumps={r.key: 0 for r in PAIR})
    assert [found[r.key].index for r in PAIR] == [2, 3]

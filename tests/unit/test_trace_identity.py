"""Which rank of which run a file is: file names, process titles and process groups of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppscope.trace.align import group_runs
from ppscope.trace.analyse import analyse_file
from ppscope.trace.identity import Identity, identify, run_name
from ppscope.trace.reader import read_trace
from tests.kineto import Json, Trace, layout_text

Places = tuple[int | None, int | None, int | None]


def identity_of(folder: Path, name: str, title: str = "python3", **metadata: Any) -> Identity:
    trace = Trace(title=title)
    trace.span("step[DECODE bs=1]", 0, 10)
    path = folder / name
    path.write_bytes(layout_text(trace.all_events(), trace.metadata() | metadata, "line"))
    return identify(read_trace(path))


@pytest.mark.parametrize(
    ("name", "title", "run", "places"),
    [
        ("1795989460.25-TP-0-PP-3.trace.json", "sglang::scheduler", "1795989460.25", (3, 0, None)),
        ("mine-17.5-TP-2-DP-1-PP-0-EP-2.trace.json", "sglang::scheduler", "mine-17.5", (0, 2, 1)),
        ("17.5-TP-1-PP-1-DECODE.trace.json", "sglang::scheduler", "17.5-DECODE", (1, 1, None)),
        ("17.5-TP-1.trace.json", "sglang::scheduler_TP1", "17.5", (0, 1, None)),
        # SGLANG_PROFILE_V2 up to 0.5.11 leaves the stage out of the name.
        ("17.5-TP-0.trace.json", "sglang::scheduler_DP1_TP0_PP2", "17.5", (2, 0, 1)),
        ("renamed.json", "sglang::scheduler_PP1_TP0", "renamed.json of 1", (1, 0, None)),
        (
            "worker3_step_12.1694128201557.pt.trace.json",
            "python3",
            "worker#_step_#.#.pt.trace.json of 1",
            (None, None, None),
        ),
    ],
)
def test_names_and_titles(name: str, title: str, run: str, places: Places, tmp_path: Path) -> None:
    found = identity_of(tmp_path, name, title)
    assert (Path(found.run).name, (found.stage, found.tp, found.dp)) == (run, places)


GROUP: Json = {"pg_name": "11", "pg_desc": "pp:device", "ranks": [1, 5, 9]}


@pytest.mark.parametrize(
    ("distributed", "rank", "stage"),
    [
        ({"rank": 5, "world_size": 12, "pg_config": [{"pg_desc": "tp:device", "ranks": [4, 5]}, GROUP]}, 5, 1),
        ({"rank": 4, "world_size": 12, "pg_config": [GROUP]}, 4, None),
        ({"rank": 0, "pg_config": [GROUP | {"ranks": [0]}]}, 0, None),
        ({"rank": "5", "pg_config": "?"}, None, None),
        ("damaged", None, None),
        (None, None, None),
    ],
)
def test_process_groups(distributed: object, rank: int | None, stage: int | None, tmp_path: Path) -> None:
    found = identity_of(tmp_path, "a.json", distributedInfo=distributed)
    assert (found.rank, found.stage) == (rank, stage)


@pytest.mark.parametrize(
    "metadata",
    [{"deviceProperties": "x"}, {"deviceProperties": [None, {"id": 0}]}, {"host_name": 5}, {"baseTimeNanoseconds": -4}],
)
def test_foreign_metadata_is_unknown(metadata: Json, tmp_path: Path) -> None:
    found = identity_of(tmp_path, "a.json", **metadata)
    assert found.device is None
    assert found.host in (None, "node0")


def test_the_device_is_the_one_the_kernels_ran_on(tmp_path: Path) -> None:
    trace = Trace(device=1)
    trace.eager("kernel", 0, 10, 5)
    devices = [{"id": 0, "name": "NVIDIA A"}, {"id": 1, "name": "NVIDIA B"}]
    path = tmp_path / "a.json"
    path.write_bytes(layout_text(trace.all_events(), trace.metadata() | {"deviceProperties": devices}, "line"))
    assert identify(read_trace(path)).device == "NVIDIA B"


def test_two_profiles_under_one_kind_of_name_are_two_runs(tmp_path: Path) -> None:
    paths = []
    for begin_ns in (0, 10**10):
        for rank in range(2):
            trace = Trace(rank=rank, world_size=2)
            trace.span("ProfilerStep#1", begin_ns + rank, 1000)
            paths.append(trace.write(tmp_path / f"worker{rank}.{begin_ns + rank}.pt.trace.json"))
    runs = group_runs([analyse_file(path) for path in paths])
    assert [run.name for run in runs] == [f"worker0.{begin}.pt.trace.json and 1 more" for begin in (0, 10**10)]
    assert [[rank.path for rank in run.ranks] for run in runs] == [
        [str(path) for path in paths[:2]],
        [str(path) for path in paths[2:]],
    ]


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("/a/ppscope-58-1-ppscope-58-1", "ppscope-58-1"),
        ("/a/17.5", "17.5"),
        ("/a/ab", "ab"),
        ("/a/-", "-"),
        ("/a/x-y", "x-y"),
    ],
)
def test_a_run_named_twice_is_said_once(run: str, said: str) -> None:
    assert run_name(Identity(run, None, None, None, None, None, None, None, None)) == said

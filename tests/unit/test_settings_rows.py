"""The settings panel's rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppscope.diagnose.settings import resolved_value, setting_rows
from ppscope.records import LogNote
from ppscope.target.server_info import requested_settings, resolved_settings
from ppscope.views import SettingRow

DATA = Path(__file__).parent / "data" / "server"


def resolved_of(version: str) -> dict[str, object]:
    return resolved_settings(json.loads((DATA / f"server_info-{version}.json").read_text()))


def rows_of(*args: dict[str, object] | None, **more: object) -> dict[str, SettingRow]:
    rows = setting_rows(*args, **more)  # type: ignore[arg-type]
    assert len({row.name for row in rows}) == len(rows)
    return {row.name: row for row in rows}


@pytest.mark.parametrize("version", ["0.5.9", "0.5.11", "0.5.23"])
def test_rows_of_real_servers(version: str) -> None:
    requested = requested_settings(
        ["x", "--pp-size", "2", "--max-running-requests", "32", "--attention-backend", "torch_native"]
    )
    rows = rows_of(requested, resolved_of(version), {"pp_size": "2"})
    assert rows["pp_size"] == SettingRow("pp_size", "2", "2", "2", False)
    assert rows["pp_max_micro_batch_size"] == SettingRow("pp_max_micro_batch_size", None, "16", None, False)
    assert rows["micro-batch slots"].resolved == "2"
    assert rows["max_running_requests"] == SettingRow("max_running_requests", "32", "32", None, False)
    assert rows["decode graph"] == SettingRow("decode graph", None, "off", None, False)
    assert "speculative_algorithm" not in rows
    assert "moe_a2a_backend" not in rows
    assert not any(row.differs for row in rows.values())


def test_differences_are_marked_between_any_two_facts() -> None:
    resolved = {"pp_size": 4, "attention_backend": "fa3", "disable_cuda_graph": False, "pp_async_batch_depth": 1}
    rows = rows_of(
        {"attention_backend": "triton", "disable_cuda_graph": True},
        resolved,
        {"pp_size": "3", "micro-batch slots": "5"},
    )
    assert {name for name, row in rows.items() if row.differs} == {"pp_size", "attention_backend", "decode graph"}
    assert rows["micro-batch slots"] == SettingRow("micro-batch slots", None, "5", "5", False)


def test_quiet_rows_speak_up_when_asked_or_unusual() -> None:
    assert "speculative_algorithm" in rows_of({}, {"speculative_algorithm": "EAGLE"})
    assert rows_of({"moe_a2a_backend": "deepep"}, {"moe_a2a_backend": "none"})["moe_a2a_backend"].differs
    assert "disaggregation_mode" not in rows_of({}, {"disaggregation_mode": "null"})
    assert rows_of({"SGLANG_PP_LAYER_PARTITION": "8,8"}, None)["SGLANG_PP_LAYER_PARTITION"].requested == "8,8"


def test_unknown_unset_and_zero_are_three_things() -> None:
    assert rows_of({}, None)["schedule_policy"].resolved is None
    assert rows_of({}, {"chunked_prefill_size": None})["chunked_prefill_size"].resolved == "none"
    assert rows_of({}, {"chunked_prefill_size": 0})["chunked_prefill_size"].resolved == "0"


def test_what_counts_per_data_parallel_rank_is_shown_as_asked() -> None:
    resolved = {
        "dp_size": 2,
        "max_running_requests": 64,
        "internal_states": [{"effective_max_running_requests_per_dp": 32}] * 2,
    }
    assert not rows_of({"max_running_requests": 64}, resolved)["max_running_requests"].differs


def test_generations_name_the_largest_size_differently() -> None:
    assert rows_of({}, {"cuda_graph_max_bs": 160})["cuda_graph_max_bs"].resolved == "160"
    new = {"cuda_graph_max_bs": 160, "cuda_graph_config": {"decode": {"backend": "full", "max_bs": 32}}}
    assert rows_of({"cuda_graph_max_bs_decode": 32}, new)["cuda_graph_max_bs"] == SettingRow(
        "cuda_graph_max_bs", "32", "32", None, False
    )


def test_captured_sizes_are_short_and_stand_under_what_they_are() -> None:
    resolved = {"disable_cuda_graph": False, "cuda_graph_bs": list(range(1, 30))}
    assert rows_of({}, resolved)["captured sizes"].resolved == "1 … 29 (29 sizes)"
    row = rows_of({}, resolved, notes=[LogNote(0, "capture", "Capture cuda graph bs [1, 2, 4]")])["captured sizes"]
    assert (row.resolved, row.observed) == (None, "1 2 4")


def test_values_for_other_diagnoses() -> None:
    resolved = resolved_of("0.5.23")
    assert resolved_value(resolved, "pp_max_micro_batch_size") == 16
    assert resolved_value({"chunked_prefill_size": None}, "chunked_prefill_size") is None
    assert resolved_value(None, "pp_size") is None
    assert resolved_value(resolved, "no such row") is None


names = st.sampled_from(
    ["pp_size", "cuda_graph_config", "internal_states", "cuda_graph_bs", "disable_cuda_graph", "dp_size"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["decode", "backend", "bs", "max_bs"]), inner)
    ),
    max_leaves=6,
)
mappings = st.none() | st.dictionaries(names, values)


@settings(max_examples=40, deadline=None)
@given(mappings, mappings)
def test_whatever_the_settings_hold_there_are_rows(
    requested: dict[str, object] | None, resolved: dict[str, object] | None
) -> None:
    assert len(setting_rows(requested, resolved)) > 10

"""Graph states of both generations of flags, and what counts as seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppscope.diagnose.settings import captured_sizes, graph_states
from ppscope.records import BatchLog, LogNote, Metric
from ppscope.target.server_info import resolved_settings

DATA = Path(__file__).parent / "data" / "server"

OLD = {"disable_cuda_graph": False, "disable_piecewise_cuda_graph": True, "cuda_graph_bs": [1, 2, 4]}
NEW = {
    "cuda_graph_config": {"decode": {"backend": "full", "bs": [1, 2]}, "prefill": {"backend": "disabled"}},
    "disable_cuda_graph": False,
}


@pytest.mark.parametrize("version", ["0.5.9", "0.5.11", "0.5.23"])
def test_real_servers_without_graphs_resolve_to_off(version: str) -> None:
    resolved = resolved_settings(json.loads((DATA / f"server_info-{version}.json").read_text()))
    decode, prefill = graph_states({}, resolved)
    assert (decode.resolved, prefill.resolved) == ("off", "off")
    sizes = captured_sizes(resolved)
    assert sizes is None if version != "0.5.23" else sizes == ((), "captured")


@pytest.mark.parametrize(
    ("resolved", "decode", "prefill"),
    [
        (None, None, None),
        ({}, None, None),
        ({"pp_size": 2}, None, None),
        (OLD, "on", "off"),
        ({"disable_cuda_graph": True, "enable_piecewise_cuda_graph": True}, "off", "on"),
        ({"disable_cuda_graph": "yes"}, None, None),
        (NEW, "on", "off"),
        ({"cuda_graph_config": {"decode": {"backend": "disabled"}}, "disable_cuda_graph": False}, "off", None),
        ({"cuda_graph_config": None, "disable_cuda_graph": False}, None, None),
        ({**NEW, "internal_states": [{"decode_cuda_graph_bs": []}]}, "off", "off"),
        ({**NEW, "internal_states": [{"decode_cuda_graph_bs": []}, {"decode_cuda_graph_bs": [1]}]}, "mixed", "off"),
        ({**NEW, "internal_states": [{"decode_cuda_graph_bs": [1]}, {}]}, "on", "off"),
    ],
)
def test_resolved(resolved: dict[str, object] | None, decode: str | None, prefill: str | None) -> None:
    states = graph_states(None, resolved)
    assert (states[0].resolved, states[1].resolved) == (decode, prefill)
    assert (states[0].requested, states[0].observed, states[0].observed_source) == (None, None, None)


@pytest.mark.parametrize(
    ("requested", "resolved", "decode", "prefill"),
    [
        ({}, OLD, None, None),
        ({"disable_cuda_graph": True}, OLD, "off", None),
        ({"disable_cuda_graph": True}, NEW, "off", "off"),
        ({"disable_cuda_graph": True}, None, "off", None),
        ({"disable_decode_cuda_graph": True}, NEW, "off", None),
        ({"cuda_graph_backend_prefill": "breakable"}, NEW, None, "on"),
        ({"cuda_graph_backend_decode": "disabled"}, NEW, "off", None),
        ({"cuda_graph_config": {"decode": {"backend": "full"}, "prefill": {"backend": "disabled"}}}, NEW, "on", "off"),
        ({"cuda_graph_config": '{"decode": {"backend": "disabled"}}'}, NEW, "off", None),
        ({"cuda_graph_config": "{broken"}, NEW, None, None),
        ({"cuda_graph_backend_decode": "full", "disable_cuda_graph": True}, NEW, "on", "off"),
        ({"cuda_graph_backend_decode": "full", "disable_decode_cuda_graph": True}, NEW, "on", None),
        (
            {"cuda_graph_config": {"decode": {"backend": "full"}}, "cuda_graph_backend_decode": "disabled"},
            NEW,
            "on",
            None,
        ),
        (
            {"cuda_graph_config": {"decode": {"backend": "disabled"}}, "cuda_graph_backend_decode": "full"},
            NEW,
            "off",
            None,
        ),
        ({"enforce_piecewise_cuda_graph": True, "disable_cuda_graph": True}, NEW, "off", "on"),
        ({"disable_piecewise_cuda_graph": True}, OLD, None, "off"),
        ({"enable_piecewise_cuda_graph": True}, OLD, None, "on"),
    ],
)
def test_requested(
    requested: dict[str, object], resolved: dict[str, object] | None, decode: str | None, prefill: str | None
) -> None:
    states = graph_states(requested, resolved)
    assert (states[0].requested, states[1].requested) == (decode, prefill)


def lines(mode: str, *flags: bool | None) -> list[BatchLog]:
    return [BatchLog(0, None, mode, None, 0, None, graph=flag) for flag in flags]


def passes(mode: str, *values: float, pp: str = "0") -> list[Metric]:
    return [
        Metric(i, "sglang:cuda_graph_passes_total", (("mode", mode), ("pp_rank", pp)), v) for i, v in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("batches", "metrics", "decode"),
    [
        ([], [], (None, None)),
        (lines("decode", None, None), [], (None, None)),
        (lines("prefill", False), [], (None, None)),
        (lines("decode", True, True, None), [], ("on", "log")),
        (lines("decode", True, False), [], ("mixed", "log")),
        (lines("decode", *[True] * 19, False), [], ("on", "log")),
        (
            lines("decode", True),
            passes("decode_none", 100, 150) + passes("decode_cuda_graph", 7, 7),
            ("off", "metrics"),
        ),
        ([], passes("decode_none", 100, 101) + passes("decode_cuda_graph", 900, 1000), ("on", "metrics")),
        ([], passes("decode_none", 100, 150) + passes("decode_cuda_graph", 10, 60), ("mixed", "metrics")),
        # nothing ran within the window: what was counted before it says nothing about now
        (lines("decode", False), passes("decode_cuda_graph", 900), ("off", "log")),
        # the server began again in between
        ([], passes("decode_cuda_graph", 900, 3, 5), ("on", "metrics")),
        # always 0, whatever runs: no release sets it
        ([], [Metric(0, "sglang:is_cuda_graph", (), 0.0)] * 3, (None, None)),
    ],
)
def test_observed(batches: list[BatchLog], metrics: list[Metric], decode: tuple[str | None, str | None]) -> None:
    state, prefill = graph_states({}, OLD, batches, metrics)
    assert (state.observed, state.observed_source) == decode
    assert prefill.observed == ("off" if batches and batches[0].mode == "prefill" else None)


@pytest.mark.parametrize(
    ("resolved", "texts", "expected"),
    [
        (None, [], None),
        (OLD, [], ((1, 2, 4), "configured")),
        (NEW, [], ((1, 2), "configured")),
        ({**OLD, "disable_cuda_graph": True}, [], None),
        (OLD, ["Capture cuda graph bs [1, 2]"], ((1, 2), "captured")),
        (NEW, ["Capture target decode cuda graph end. bs=[1, 2, 3], elapsed=1 s"], ((1, 2, 3), "captured")),
        (
            NEW,
            ["Capture draft decode cuda graph end. bs=[9]", "Capture target prefill CUDA graph begin. bs=[9]"],
            ((1, 2), "configured"),
        ),
        (
            {**NEW, "internal_states": [{"decode_cuda_graph_bs": [4, 8]}]},
            ["Capture cuda graph bs [1]"],
            ((4, 8), "captured"),
        ),
    ],
)
def test_captured_sizes_take_the_best_word(
    resolved: dict[str, object] | None, texts: list[str], expected: object
) -> None:
    assert captured_sizes(resolved, [LogNote(0, "capture", text) for text in texts]) == expected

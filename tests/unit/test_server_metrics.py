"""The Prometheus reader and what is made of its figures; pages of real servers are in data/server."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ppscope.collect.stream import encode
from ppscope.records import LoadSample, Metric
from ppscope.session.load import LoadState
from ppscope.sources.server_load import LoadMeter, from_loads, from_server_info
from ppscope.sources.server_metrics import KNOWN, ChangedOnly, MetricsReader, Sample, parse_line, to_metrics

DATA = Path(__file__).parent / "data" / "server"
SECOND = 1_000_000_000


def read(page: bytes, cuts: list[int] | None = None) -> list[Sample]:
    reader = MetricsReader()
    edges = [0, *sorted(cut % (len(page) + 1) for cut in cuts or []), len(page)]
    for start, end in pairwise(edges):
        reader.feed(page[start:end])
    return reader.finish()


@pytest.mark.parametrize(("version", "decoded"), [("0.5.9", 3927), ("0.5.11", 3567), ("0.5.23", 3767)])
def test_a_real_page_gives_the_known_series_of_both_stages(version: str, decoded: int) -> None:
    page = (DATA / f"metrics-{version}.txt").read_bytes()
    metrics = to_metrics(read(page), 5)
    values = {(metric.name, metric.labels): metric.value for metric in metrics}
    assert {metric.name for metric in metrics} <= KNOWN
    assert values["sglang:realtime_tokens_total", (("mode", "decode"), ("pp_rank", "0"), ("tp_rank", "0"))] == decoded
    assert ("sglang:num_running_reqs", (("pp_rank", "1"), ("tp_rank", "0"))) in values
    assert values["sglang:http_requests_active", ()] == 8
    assert not any("model_name" in dict(metric.labels) for metric in metrics)
    assert not any(metric.name.endswith("fwd_occupancy") for metric in metrics), "it is NaN without the device timer"


@settings(deadline=None)
@given(st.lists(st.integers(0, 10_000), max_size=30))
def test_the_page_may_come_in_any_pieces(cuts: list[int]) -> None:
    page = (DATA / "metrics-0.5.11.txt").read_bytes()
    assert read(page, cuts) == read(page)


@settings(deadline=None)
@given(
    st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), st.text(max_size=20), max_size=5),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", " 1395066363000"]),
)
def test_a_written_line_reads_back(labels: dict[str, str], value: float, timestamp: str) -> None:
    escaped = {k: v.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"") for k, v in labels.items()}
    line = "sglang:x{" + ",".join(f'{k}="{v}"' for k, v in escaped.items()) + "} " + repr(value) + timestamp
    assert parse_line(line) == Sample("sglang:x", labels, value)


@settings(deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(0, 400), max_size=6))
def test_whatever_comes_is_survived(junk: bytes, cuts: list[int]) -> None:
    page = b"sglang:num_queue_reqs{" + junk + b"\nsglang:num_queue_reqs 3\n"
    assert Sample("sglang:num_queue_reqs", {}, 3.0) in read(page, cuts) or b"\n" not in page


@pytest.mark.parametrize(
    "line",
    [
        "# HELP x y",
        "",
        "sglang:x",
        "sglang:x NaN",
        "sglang:x +Inf",
        'sglang:x{a="1" 2',
        "sglang:x{a=1} 2",
        "sglang:x 1 2 3",
        "{} 1",
    ],
)
def test_lines_without_a_finite_sample_give_none(line: str) -> None:
    assert parse_line(line) is None


def test_a_page_without_an_end_costs_little_memory() -> None:
    reader = MetricsReader()
    for _ in range(40):
        reader.feed(b'sglang:num_queue_reqs{a="' + b"x" * 100_000)
        assert len(reader._rest) <= 200_000
    reader.feed(b'"} 1\nsglang:num_queue_reqs 7\n' + b"sglang:unknown 1\n" * 1000)
    assert [sample.value for sample in reader.finish()] == [7.0]


def test_the_total_of_all_priorities_is_taken_once() -> None:
    page = b"".join(
        b'sglang:num_queue_reqs{priority="%s",pp_rank="0"} %d\n' % row for row in ((b"", 5), (b"1", 3), (b"None", 2))
    )
    assert [(m.labels, m.value) for m in to_metrics(read(page), 0)] == [((("pp_rank", "0"),), 5.0)]


def test_only_changed_series_are_sent_and_all_of_them_now_and_then() -> None:
    gate = ChangedOnly(refresh_s=30)
    page = [Metric(0, "a", (), 1.0), Metric(0, "b", (), 1.0)]
    assert gate.filter(page, 0) == page
    assert gate.filter([page[0], Metric(1, "b", (), 2.0)], SECOND) == [Metric(1, "b", (), 2.0)]
    assert len(gate.filter(page, 31 * SECOND)) == 2


def metric(name: str, value: float, pp: int = 0, tp: int = 0, dp: int | None = None, mode: str | None = None) -> Metric:
    labels = {"pp_rank": str(pp), "tp_rank": str(tp)}
    labels |= {} if dp is None else {"dp_rank": str(dp)}
    labels |= {} if mode is None else {"mode": mode}
    return Metric(0, f"sglang:{name}", tuple(sorted(labels.items())), value)


def page_of(tokens: float, passes: float, pp_size: int = 2, dp_size: int = 1) -> list[Metric]:
    page = [Metric(0, "sglang:http_requests_active", (), 8.0)]
    for pp in range(pp_size):
        for dp in range(dp_size):
            place = partial(metric, pp=pp, tp=2 * dp, dp=dp if dp_size > 1 else None)
            page += [
                place("num_running_reqs", 4),
                place("num_queue_reqs", 1),
                place("realtime_tokens_total", tokens, mode="decode"),
                place("realtime_tokens_total", 9e9, mode="prefill_compute"),
                place("cuda_graph_passes_total", passes, mode="decode_none"),
                place("cuda_graph_passes_total", 10, mode="decode_cuda_graph"),
                place("cuda_graph_passes_total", 9e9, mode="prefill_none"),
            ]
    return page


def test_under_pp_the_server_s_running_is_not_claimed_and_tokens_are_not_summed_over_stages() -> None:
    meter = LoadMeter()
    meter.update(page_of(1000, 100), 0, 2)
    whole, first, second = meter.update(page_of(1400, 200), 2 * SECOND, 2)
    assert (whole.running, whole.queued, whole.tokens_per_s, whole.micro_batch, whole.in_flight) == (
        None,
        1,
        200.0,
        4.0,
        8,
    )
    assert [(s.stage, s.running, s.tokens_per_s) for s in (first, second)] == [(0, 4, 200.0), (1, 4, 200.0)]


def test_data_parallel_ranks_are_summed_and_a_single_stage_s_running_is_the_server_s() -> None:
    meter = LoadMeter()
    meter.update(page_of(1000, 100, pp_size=1, dp_size=2), 0, 1)
    (whole,) = meter.update(page_of(1400, 200, pp_size=1, dp_size=2), 2 * SECOND, 1)
    assert (whole.running, whole.queued, whole.tokens_per_s, whole.micro_batch) == (8, 2, 400.0, 4.0)


@pytest.mark.parametrize("dp_size", [1, 2, 8])
def test_each_ranks_counter_of_passes_counts_for_itself(dp_size: int) -> None:
    """Their values are far apart: the difference between two ranks' counters is none of anything."""
    load = LoadState()
    for second in range(10):
        for dp in range(dp_size):
            for mode, value in (("decode_cuda_graph", 10_000 - 1_000 * dp + 20 * second), ("decode_none", 2 + 3 * dp)):
                for pp in (0, 1):
                    place = metric("cuda_graph_passes_total", value, pp=pp, dp=dp if dp_size > 1 else None, mode=mode)
                    load.add_metric(replace(place, at_ns=second * SECOND))
    assert load.passes_since(0) == {"decode_cuda_graph": 180.0 * dp_size, "decode_none": 0.0}
    assert load.passes_since(5 * SECOND) == {"decode_cuda_graph": 80.0 * dp_size, "decode_none": 0.0}


@pytest.mark.parametrize(("every_s", "holds_s"), [(1.0, 5.0), (3.5, 5.2), (10.0, 14.0), (30.0, 44.0), (300.0, 44.0)])
def test_a_page_that_is_read_seldom_holds_until_the_next(every_s: float, holds_s: float) -> None:
    load = LoadState()
    for turn in range(4):
        load.add(LoadSample(int(turn * every_s * SECOND), "metrics", running=8, queued=2, in_flight=10))
    last_ns = int(3 * every_s * SECOND)
    assert load.in_flight(last_ns + int(holds_s * SECOND)) == 10
    assert load.queued_since(last_ns + int(holds_s * SECOND)) == 0
    assert load.in_flight(last_ns + int((holds_s + 1.5) * SECOND)) is None


def page(at_s: float, queued: int, tokens_per_s: float | None = 0.0) -> LoadSample:
    return LoadSample(int(at_s * SECOND), "metrics", running=0, queued=queued, tokens_per_s=tokens_per_s, in_flight=0)


def test_a_queue_in_one_page_that_is_dear_is_no_blocked_queue() -> None:
    load = LoadState()
    load.add(page(100, 0))
    load.add(LoadSample(129 * SECOND, "log", queued=3))
    load.add(page(130, 5))
    assert load.queued_since(134 * SECOND) == 129 * SECOND
    assert not load.queue_is_open(134 * SECOND)
    assert [load.queued_since(at * SECOND) for at in (139, 159)] == [None, None], "the log's line is of the same moment"
    assert load.queue_is_open(159 * SECOND), "the next page will tell"
    load.add(page(160, 5))
    assert load.queued_since(170 * SECOND) == 129 * SECOND, "two pages"
    load.add(page(190, 0))
    assert load.queued_since(191 * SECOND) is None
    assert not load.queue_is_open(191 * SECOND)


def test_the_log_is_believed_where_a_dear_page_was_read_before_it() -> None:
    load = LoadState()
    for at in (100, 130):
        load.add(page(at, 0))
    for at in range(135, 150, 2):
        load.add(LoadSample(at * SECOND, "log", running=6, queued=3, tokens_per_s=240.0))
    seen = load.view(150 * SECOND, None)
    assert (seen.source, seen.tokens_per_s, seen.running, seen.queued) == ("log", 240.0, 6, 3)
    assert load.in_flight(150 * SECOND) is None, "requests must be open where tokens come"
    load.add(page(151, 1, 200.0))
    seen = load.view(152 * SECOND, None)
    assert (seen.source, seen.tokens_per_s, seen.running, seen.queued) == ("metrics", 200.0, 0, 1)
    assert load.in_flight(152 * SECOND) == 0


@pytest.mark.parametrize("source", ["log", "server_info"])
def test_a_dear_page_is_believed_over_older_lines_and_over_a_rate_of_no_known_time(source: str) -> None:
    load = LoadState()
    for at in (100, 130):
        load.add(page(at, 0))
    load.add(LoadSample((129 if source == "log" else 135) * SECOND, source, tokens_per_s=240.0))
    seen = load.view(140 * SECOND, None)
    assert (seen.source, seen.tokens_per_s) == ("metrics", 0.0)
    assert load.in_flight(140 * SECOND) == 0


def test_passes_of_a_counter_that_began_again_are_those_since() -> None:
    load = LoadState()
    for second, value in enumerate([5000, 5010, 4, 9]):
        load.add_metric(replace(metric("cuda_graph_passes_total", value, mode="decode_none"), at_ns=second * SECOND))
    assert load.passes_since(0) == {"decode_none": 15.0}


def test_a_counter_that_began_again_gives_no_rate_and_an_idle_server_zero() -> None:
    meter = LoadMeter()
    meter.update(page_of(1000, 100), 0, 2)
    assert meter.update(page_of(10, 1), SECOND, 2)[0].tokens_per_s is None
    for second in range(2, 7):
        whole = meter.update(page_of(10, 1), second * SECOND, 2)[0]
    assert (whole.tokens_per_s, whole.micro_batch) == (0.0, None)


def test_the_rate_falls_back_to_the_gauge_of_old_servers_and_one_tp_rank_speaks_for_its_stage() -> None:
    page = [metric("gen_throughput", 50.0 + tp, tp=tp) for tp in (1, 0, 2)]
    (whole,) = LoadMeter().update(page, 0, 1)
    assert whole.tokens_per_s == 50.0
    assert LoadMeter().update([Metric(0, "sglang:http_requests_active", (), 1.0)], 0, 1) == []


def test_speculative_decoding_has_no_mean_micro_batch() -> None:
    meter = LoadMeter()
    extra = [metric("spec_accept_length", 2.5)]
    meter.update([*page_of(0, 0), *extra], 0, 2)
    assert meter.update([*page_of(100, 10), *extra], SECOND, 2)[0].micro_batch is None


@pytest.mark.parametrize(
    ("answer", "pp_size", "expected"),
    [
        (
            {"loads": [{"num_running_reqs": 3, "num_waiting_reqs": 2, "gen_throughput": 5.5, "token_usage": 0.1}]},
            1,
            (3, 2, 5.5),
        ),
        (
            {"loads": [{"num_running_reqs": 3, "num_waiting_reqs": 0}, {"num_running_reqs": 1, "num_waiting_reqs": 1}]},
            1,
            (4, 1, None),
        ),
        ({"loads": [{"num_running_reqs": 3, "num_waiting_reqs": 2}]}, 4, (None, 2, None)),
        ([{"num_reqs": 9, "num_waiting_reqs": 2}], 1, (7, 2, None)),
        ([{"num_reqs": 9, "num_waiting_reqs": 2}], 4, (None, 2, None)),
    ],
)
def test_loads_of_both_endpoints(answer: object, pp_size: int, expected: tuple[object, ...]) -> None:
    load = from_loads(answer, 1, pp_size)
    assert load is not None
    assert (load.running, load.queued, load.tokens_per_s) == expected


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["loads", "num_waiting_reqs", "num_reqs"]), inner)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(json_like)
def test_any_json_is_a_load_or_none(answer: object) -> None:
    assert isinstance(from_loads(answer, 1, 2), LoadSample | None)
    assert isinstance(from_server_info(answer, 1), LoadSample | None)


@pytest.mark.parametrize("value", [1e15, 1e300, -1e300, float("inf"), float("nan")])
def test_a_count_that_is_none_is_unknown_and_can_be_sent(value: float) -> None:
    page = [
        Metric(0, "sglang:http_requests_active", (), value),
        metric("num_running_reqs", value),
        metric("num_queue_reqs", value),
    ]
    for load in LoadMeter().update(page, 0, 1):
        encode(load)
        assert (load.running, load.queued) == (None, None)
    told = from_loads([{"num_running_reqs": value, "num_waiting_reqs": value}] * 2, 1, 1)
    assert told is not None
    assert (told.running, told.queued) == (None, None)

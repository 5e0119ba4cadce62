"""Titles of every version, whole, padded and cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.records import RankKey
from ppscope.target.titles import PREFIX, parse_title

PARTS = ("DP", "PP", "ATTN_CP", "MOE_DP", "TP", "EP")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("sglang::scheduler", RankKey(0, 0, 0)),
        ("sglang::scheduler_PP2", RankKey(0, 2, 0)),
        ("sglang::scheduler_PP1_TP3", RankKey(0, 1, 3)),
        ("sglang::scheduler_DP1_PP0_TP2_EP2", RankKey(1, 0, 2)),
        ("sglang::scheduler_DP1_PP10_ATTN_CP1_MOE_DP4_TP12_EP3   ", RankKey(1, 10, 12)),
        ("sglang::scheduler_TP7\0\0\0\0\0", RankKey(0, 0, 7)),
    ],
)
def test_scheduler_titles_name_their_rank(text: str, key: RankKey) -> None:
    title = parse_title(text)
    assert title is not None
    assert (title.kind, title.key) == ("scheduler", key)


@pytest.mark.parametrize(
    ("text", "kind", "truncated"),
    [
        ("sglang::detokenizer", "detokenizer", False),
        ("sglang::detokenizer_router", "detokenizer_router", False),
        ("sglang::data_parallel_controller", "dp_controller", False),
        ("sglang::tokenizer_worker:4711", "tokenizer_worker", False),
        ("sglang::schedul", "scheduler", True),
        ("sglang::detoken", "detokenizer", True),
        ("sglang::data_pa", "dp_controller", True),
        ("sglang::tokeniz", "tokenizer_worker", True),
        ("sglang::scheduler_PP1_T", "scheduler", True),
        ("sglang::scheduler_PP1_SHINY3", "scheduler", True),
        ("sglang::something_new", "other", True),
    ],
)
def test_other_and_cut_titles(text: str, kind: str, truncated: bool) -> None:
    title = parse_title(text)
    assert title is not None
    assert (title.kind, title.truncated, title.key) == (kind, truncated, None)


@pytest.mark.parametrize(
    "text", ["", "python", "xsglang::scheduler", "sglang:scheduler", " sglang::scheduler", "sgl_diffusion::scheduler"]
)
def test_foreign_titles_are_nobody(text: str) -> None:
    assert parse_title(text) is None


@given(
    ranks=st.dictionaries(st.sampled_from(PARTS), st.integers(0, 4096)),
    order=st.permutations(PARTS),
    padding=st.text(alphabet=" \0", max_size=40),
)
def test_any_order_of_parts_reads_back(ranks: dict[str, int], order: list[str], padding: str) -> None:
    text = "sglang::scheduler" + "".join(f"_{name}{ranks[name]}" for name in order if name in ranks)
    title = parse_title(text + padding)
    assert title is not None
    assert not title.truncated
    read = {
        "DP": title.dp,
        "PP": title.pp,
        "ATTN_CP": title.attn_cp,
        "MOE_DP": title.moe_dp,
        "TP": title.tp,
        "EP": title.ep,
    }
    assert {name: number for name, number in read.items() if number is not None} == ranks
    assert title.key == RankKey(ranks.get("DP", 0), ranks.get("PP", 0), ranks.get("TP", 0))


@given(st.text(max_size=60), st.integers(0, 60))
def test_hostile_and_cut_titles_never_raise_and_never_invent_a_rank(tail: str, cut: int) -> None:
    parse_title(tail)
    text = (PREFIX + tail)[:cut]
    title = parse_title(text)
    if title is not None and title.key is not None:
        assert title.text.startswith("sglang::scheduler")

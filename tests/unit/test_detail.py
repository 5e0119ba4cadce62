"""What the way down says of a single span."""

from __future__ import annotations

import pytest

from ppscope.records import RankKey
from ppscope.views import PhaseStyle, RankRow, Span
from ppscope.widgets.detail import batch_text, rank_listing, span_listing
from ppscope.widgets.listing import Item
from ppscope.widgets.text import width_of

PHASES = (PhaseStyle("forward", "forward", "work", "█", "#", "green", "green"),)
ROW = RankRow(RankKey(0, 0, 0), 7, True, None, None, None, None, None, None, None, ())
SAMPLED = Span(1_000_000, 3_000_000, 0, None, 2, "sampled")
EXACT = Span(1_000_000, 3_000_000, 0, None, 2, "exact", "DECODE", 8, 8, "replayed")


def text(item: Item) -> str:
    return "\n".join("".join(part for part, _ in line) for line in item.lines)


@pytest.mark.parametrize(
    ("span", "said"),
    [
        (SAMPLED, ""),
        (EXACT, "decode  8 req  graph: replayed"),
        (Span(0, 1, 0, None, 0, "exact", "EXTEND", 2, 910, "tokens_over_captured"), "extend  2 req  910 tok  graph: tokens over captured"),
        (Span(0, 1, 0, None, 0, "exact", "DECODE", None, None, None), "decode"),
        (Span(0, 1, 0, None, 0, "exact", None, 3, 12, None), "3 req  12 tok"),
    ],
)  # fmt: skip
def test_what_ran_is_what_the_probe_knows_and_nothing_else(span: Span, said: str) -> None:
    assert batch_text(span) == said


def test_a_span_in_the_list_and_alone_tells_its_batch() -> None:
    listing = rank_listing(ROW, [SAMPLED, EXACT], PHASES, 0, 120)
    newest, older = listing.items
    assert text(newest).endswith("exact    decode  8 req  graph: replayed")
    assert text(older).rstrip().endswith("sampled")
    assert "micro-batch 2 forward (exact) decode 8 req graph: replayed" in newest.copy
    head = span_listing(EXACT, (), PHASES, 0, 120).head
    assert "decode  8 req  graph: replayed" in "".join(part for part, _ in head[0])


@pytest.mark.parametrize("width", [80, 100, 160])
def test_a_rank_tells_all_its_facts_in_any_width(width: int) -> None:
    shares = tuple((0, 0.1) for _ in range(6))
    row = RankRow(RankKey(0, 0, 0), 1234567, True, None, 7, "nvml", 600.0, 600.0, 100, 0.28, shares, 127)
    head = rank_listing(row, [], PHASES, 0, width).head
    assert all(width_of(line) <= width for line in head)
    said = " ".join("".join(part for part, _ in line) for line in head)
    assert "main thread 28 % of a core" in said
    assert "threads 127" in said
    assert said.count("forward") == 6

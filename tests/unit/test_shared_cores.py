"""Work that shares cores, against what can be worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.diagnose.shared_cores import SharedCores


def ends(cores: float | None, pieces: list[tuple[float, float]]) -> dict[int, float]:
    """When each piece is done, given (begin, work) of each."""
    shared, done = SharedCores(cores), {}
    begins = sorted((begin, piece, work) for piece, (begin, work) in enumerate(pieces))
    while begins or shared.next_end() is not None:
        end = shared.next_end()
        if begins and (end is None or begins[0][0] < end):
            begin, piece, work = begins.pop(0)
            shared.add(piece, work, begin)
        elif end is not None:
            done[shared.pop(end)] = end
    return done


@pytest.mark.parametrize(
    ("cores", "pieces", "expected"),
    [
        (None, [(0, 1), (0, 2), (0, 3)], [1, 2, 3]),
        (2, [(0, 1), (0, 2)], [1, 2]),
        (1, [(0, 1), (0, 1)], [2, 2]),
        (1, [(0, 2), (1, 1)], [3, 3]),
        (2, [(0, 1), (0, 1), (0, 2)], [1.5, 1.5, 2.5]),
        (0.5, [(0, 1)], [2]),
        (1, [(0, 1), (5, 1)], [1, 6]),
    ],
    ids=["enough", "one each", "half each", "a later one", "three on two", "half a core", "a pause between"],
)
def test_by_hand(cores: float | None, pieces: list[tuple[float, float]], expected: list[float]) -> None:
    done = ends(cores, pieces)
    assert [done[piece] for piece in range(len(pieces))] == pytest.approx(expected)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.001, 1)), min_size=1, max_size=8),
    st.sampled_from([None, 0.5, 1, 2, 3.5]),
)
def test_no_piece_is_faster_than_alone_and_no_core_does_two(
    pieces: list[tuple[float, float]], cores: float | None
) -> None:
    done = ends(cores, pieces)
    for piece, (begin, work) in enumerate(pieces):
        assert done[piece] >= begin + work * (1 - 1e-9) - 1e-9
    if cores is not None:
        first, last = min(begin for begin, _ in pieces), max(done.values())
        assert sum(work for _, work in pieces) <= (last - first) * cores * (1 + 1e-6) + 1e-9

"""The collector of garbage: held at the start, settled before the screen runs, on again whatever happens."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from ppscope import garbage


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_what_was_there_before_is_not_looked_at_again_and_the_new_is() -> None:
    before = [[] for _ in range(10)]  # type: list[list[int]]
    garbage.hold()
    assert not gc.isenabled()
    garbage.settle()
    assert gc.isenabled()
    after: list[list[int]] = [[]]
    looked_at = {id(one) for one in gc.get_objects()}
    assert not looked_at & set(map(id, before))
    assert id(after) in looked_at


def test_a_command_that_ends_early_leaves_it_on() -> None:
    garbage.hold()
    garbage.release()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0

"""The targets of `python -m tests.fuzz`: real input passes, and a handful of nearly real ones each time the suite runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.fuzz.mutate import Mutator
from tests.fuzz.targets import TARGETS, Target, scratch


@pytest.fixture(autouse=True)
def tidy() -> Iterator[None]:
    yield
    shutil.rmtree(scratch("x").parent, ignore_errors=True)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_real_and_nearly_real_input_is_read_or_refused(target: Target) -> None:
    seeds = target.seeds()
    assert seeds
    for seed in seeds:
        target.run(seed)
    mutator = Mutator(seeds, number=7)
    for _ in range(25):
        target.run(mutator.next())


def test_the_same_number_gives_the_same_inputs() -> None:
    seeds = [b'{"a": [1, 2, {"b": "c"}]}', b"plain"]
    one, other = Mutator(seeds, 3), Mutator(seeds, 3)
    assert [one.next() for _ in range(200)] == [other.next() for _ in range(200)]
    assert len({Mutator(seeds, number).next() for number in range(200)}) > 100

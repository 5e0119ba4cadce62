"""Which Python a process runs, and what is said when py-spy cannot read it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ppscope.sources import stacks_pyspy
from ppscope.target.procfs import Proc
from ppscope.target.python_build import python_files, python_of
from tests.unit.fake_proc import FakeProc

UNREADABLE = (
    b"Error: Failed to find a python interpreter in the .data section\n",  # py-spy 0.4.3 of a 3.13.5t
    b"Error: Failed to find python version from target process\n",
    b"Error: failed to find version string\n",
)


@pytest.mark.parametrize("program", ["python3.13", "python3.13t", "python3"])
def test_a_free_threaded_build_whatever_its_program_is_called(tmp_path: Path, program: str) -> None:
    maps = [f"/opt/bin/{program}", "/opt/lib/python3.13t/lib-dynload/_json.cpython-313t-x86_64-linux-gnu.so"]
    fake = FakeProc(tmp_path)
    fake.add(10, ["python"], exe=f"/opt/bin/{program}", maps=maps)
    assert python_of(python_files(Proc(fake.root), 10)) == ((3, 13), True)


@pytest.mark.parametrize("stderr", UNREADABLE)
def test_a_free_threaded_build_is_named_and_not_py_spy_blamed(stderr: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks_pyspy, "python_of", lambda _: ((3, 13), True))
    trouble = stacks_pyspy.explain(stderr, 1, os.getpid())
    assert (trouble.kind, trouble.remedy) == ("version", stacks_pyspy.USUAL_BUILD)
    assert "Python 3.13, a free-threaded build" in trouble.message
    monkeypatch.setattr(stacks_pyspy, "python_of", lambda _: ((3, 13), False))
    assert "pip install -U py-spy" in stacks_pyspy.explain(stderr, 1, os.getpid()).remedy

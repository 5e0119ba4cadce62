"""The doctor's parsers on anything at all, and on what the kernel and Python really write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.doctor.parse import version
from ppscope.target.procfs import status_number
from ppscope.target.python_build import python_of

NAMES = ("CapEff", "Seccomp", "NSpid")


@given(st.binary(max_size=300), st.sampled_from(NAMES), st.sampled_from([10, 16]))
def test_status_of_any_bytes(raw: bytes, name: str, base: int) -> None:
    number = status_number(raw, name, base)
    assert number is None or name.encode() in raw


@given(st.integers(0, 2**64 - 1), st.text(st.characters(codec="ascii", exclude_characters="\n:"), max_size=20))
def test_status_finds_its_own_line(value: int, other: str) -> None:
    raw = f"Name:\t{other}\nCapEffective:\t1\nCapEff:\t{value:016x}\nSeccomp:\t2\n".encode()
    assert status_number(raw, "CapEff", 16) == value
    assert status_number(raw, "Seccomp") == 2


@given(st.text(max_size=200))
def test_version_of_any_text(text: str) -> None:
    found = version(text)
    assert found is None or 2 <= len(found) <= 3


@pytest.mark.parametrize(
    ("paths", "wanted"),
    [
        (["/usr/bin/python3.11"], ((3, 11), False)),
        (["/opt/py/bin/python3.13t"], ((3, 13), True)),
        (["/usr/bin/python3", "/usr/lib/x86_64-linux-gnu/libpython3.10.so.1.0"], ((3, 10), False)),
        (["/app", "/opt/lib/libpython3.14t.so.1.0"], ((3, 14), True)),
        (["/app", "/venv/lib/python3.12/site-packages/torch/lib/libtorch.so"], ((3, 12), False)),
        (["/root/.local/python3.9-build/bin/python3.11"], ((3, 11), False)),
        (["/usr/lib/libpython3.8m.so.1.0"], ((3, 8), False)),
        (
            ["/opt/bin/python3.13", "/opt/lib/python3.13t/lib-dynload/_json.cpython-313t-x86_64-linux-gnu.so"],
            ((3, 13), True),
        ),
        (["/opt/bin/python3.13", "/site/msgpack.cpython-313t-x86_64-linux-gnu.so"], ((3, 13), True)),
        (
            ["/opt/bin/python3.13", "/opt/lib/python3.13/lib-dynload/_json.cpython-313-x86_64-linux-gnu.so"],
            ((3, 13), False),
        ),
        (["/opt/bin/python3.13", "/opt/lib/python3.14t/x.so"], ((3, 13), False)),
        (["/usr/bin/python3", "/lib/libc.so.6"], None),
        ([], None),
    ],
)
def test_python_by_the_names_of_its_files(paths: list[str], wanted: tuple[tuple[int, int], bool] | None) -> None:
    assert python_of(paths) == wanted


@given(st.lists(st.text(max_size=60), max_size=5))
def test_python_of_any_paths(paths: list[str]) -> None:
    found = python_of(paths)
    assert found is None or any(f"python{found[0][0]}." in path for path in paths)

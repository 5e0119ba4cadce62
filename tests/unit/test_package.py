"""The wheel holds what git holds, under the names it is imported by, and the manual page where `man` looks."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.shared import ROOT


def tracked() -> set[str]:
    """Package files that git knows, with widgets/ under the name it is imported by."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "ppscope", "widgets"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = set()
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_symlink():
            continue
        names.add(f"ppscope/{name}" if name.startswith("widgets/") else name)
    return names


def test_the_wheel_is_what_git_holds(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        ".",
    ]
    copy = tmp_path / "source"
    subprocess.run(["git", "checkout-index", "-a", f"--prefix={copy}/"], cwd=ROOT, check=True)
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if not name.split("/")[0].endswith((".dist-info", ".data"))}
        manuals = [name for name in archive.namelist() if name.endswith(".data/data/share/man/man1/ppscope.1")]
        assert [archive.read(name) for name in manuals] == [(copy / "docs" / "ppscope.1").read_bytes()]
    assert packed == tracked()

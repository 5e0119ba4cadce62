"""Sources of published SGLang versions for the tests that read them, downloaded once into a cache folder."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from ppscope.sources.rules import read_rules
from ppscope.sources.rules_model import RuleBook

CACHE = Path(os.environ.get("PPSCOPE_WHEEL_CACHE") or Path.home() / ".cache" / "ppscope-wheels")


def package(version: str) -> Path:
    """The `sglang` folder of a version, its Python sources under `srt` only. Skips the test when it cannot be had."""
    folder = CACHE / f"sglang-{version}-src"
    if not (folder / "sglang" / "srt" / "server_args.py").is_file():
        _unpack(_wheel(version), folder)
    return folder / "sglang"


def _wheel(version: str) -> Path:
    CACHE.mkdir(parents=True, exist_ok=True)
    found = sorted(CACHE.glob(f"sglang-{version}-*.whl"))
    if found:
        return found[0]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--timeout", "15"]
    command += ["--retries", "1", f"sglang=={version}", "-d", str(CACHE)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"sglang {version}: the package index did not answer in time")
    found = sorted(CACHE.glob(f"sglang-{version}-*.whl"))
    if done.returncode != 0 or not found:
        last = (done.stderr.strip() or "no reason given").splitlines()[-1]
        pytest.skip(f"sglang {version}: the package index is not reachable: {last}")
    return found[0]


def _unpack(wheel: Path, folder: Path) -> None:
    """Unpack into a folder beside the target and rename, so that a test that is cut off leaves nothing half done."""
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch, zipfile.ZipFile(wheel) as archive:
        names = [
            n
            for n in archive.namelist()
            if (n.startswith("sglang/srt/") and n.endswith(".py")) or n.endswith("/METADATA")
        ]
        archive.extractall(scratch, names)
        try:
            Path(scratch).rename(folder)
        except OSError:
            if not folder.is_dir():  # another run was first
                raise
        Path(scratch).mkdir(exist_ok=True)


@functools.cache
def book(version: str) -> RuleBook:
    """The rules of a version, read once."""
    return read_rules(package(version))

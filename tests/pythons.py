"""Runs the unit tests under every other supported Python that is on this machine; says which are not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.shared import ROOT

_FAILURES = 1
"""pytest's exit code when tests ran and some failed."""
VERSIONS = ("3.10", "3.11", "3.12", "3.13")


def interpreter(version: str, module: str = "venv") -> str | None:
    """A Python of that version that has a module: on PATH if it really starts, else among pyenv's."""
    candidates = [shutil.which(f"python{version}")]
    candidates += [str(path) for path in Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")]
    for candidate in filter(None, candidates):
        started = subprocess.run([candidate, "-c", f"import {module}"], capture_output=True, check=False)
        if started.returncode == 0:
            return candidate
    return None


def run(version: str, python: str) -> int:
    """Install into an environment of its own and run the unit tests there; failures get a second try alone."""
    folder = ROOT / f".venv-{version}"
    binary = folder / "bin" / "python"
    if not binary.exists():
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
    install = [str(binary), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-e", ".[dev]"]
    subprocess.run(install, cwd=ROOT, check=True)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    tests = [str(binary), "-m", "pytest", "-q", "tests/unit"]
    code = subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode
    if code == _FAILURES:
        print(f"-- Python {version}, what failed once more: flaky if it passes")
        again = [*tests, "--last-failed", "--last-failed-no-failures", "none"]
        code = subprocess.run(again, cwd=ROOT, env=environment, check=False).returncode
    return code


def main() -> int:
    """Status 0 when every Python that was found passes."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    failed = []
    for version in VERSIONS:
        if version == here:
            continue
        python = interpreter(version)
        if python is None:
            print(f"skipped: Python {version} is not on this machine")
            continue
        print(f"-- Python {version}")
        if run(version, python):
            failed.append(version)
    if failed:
        print(f"failed under Python {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

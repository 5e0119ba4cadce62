"""Servers on a Python that ppscope itself does not run on: what py-spy reads is shown, what it does not read is named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.shared import ROOT
from tests.terminal.terminal import PPSCOPE

READ = ("3.14", "3.15")
FREE_THREADED = ("3.13t", "3.14t", "3.15t")


def interpreter(version: str) -> Path:
    """On PATH, else among pyenv's."""
    on_path = shutil.which(f"python{version}")
    found = [] if on_path is None else [Path(on_path)]
    for candidate in [*found, *Path.home().glob(f".pyenv/versions/*/bin/python{version}")]:
        if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    pytest.skip(f"Python {version} is not on this machine")


@contextmanager
def served_by(python: Path) -> Iterator[int]:
    """An emulated server on that Python; its launcher's pid."""
    command = [str(python), "-P", "-m", "ppscope.emulator", "--pp", "2", "--seconds", "60", "--die-with-parent"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd="/"
    ) as server:
        assert server.stdout is not None
        try:
            ready = next(line for line in server.stdout if line.startswith("ready "))
            yield int(ready.split("pid=")[1].split()[0])
        finally:
            server.terminate()


def ppscope(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PPSCOPE), *arguments], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize("version", READ)
def test_a_newer_python_is_read(version: str) -> None:
    with served_by(interpreter(version)) as pid:
        done = ppscope("doctor", str(pid), "--json")
        checks = {check["id"]: check for check in json.loads(done.stdout)["checks"]}
        assert checks["pyspy.python"]["state"] == "ok"
        assert f"Python {version}" in checks["pyspy.python"]["what"]
        done = ppscope("check", str(pid))
        assert "slots ≈1 of 2" in done.stdout, done.stdout + done.stderr
        assert "pipeline.serial" in done.stdout


@pytest.mark.parametrize("name", ["python{version}", "python3"])
@pytest.mark.parametrize("version", FREE_THREADED)
def test_a_free_threaded_build_is_named(version: str, name: str) -> None:
    python = interpreter(version).with_name(name.format(version=version))
    if not python.exists():
        pytest.skip(f"{python} is not there")
    with served_by(python) as pid:
        done = ppscope("doctor", str(pid))
        assert done.returncode == 1
        assert f"Python {version.rstrip('t')}, a free-threaded build, whose stacks py-spy cannot read" in done.stdout
        done = ppscope("check", str(pid), "--seconds", "2")
        assert done.returncode == 3
        assert "a free-threaded build, whose stacks py-spy cannot read" in done.stderr
        assert "start the server with the usual build of Python" in done.stderr
        assert "pip install" not in done.stderr

"""A fake NVML library, built once per test run with the system's C compiler."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

LIBRARY = "libnvidia-ml.so.1"


@functools.lru_cache(maxsize=1)
def _folder() -> Path:
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: the fake NVML library cannot be built")
    folder = Path(tempfile.mkdtemp(prefix="ppscope-fake-nvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source = Path(__file__).with_name("fake_nvml.c")
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        str(source),
        "-o",
        str(folder / LIBRARY),
    ]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@functools.lru_cache(maxsize=1)
def _broken_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ppscope-no-nvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / LIBRARY).write_bytes(b"")
    return folder


def fake_nvml_env(
    scenario: str = "healthy",
    *,
    gpus: int = 8,
    after: int | None = None,
    pids: str = "",
    log: Path | None = None,
) -> dict[str, str]:
    """The environment in which nvidia-ml-py finds the fake library in this scenario (see fake_nvml.c); skips without a compiler.

    Scenario `missing` is a node without the library, also where a real driver is installed. `pids` are
    "gpu:pid gpu:pid"; `after` is the number of device calls before hang, crash and the like begin.
    """
    folder = _broken_folder() if scenario == "missing" else _folder()
    path = os.environ.get("LD_LIBRARY_PATH")
    environment = {**os.environ, "LD_LIBRARY_PATH": f"{folder}:{path}" if path else str(folder)}
    environment |= {"FAKE_NVML": scenario, "FAKE_NVML_GPUS": str(gpus), "FAKE_NVML_PIDS": pids}
    if after is not None:
        environment["FAKE_NVML_AFTER"] = str(after)
    if log is not None:
        environment["FAKE_NVML_LOG"] = str(log)
    return environment

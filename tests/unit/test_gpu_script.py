"""The GPU script's own logic: its dry run holds, a wrong count would not, and without a GPU it says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.gpu.checks import Results
from tests.shared import ROOT

SCRIPT = ROOT / "tests" / "gpu" / "run.sh"


def run(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHON": sys.executable, **({"PATH": path} if path is not None else {})}
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments], capture_output=True, text=True, env=env, timeout=60, check=False
    )


def test_the_dry_run_holds_every_check(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    done = run("--dry", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert result["schema"] == "ppscope.gpu-checks/1"
    assert len(result["checks"]) == 12
    assert all(check["holds"] for check in result["checks"])
    assert set(result["skipped"]) == {"timer", "nvml"}


def test_without_a_gpu_it_is_skipped_with_a_reason(tmp_path: Path) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for tool in ("dirname", "sed", "bash"):
        (bin_folder / tool).symlink_to(f"/usr/bin/{tool}" if Path(f"/usr/bin/{tool}").exists() else f"/bin/{tool}")
    done = run(str(tmp_path / "x.json"), path=str(bin_folder))
    assert done.returncode == 3
    assert "no NVIDIA GPU" in done.stderr
    assert not (tmp_path / "x.json").exists()


def test_usage() -> None:
    assert run("--help").returncode == 2


def test_a_wrong_count_or_a_fault_does_not_hold() -> None:
    results = Results()
    results.equal("a", 1, 2)
    results.near("b", 1.0, None, 5)
    results.near("c", None, None, 5)
    results.part("d", [].pop)
    assert [check["holds"] for check in results.checks] == [False, False, False]
    assert "c" in results.skipped

"""The first five minutes of somebody who was given a folder of wheels: a fresh home, a fresh environment, no network.

Under every supported Python of this machine. The folder itself needs an index once; without one these tests are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.pythons import VERSIONS, interpreter
from tests.shared import ROOT
from tests.terminal.faults_tools import leave, live
from tests.terminal.terminal import Terminal

WITHOUT_PTRACE = ("setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace")
STAGES = 2


@dataclass
class Installed:
    """ppscope in an environment of its own, or in the user's folder; nothing of this process's environment reaches its commands."""

    home: Path
    folder: Path
    python: str
    on_path: bool = True

    @property
    def ppscope(self) -> str:
        return str(self.folder / "bin" / "ppscope")

    def command(self, *arguments: str, before: tuple[str, ...] = ()) -> list[str]:
        clean = (
            f"HOME={self.home}", f"PATH={self.folder}/bin:/usr/bin:/bin" if self.on_path else "PATH=/usr/bin:/bin",
            "TERM=xterm-256color", "LC_ALL=C.UTF-8", "COLORTERM=truecolor",
        )  # fmt: skip
        return ["env", "-i", *clean, *before, self.ppscope, *arguments]

    def run(self, *arguments: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments, before=before), capture_output=True, text=True, timeout=90, check=False,
            stdin=subprocess.DEVNULL, cwd=self.home,
        )  # fmt: skip


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of what git holds; pure Python, so one for all."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    subprocess.run(["git", "checkout-index", "-a", f"--prefix={copy}/"], cwd=ROOT, check=True)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), "."]
    subprocess.run(command, cwd=copy, check=True)
    (built,) = folder.glob("*.whl")
    return built


def offline() -> tuple[str, ...]:
    """What runs a command without any network: as root, in a namespace that has none."""
    cut = ("unshare", "--net")
    return cut if subprocess.run([*cut, "true"], capture_output=True, check=False).returncode == 0 else ()


@pytest.fixture(scope="module", params=VERSIONS)
def installed(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    python = interpreter(request.param)
    if python is None:
        pytest.skip(f"Python {request.param} is not on this machine")
    folder = tmp_path_factory.mktemp(f"python{request.param}")
    fetching, found = folder / "fetching", Installed(folder / "home", folder / "venv", request.param)
    found.home.mkdir()
    subprocess.run([python, "-m", "venv", str(fetching)], check=True)
    fetched = subprocess.run(
        [fetching / "bin" / "pip", "wheel", "-q", "-w", str(folder / "wheels"), str(wheel)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if fetched.returncode:
        why = fetched.stderr.strip().splitlines() or ["pip says nothing"]
        pytest.skip(f"no index to fetch the wheels from: {why[-1]}")
    # From here on as the README says, on a box without network.
    subprocess.run([python, "-m", "venv", str(found.folder)], check=True)
    install = [str(found.folder / "bin" / "pip"), "install", "-q", "--no-index", "--find-links", "wheels", "ppscope"]
    environment = {"HOME": str(found.home), "PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run(
        [*offline(), *install], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return found


@pytest.fixture(scope="module")
def server(installed: Installed) -> Iterator[int]:
    """An emulated server of the same installation."""
    command = installed.command("demo", "--serve-only", "--pp", str(STAGES))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=installed.home) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def test_without_a_virtual_environment(installed: Installed, tmp_path: Path) -> None:
    """`pip install --user`, whose folder of programs is on nobody's PATH yet: all parts find each other."""
    python = interpreter(installed.python)
    assert python is not None
    environment = {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_BREAK_SYSTEM_PACKAGES": "1",
    }
    install = [python, "-m", "pip", "install", "-q", "--user", "--no-index", "--find-links", "wheels", "ppscope"]
    done = subprocess.run(
        [*offline(), *map(str, install)],
        cwd=installed.folder.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = Installed(tmp_path, tmp_path / ".local", installed.python, on_path=False)
    checks = {check["id"]: check for check in json.loads(found.run("doctor", "--json").stdout)["checks"]}
    assert checks["pyspy.present"]["state"] == "ok", checks["pyspy.present"]
    with Terminal(found.command("demo", "--pp", str(STAGES))) as terminal:
        terminal.wait_for(live(STAGES))
        leave(terminal)


def test_help_and_version(installed: Installed) -> None:
    done = installed.run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "attach" in done.stdout
    assert installed.run("--version").stdout.startswith("ppscope")


def test_man_finds_the_page(installed: Installed) -> None:
    page = installed.folder / "share" / "man" / "man1" / "ppscope.1"
    assert page.read_bytes() == (ROOT / "docs" / "ppscope.1").read_bytes()
    if shutil.which("man", path="/usr/bin:/bin") is None:
        pytest.skip("man is not installed")
    environment = {"HOME": str(installed.home), "PATH": f"{installed.folder}/bin:/usr/bin:/bin"}
    done = subprocess.run(["man", "-w", "ppscope"], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(page)


def test_doctor_finds_no_fault_with_the_installation(installed: Installed, server: int) -> None:
    done = installed.run("doctor", str(server), "--json")
    assert done.stderr == ""
    checks = {check["id"]: check for check in json.loads(done.stdout)["checks"]}
    for name in ("pyspy.present", "pyspy.python", "target.memory", "http.port"):
        assert checks[name]["state"] == "ok", checks[name]
    assert installed.python in checks["pyspy.python"]["what"]


def test_the_demo_draws_and_leaves_nothing(installed: Installed) -> None:
    with Terminal(installed.command("demo", "--pp", str(STAGES))) as terminal:
        terminal.wait_for(live(STAGES))
        leave(terminal)


def test_check_names_what_is_wrong(installed: Installed, server: int) -> None:
    done = installed.run("check", str(server), "--json", "--seconds", "3")
    assert (done.returncode, done.stderr) == (1, "")
    assert "pipeline.serial" in {finding["id"] for finding in json.loads(done.stdout)["findings"]}


def test_attach_by_pid(installed: Installed, server: int) -> None:
    with Terminal(installed.command("attach", str(server))) as terminal:
        terminal.wait_for(live(STAGES))
        terminal.send("q")
        assert terminal.wait() == 0


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_in_a_container_that_lacks_a_capability(installed: Installed, server: int) -> None:
    done = installed.run("doctor", str(server), before=WITHOUT_PTRACE)
    assert done.returncode == 1
    assert "--cap-add SYS_PTRACE" in done.stdout
    done = installed.run("check", str(server), "--seconds", "2", before=WITHOUT_PTRACE)
    assert done.returncode == 3
    assert "CAP_SYS_PTRACE" in done.stderr
    with Terminal(installed.command("attach", str(server), before=WITHOUT_PTRACE), columns=200) as terminal:
        terminal.wait_for(lambda text: "CAP_SYS_PTRACE" in text and "/600 W" in text)
        terminal.send("q")
        assert terminal.wait() == 0
    assert list(installed.home.iterdir()) in ([], [installed.home / ".cache"]), "nothing is left in a fresh home"

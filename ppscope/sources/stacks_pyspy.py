"""py-spy as a child process: where it is, how it is started so that it never outlives us, and what its errors mean."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ppscope.signals import killer
from ppscope.sources.stacks_slice import short_slice
from ppscope.target.errors import SUDO
from ppscope.target.procfs import Proc, may_trace_others
from ppscope.target.python_build import python_files, python_of

_PR_SET_PDEATHSIG = 1
OLDEST_PYTHON = (3, 3)
PYTHON_SINCE = {
    (3, 10): (0, 3, 10),  # its CHANGELOG
    (3, 11): (0, 3, 13),  # its release notes, py-spy#514
    (3, 12): (0, 4, 0),  # its release notes, py-spy#642
    (3, 13): (0, 4, 0),  # its release notes, py-spy#708
    (3, 14): (0, 4, 2),  # py-spy#833; the released 0.4.1 says of one that it finds no Python version
    (3, 15): (0, 4, 3),  # the released 0.4.2 calls one unsupported, 0.4.3 does not; of 3.16 it does
}
"""The first py-spy that reads each CPython since 3.10; free-threaded builds none does (py-spy#711)."""
USUAL_BUILD = "start the server with the usual build of Python"
_UPGRADE = "pip install -U py-spy (" + ", ".join(
    f"{major}.{minor} needs {'.'.join(map(str, since))}" for (major, minor), since in list(PYTHON_SINCE.items())[-2:]
) + " or later)"  # fmt: skip


@dataclass(frozen=True)
class Trouble:
    """Why py-spy gave nothing: `kind` is `permission`, `not_python`, `version`, `gone`, `missing`, `transient` or `unknown`."""

    kind: str
    message: str
    remedy: str = ""


MISSING = Trouble("missing", "py-spy is not installed beside ppscope nor on PATH", "pip install py-spy")


def find_pyspy() -> str | None:
    """Path of the py-spy binary: `PPSCOPE_PYSPY`, else beside this Python, else where it was installed for it, else on PATH.

    None when there is none. `pip install --user` puts it into a folder that often is not on PATH.
    """
    chosen = os.environ.get("PPSCOPE_PYSPY")
    if chosen:
        return chosen if os.path.isfile(chosen) and os.access(chosen, os.X_OK) else None
    for folder in (Path(sys.executable).parent, Path(sys.prefix) / "bin"):
        candidate = folder / "py-spy"
        if os.access(candidate, os.X_OK) and candidate.is_file():
            return str(candidate)
    return _installed() or shutil.which("py-spy")


def _installed() -> str | None:
    from importlib import metadata  # here: it takes 24 ms, which the first frame would wait for

    try:
        files = metadata.files("py-spy") or []
    except metadata.PackageNotFoundError:
        return None
    places = [str(file.locate()) for file in files if file.name == "py-spy"]
    return next((os.path.realpath(place) for place in places if os.access(place, os.X_OK)), None)


def record_argv(binary: str, pid: int, rate_hz: int, out: str, longest_s: int) -> list[str]:
    """Command line of one window; `longest_s` only ends it when nobody interrupts it."""
    return [
        binary, "record", "-p", str(pid), "-r", str(rate_hz), "-d", str(longest_s), "-f", "chrometrace",
        "-t", "-i", "--nonblocking", "--full-filenames", "-o", out,
    ]  # fmt: skip


def dump_argv(binary: str, pid: int) -> list[str]:
    """Command line of one dump with locals."""
    return [binary, "dump", "-p", str(pid), "--json", "--locals", "--nonblocking"]


def _die_with_parent() -> Callable[[], None]:
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()
    kill = int(signal.SIGKILL)
    short = short_slice()

    def in_child() -> None:
        # SIGKILL, not SIGINT: py-spy never stops its target in --nonblocking mode, so there is nothing to undo.
        libc.prctl(_PR_SET_PDEATHSIG, kill, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        short()

    return in_child


def spawn(argv: Sequence[str], stdout: int | IO[bytes], pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start py-spy in a session of its own; the kernel kills it when the calling *thread* ends, so call it from one that stays.

    Raises OSError when it cannot be started.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RUST_", "LD_PRELOAD"))}
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        pass_fds=tuple(pass_fds),
        start_new_session=True,
        preexec_fn=_die_with_parent(),  # noqa: PLW1509  one prctl call on a function looked up beforehand
        env=environment,
    )


def private_file() -> int:
    """Descriptor of a file without a name, so that nothing stays behind however we end."""
    try:
        return os.memfd_create("ppscope-window", os.MFD_CLOEXEC)
    except (OSError, AttributeError):
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


def first_line(stderr: bytes) -> str:
    """The first line that says something, without the backtrace below it; at most 300 characters."""
    lines = [line.strip() for line in stderr.decode("utf-8", "replace").splitlines()]
    said = [line for line in lines if line]
    if not said:
        return ""
    text = said[0]
    if text in ("Error:", "Caused by:") and len(said) > 1:
        text = said[1]
    return "".join(c if c.isprintable() else " " for c in text)[:300]


def explain(stderr: bytes, returncode: int | None, pid: int) -> Trouble:
    """What a failed py-spy means, in one line, and the command that helps."""
    text = stderr.decode("utf-8", "replace")
    low = text.lower()
    line = first_line(stderr)
    there = presence(pid)
    if there is not None and there.kind == "gone":
        return there
    if "no such process" in low:  # a thread of it ended meanwhile
        return _changed(pid)
    if "permission denied" in low or "operation not permitted" in low or "os error 13" in low or "os error 1)" in low:
        return permission_trouble(pid)
    if "bad address" in low or "os error 14" in low:
        return _changed(pid)
    if "failed to find version string" in low or "unsupported version" in low or "unknown python version" in low:
        return _python_trouble(pid, "version", f"py-spy does not know the Python of process {pid}: {line}")
    if (
        "failed to find python version" in low
        or "libpython" in low
        or "not a python" in low
        or "python interpreter" in low
    ):
        # Of a Python newer than itself py-spy up to 0.4.1 says this as well.
        return _python_trouble(pid, "not_python", f"process {pid} does not run Python that py-spy can find")
    if killed_by := killer(returncode):
        return Trouble("unknown", f"py-spy was killed by {killed_by}")
    return Trouble("unknown", f"py-spy: {line}" if line else f"py-spy ended with {returncode} and said nothing")


def _python_trouble(pid: int, kind: str, message: str) -> Trouble:
    """What py-spy says of a Python that it cannot read; no version of it reads a free-threaded one."""
    build = python_of(python_files(Proc(), pid))
    if build is not None and build[1]:
        said = f"process {pid} runs Python {build[0][0]}.{build[0][1]}, a free-threaded build, whose stacks py-spy cannot read"
        return Trouble("version", said, USUAL_BUILD)
    return Trouble(kind, message, _UPGRADE)


def permission_trouble(pid: int) -> Trouble:
    """Which right is missing to read a process, and the command that gives it."""
    ours = os.geteuid()
    try:
        theirs = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return presence(pid) or _changed(pid)
    scope = ptrace_scope()
    if scope is not None and scope >= 3:
        return Trouble(
            "permission",
            "ptrace is off on this machine until it is rebooted (kernel.yama.ptrace_scope=3)",
            "reboot with a lower setting",
        )
    if may_trace_others(Proc()):
        return Trouble(
            "permission",
            f"process {pid} may not be read, although we have CAP_SYS_PTRACE: a filter or a security module refuses it",
            f"ppscope doctor {pid}",
        )
    if ours == 0:
        return Trouble(
            "permission",
            f"root here may not read process {pid}: CAP_SYS_PTRACE is missing",
            "run the container with --cap-add SYS_PTRACE (Kubernetes: securityContext.capabilities.add: [SYS_PTRACE])",
        )
    again = f"{SUDO} attach {pid}"
    if theirs != ours:
        return Trouble("permission", f"process {pid} belongs to uid {theirs}, we are uid {ours}", again)
    if scope:
        return Trouble(
            "permission",
            f"reading process {pid} is not allowed (kernel.yama.ptrace_scope={scope})",
            f"{again}, or sudo sysctl kernel.yama.ptrace_scope=0, or docker run --cap-add SYS_PTRACE",
        )
    return Trouble(
        "permission",
        f"reading process {pid} is not allowed",
        f"{again}; in a container: docker run --cap-add SYS_PTRACE",
    )


def ptrace_scope(proc: str = "/proc") -> int | None:
    """Yama's setting, 0 to 3; None where Yama is absent."""
    try:
        return int(Path(proc, "sys/kernel/yama/ptrace_scope").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _changed(pid: int) -> Trouble:
    return Trouble("transient", f"process {pid} changed while it was read")


def _stat_fields(pid: int) -> list[bytes]:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b") ")[2].split()


def presence(pid: int, ticks: int = 0) -> Trouble | None:
    """None while a process is there: that of this start time, or whichever where `ticks` is 0.

    `gone` is said only of one that surely is; where /proc cannot be read now, the trouble passes.
    """
    try:
        fields = _stat_fields(pid)
        there = fields[0] not in (b"Z", b"X") and ticks in (0, int(fields[19]))
    except (FileNotFoundError, ProcessLookupError):
        there = False
    except (OSError, ValueError, IndexError) as error:
        return Trouble("transient", f"process {pid} cannot be looked at: {error}")
    return None if there else Trouble("gone", f"process {pid} is gone")


def thread_count(pid: int) -> int | None:
    """Number of OS threads of a process; None when that cannot be read."""
    try:
        return int(_stat_fields(pid)[17])
    except (OSError, ValueError, IndexError):
        return None

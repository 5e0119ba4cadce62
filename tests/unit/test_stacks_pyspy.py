"""What py-spy says when it fails, turned into one line and a remedy."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from ppscope.probe.ring import started_ticks
from ppscope.records import Rank, RankKey, Server
from ppscope.sources import stacks_pyspy
from ppscope.sources.stacks import StackSource
from ppscope.sources.stacks_pyspy import (
    dump_argv,
    explain,
    find_pyspy,
    first_line,
    permission_trouble,
    presence,
    record_argv,
)

TRACE = b"\n\nStack backtrace:\n   0: <E as anyhow::context::ext::StdError>::ext_context\n"
DENIED = b"Permission Denied: Try running again with elevated permissions by going 'sudo env \"PATH=$PATH\" !!'\n"
NAME = b"Error: Failed to get process executable name.\n\nCaused by:\n    0: Permission denied (os error 13)"
ME = os.getpid()


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        (DENIED, "permission"),
        (NAME + TRACE, "permission"),
        (b"Error: Failed to find python version from target process" + TRACE, "not_python"),
        (b"Error: failed to find version string" + TRACE, "version"),
        (b"Error: Failed to get stack traces\n\nCaused by:\n  2: Bad address (os error 14)" + TRACE, "transient"),
        (b"Error: something new\nat all" + TRACE, "unknown"),
        (b"", "unknown"),
        (b"\xff\xfe\x00", "unknown"),
    ],
)
def test_a_failure_is_one_line_without_a_backtrace(stderr: bytes, kind: str) -> None:
    trouble = explain(stderr, 1, ME)
    assert trouble.kind == kind
    assert trouble.message
    assert "\n" not in trouble.message
    assert "backtrace" not in trouble.message
    assert kind not in ("permission", "version", "not_python") or trouble.remedy


def test_a_process_that_went_is_gone_whatever_pyspy_says() -> None:
    assert explain(DENIED, 1, 2**22 + 1).kind == "gone"


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: FileNotFoundError(errno.ENOENT, "No such file or directory"), "gone"),
        (lambda: ProcessLookupError(errno.ESRCH, "No such process"), "gone"),
        (lambda: OSError(errno.EMFILE, "Too many open files"), "transient"),
        (lambda: OSError(errno.ENFILE, "Too many open files in system"), "transient"),
        (lambda: OSError(errno.EIO, "Input/output error"), "transient"),
        (lambda: PermissionError(errno.EACCES, "Permission denied"), "transient"),
        (lambda: OSError(errno.ENOMEM, "Cannot allocate memory"), "transient"),
    ],
)
def test_only_a_process_that_surely_is_gone_is_given_up(
    make: Callable[[], OSError], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(pid: int) -> list[bytes]:
        raise make()

    monkeypatch.setattr(stacks_pyspy, "_stat_fields", refused)
    trouble = presence(ME)
    assert trouble is not None
    assert trouble.kind == kind
    ended = explain(DENIED, 1, ME).kind == "gone"
    assert ended is (kind == "gone")
    rank = Rank(RankKey(0, 0, 0), ME, started_ticks() or 0, "")
    source = StackSource(lambda record: None)
    source._binary = "/nonexistent/py-spy"
    source.update(Server(0, 1, 1, "launch_server", "serving", (rank,), 1, 1, 1))
    source._replan(0)
    [sampled] = source._sampled.values()
    monkeypatch.setattr(source, "_selector", object())
    source._begin(sampled, source._slots[rank.key])
    assert sampled.ended is (kind == "gone")


def test_a_thread_that_went_is_not_the_process() -> None:
    said = b"Error: Failed to get stack traces\n\nCaused by:\n  No such process (os error 3)"
    assert explain(said, 1, ME).kind == "transient"
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as zombie:
        assert zombie.stdout is not None
        zombie.stdout.read()
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        assert explain(said, 1, zombie.pid).kind == "gone"


def test_another_process_of_the_same_pid_is_not_the_one_that_was() -> None:
    ticks = started_ticks() or 0
    assert presence(ME, ticks) is None
    assert presence(ME) is None
    other = presence(ME, ticks + 1)
    assert other is not None
    assert other.kind == "gone"


def test_a_signal_is_named() -> None:
    assert "killed by SIGKILL" in explain(b"", -9, ME).message


@pytest.mark.parametrize(
    ("ours", "scope", "capable", "said", "remedy"),
    [
        (0, None, False, "CAP_SYS_PTRACE is missing", "--cap-add SYS_PTRACE"),
        (0, None, None, "CAP_SYS_PTRACE is missing", "--cap-add SYS_PTRACE"),
        (0, 3, True, "ptrace_scope=3", "reboot"),
        (0, 3, False, "ptrace_scope=3", "reboot"),
        (0, 1, True, "although we have CAP_SYS_PTRACE", f"ppscope doctor {ME}"),
        (os.geteuid() + 1000, None, False, "uid", f'sudo env "PATH=$PATH" ppscope attach {ME}'),
        (None, 1, False, "ptrace_scope=1", "sysctl kernel.yama.ptrace_scope=0"),
        (None, 3, False, "ptrace_scope=3", "reboot"),
        (None, None, False, "not allowed", "SYS_PTRACE"),
    ],
)
def test_the_missing_right_is_named(
    ours: int | None, scope: int | None, capable: bool | None, said: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = 1234 if ours is None else ours
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    if ours is None:
        monkeypatch.setattr(os, "stat", lambda path: os.stat_result((0, 0, 0, 0, uid, 0, 0, 0, 0, 0)))
    monkeypatch.setattr(stacks_pyspy, "ptrace_scope", lambda: scope)
    monkeypatch.setattr(stacks_pyspy, "may_trace_others", lambda proc: capable)
    trouble = permission_trouble(ME)
    assert said in trouble.message
    assert remedy in trouble.remedy


@pytest.mark.parametrize(
    ("text", "scope"), [("0\n", 0), ("1\n", 1), ("2\n", 2), ("3\n", 3), (None, None), ("", None), ("\xff", None)]
)
def test_yamas_setting_is_read_where_the_kernel_has_one(text: str | None, scope: int | None, tmp_path: Path) -> None:
    file = tmp_path / "sys/kernel/yama/ptrace_scope"
    file.parent.mkdir(parents=True)
    if text is not None:
        file.write_text(text, encoding="latin-1")
    assert stacks_pyspy.ptrace_scope(str(tmp_path)) == scope


def test_the_first_line_is_clean_and_short() -> None:
    assert first_line(b"\n\n  Error: a\x1b[31m\nb") == "Error: a [31m"
    assert len(first_line(b"x" * 9999)) == 300


def test_pyspy_beside_this_python_comes_first_then_where_pip_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    files = [
        SimpleNamespace(name=name, locate=lambda name=name: tmp_path / "user" / name) for name in ("RECORD", "py-spy")
    ]
    monkeypatch.setattr(metadata, "files", {"py-spy": files}.get)
    assert find_pyspy() is None
    for folder in (tmp_path / "path", tmp_path / "user", tmp_path):
        folder.mkdir(exist_ok=True)
        binary = folder / "py-spy"
        binary.write_text("")
        assert find_pyspy() != str(binary), "not executable yet"
        binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
        assert find_pyspy() == str(binary)


@pytest.mark.parametrize("argv", [record_argv("py-spy", 1, 50, "out", 3), dump_argv("py-spy", 1)])
def test_each_command_line_of_pyspy_is_one_that_stops_nothing(argv: list[str]) -> None:
    assert "--nonblocking" in argv
    assert "--native" not in argv
    assert argv[1] != "record" or {"-i", "-t", "--full-filenames"} <= set(argv)

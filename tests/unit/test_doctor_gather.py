"""How the doctor comes by its facts: real calls, real keys, real files; the verdicts over them are tested elsewhere."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import msgspec
import pytest

from ppscope import emulator
from ppscope.commands.live import prefers_ascii
from ppscope.doctor import gather, gather_own, gather_target
from ppscope.doctor.checks import judge
from ppscope.doctor.checks_terminal import locale
from ppscope.doctor.facts import Answer, Facts, Own, Target, Tools
from ppscope.doctor.gather_tools import tools
from ppscope.records import Fact
from ppscope.sources.server_keys import Keys
from ppscope.sources.server_worker import Desk
from ppscope.target.procfs import Proc
from ppscope.target.python_build import python_files, python_of
from tests.unit.test_server_source import BARE, OWNED
from tests.unit.tiny_http import TinyHttp, living, reply, tiny_http

SYSCALL = {"x86_64": 310, "aarch64": 270}.get(platform.machine())
"""process_vm_readv."""

# A filter of four instructions: load the number of the call, refuse the one with EPERM, allow the others.
FILTERED = """
    import ctypes, os, struct, sys
    number = int(sys.argv[1])
    rules = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("rules", ctypes.c_void_p)]
    program = Program(len(rules), ctypes.cast(code, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)
    if libc.prctl(22, 2, ctypes.byref(program), 0, 0):
        sys.exit(print("refused"))
    from ppscope.doctor.gather_own import own
    facts = own()
    print(facts.reads_itself, facts.seccomp)
"""


@pytest.mark.skipif(SYSCALL is None, reason="the number of the call is not known here")
@pytest.mark.parametrize(("filtered", "said"), [(True, "EPERM 2"), (False, "ok 2")])
def test_a_filter_that_takes_the_reading_away_is_seen_and_another_is_not(filtered: bool, said: str) -> None:
    number = str(SYSCALL if filtered else 0xFFFF)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FILTERED), number],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    if done.stdout == "refused\n":
        pytest.skip("no filter can be set here")
    assert done.stdout == f"{said}\n"


def test_without_a_filter_our_own_memory_reads() -> None:
    assert gather_own.own().reads_itself == "ok"


def test_capabilities_are_those_of_this_very_process() -> None:
    status = Path("/proc/self/status").read_text()
    assert gather_own.own().capabilities == int(status.partition("CapEff:")[2].split()[0], 16)
    assert gather_own.own().bounding == int(status.partition("CapBnd:")[2].split()[0], 16)
    setpriv = shutil.which("setpriv")
    if os.geteuid() == 0 and setpriv is not None:
        program = "from ppscope.doctor.gather_own import own; print(own().may_trace_others)"
        without = [setpriv, "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace", sys.executable, "-c", program]
        assert subprocess.run(without, capture_output=True, text=True, check=True, timeout=60).stdout == "False\n"


@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="needs root and unshare")
def test_a_pid_namespace_of_ones_own_is_a_container() -> None:
    program = "from ppscope.doctor.gather_own import own; print(own().contained)"
    inside = ["unshare", "--fork", "--pid", "--mount-proc", sys.executable, "-c", program]
    done = subprocess.run(inside, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        pytest.skip("no namespace can be made here")
    assert done.stdout == "True\n"
    first = os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
    assert gather_own.own().contained is not first


def wanting(*keys: str) -> TinyHttp:
    """A server that wants a key, and whichever of these it gets."""
    server = TinyHttp({})

    def answer(sock: object, path: str, head: str) -> None:
        good = any(f"Bearer {key}\r\n" in head for key in keys)
        reply("{}", "200 OK" if good else "401 Unauthorized")(sock, path, head)  # type: ignore[arg-type]

    server.routes["/model_info"] = answer
    return server


def desk(port: int, environment: dict[str, str], owned: bool = True) -> Desk:
    facts = OWNED if owned else (Fact("port.owned", "no", "socket"),)
    server = msgspec.structs.replace(
        BARE, kind="launch_server", state="serving", host="127.0.0.1", port=port, facts=facts, **living()
    )
    return Desk(lambda _: None, server, Keys(environment), threading.Event())


@pytest.mark.parametrize(
    ("environment", "status", "said"),
    [
        ({}, 401, "wants an API key"),
        ({"PPSCOPE_API_KEY": "wrong"}, 401, "refuses the API key"),
        ({"PPSCOPE_API_KEY": "right"}, 200, None),
        ({"PPSCOPE_API_KEY": "wrong", "PPSCOPE_ADMIN_KEY": "right"}, 200, None),
    ],
)
def test_each_key_is_tried_and_its_fate_told(environment: dict[str, str], status: int, said: str | None) -> None:
    server = wanting("right")
    answer = gather_target._ask(desk(server.port, environment), "/model_info")
    assert answer.status == status
    assert (answer.key is None) == (said is None)
    assert said is None or said in (answer.key or ("",))[0]


def test_a_key_is_sent_to_no_port_that_is_not_the_servers() -> None:
    server = wanting("right")
    answer = gather_target._ask(desk(server.port, {"PPSCOPE_API_KEY": "right"}, owned=False), "/model_info")
    assert (answer.status, bool(answer.key)) == (401, True)
    assert not any("right" in head for head in server.seen)


def test_an_answer_and_none() -> None:
    with tiny_http(model_info=reply("{}")) as server:
        assert gather_target._ask(desk(server.port, {}), "/model_info") == Answer(200)
        assert gather_target._ask(desk(server.port, {}), "/metrics") == Answer(404)
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        nobody = gather_target._ask(desk(unheard.getsockname()[1], {}), "/model_info")
    assert nobody.status is None
    assert nobody.trouble


def test_memory_that_opens_and_processes_that_are_gone() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert gather_target.unreadable([os.getpid()]) == ()
    assert gather_target.unreadable([gone.pid]) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_memory_of_another_user_does_not_open() -> None:
    program = (
        f"from ppscope.doctor.gather_target import os, unreadable; os.setuid(65534); print(unreadable([{os.getpid()}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"({os.getpid()},)\n"


@pytest.mark.parametrize("how", ["slow", "fault"])
def test_a_server_that_cannot_be_looked_into_is_said_and_nothing_is_claimed_of_it(
    how: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Where the look takes too long, no port "None was not asked" and no Python "cannot be told"."""
    over = threading.Event()
    request.addfinalizer(over.set)

    def look(found: object) -> Target:
        if how == "fault":
            raise ZeroDivisionError("planted")
        over.wait()
        raise AssertionError

    monkeypatch.setattr(gather, "LOOK_S", 0.2)
    monkeypatch.setattr(gather, "tools", lambda ask_nvml: Tools())
    monkeypatch.setattr(gather_target, "target", look)
    with emulator.start("serial", 2) as server:
        facts, error = gather.gather(server.pid)
    assert error is None
    verdicts = {check.id: check for check in judge(facts)}
    assert verdicts["target.found"].state == "unknown"
    assert {"slow": "took more than", "fault": "ZeroDivisionError: planted"}[how] in verdicts["target.found"].what
    assert not {"http.port", "http.key", "http.metrics", "log", "pyspy.python"} & verdicts.keys()
    assert {"target.memory", "target.user", "ptrace.capability"} <= verdicts.keys()


def test_the_python_of_a_running_process() -> None:
    found = python_of(python_files(Proc(), os.getpid()))
    assert found == (sys.version_info[:2], "t" in getattr(sys, "abiflags", ""))


@pytest.fixture
def pyspy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    binary = tmp_path / "py-spy"
    monkeypatch.setenv("PPSCOPE_PYSPY", str(binary))
    return binary


@pytest.mark.parametrize(
    ("script", "version", "trouble"),
    [
        ("#!/bin/sh\necho py-spy 0.4.1", (0, 4, 1), ""),
        ("#!/bin/sh\necho broken >&2; exit 1", None, "broken"),
        ("not a program", None, "Exec format error"),
    ],
)
def test_a_pyspy_that_answers_and_some_that_do_not(
    pyspy: Path, script: str, version: tuple[int, ...] | None, trouble: str
) -> None:
    pyspy.write_text(script)
    pyspy.chmod(0o755)
    found = tools(ask_nvml=False)
    assert (found.pyspy_version, found.pyspy_trouble) == (version, trouble)
    assert sys.executable in found.install


@pytest.mark.parametrize("variable", ["C", "POSIX", "C.UTF-8", ""])
def test_the_locale_is_judged_as_the_view_does(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", variable)
    said = locale(Facts(Own(0, "root"), terminal=gather_own.terminal()))
    assert (said.state == "info") == prefers_ascii()
    assert ("drawn in ASCII" in said.what) == prefers_ascii()


def test_libc_is_where_it_is_looked_for() -> None:
    assert ctypes.CDLL(None).process_vm_readv

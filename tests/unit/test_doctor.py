"""The doctor's verdicts over made-up facts: every lock closed in turn, and what opens it."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.commands.live import say_why_not
from ppscope.doctor import gather, gather_own
from ppscope.doctor.checks import ACCESS, ALL, judge, problems
from ppscope.doctor.facts import Answer, Check, Facts, Own, Target, Terminal, Tools
from ppscope.doctor.report import SCHEMA, as_json, as_text
from ppscope.records import End
from ppscope.target.procfs import CAP_SYS_PTRACE

CAP = 1 << CAP_SYS_PTRACE
ROOT = Own(0, "root", CAP, 0, 0, "ok", False)
USER = Own(1000, "ann", 0, 0, None, "ok", False)
INSIDE = replace(USER, contained=True, bounding=CAP - 1)
"""Without CAP_SYS_PTRACE in a container that was not given it: no sudo would get it."""
THEIRS = Target(4242, "4242 Kimi-K2 PP8×TP1", "bob", 1001, unreadable=(4250, 4251))
MINE = Target(4242, "4242 Kimi-K2 PP8×TP1", "ann", 1000, unreadable=(), python=(3, 11), free_threaded=False)
TOOLS = Tools("/usr/bin/py-spy", (0, 4, 3), nvml_state="ok", nvml_message="8 GPUs, driver 550.1")
SCREEN = Terminal("utf-8", 120, 40, "xterm-256color", "truecolor")
WELL = Facts(USER, TOOLS, SCREEN, "", MINE)


def verdict(facts: Facts, name: str) -> Check:
    return next(check for check in judge(facts) if check.id == name)


def test_a_box_where_everything_is_well_has_no_problem() -> None:
    verdicts = judge(
        replace(WELL, target=replace(MINE, http=Answer(200), metrics=Answer(200), log="", folders=(("/tmp", ""),)))
    )
    assert {check.state for check in verdicts} == {"ok"}, verdicts
    assert as_text(verdicts).endswith("nothing stands in the way\n")


@pytest.mark.parametrize(
    ("own", "target", "name", "state", "said", "remedy"),
    [
        (replace(USER, ptrace_scope=None), MINE, "ptrace.scope", "ok", "absent", ""),
        (replace(USER, ptrace_scope=0), MINE, "ptrace.scope", "ok", "=0", ""),
        (replace(USER, ptrace_scope=1), THEIRS, "ptrace.scope", "problem", "=1", "sysctl kernel.yama.ptrace_scope=0"),
        (replace(USER, ptrace_scope=1), None, "ptrace.scope", "problem", "only a parent", "sudo"),
        (replace(USER, ptrace_scope=2), THEIRS, "ptrace.scope", "problem", "CAP_SYS_PTRACE", "sudo"),
        (replace(ROOT, ptrace_scope=2), THEIRS, "ptrace.scope", "ok", "=2", ""),
        (replace(ROOT, ptrace_scope=1, capabilities=0), THEIRS, "ptrace.scope", "problem", "=1", "SYS_PTRACE"),
        (replace(ROOT, ptrace_scope=3), None, "ptrace.scope", "problem", "not even root", "reboot"),
        (ROOT, None, "ptrace.capability", "ok", "has CAP_SYS_PTRACE", ""),
        (replace(ROOT, capabilities=CAP - 1), THEIRS, "ptrace.capability", "problem", "root here lacks", "--cap-add SYS_PTRACE"),
        (replace(ROOT, capabilities=CAP - 1), None, "ptrace.capability", "info", "only processes that lack it too", "--cap-add"),
        (replace(ROOT, capabilities=0), replace(THEIRS, unreadable=()), "ptrace.capability", "ok", "none is needed", ""),
        (
            replace(ROOT, capabilities=0, contained=True), THEIRS, "ptrace.capability", "problem", "lacks",
            "docker exec -it --privileged CONTAINER ppscope attach 4242\ndocker run --cap-add",
        ),
        (
            INSIDE, THEIRS, "ptrace.capability", "problem", "root here would have none either",
            "docker exec -it -u 0 --privileged CONTAINER ppscope attach 4242\ndocker run --cap-add SYS_PTRACE",
        ),
        (INSIDE, None, "ptrace.capability", "info", "only processes of ann", ""),
        (INSIDE, THEIRS, "target.user", "problem", "as bob, ppscope as ann", "CONTAINER ppscope attach 4242\ndocker run --cap-add"),
        (INSIDE, THEIRS, "target.memory", "problem", "does not open", "CONTAINER ppscope attach 4242\ndocker run --cap-add"),
        (replace(INSIDE, ptrace_scope=1), MINE, "ptrace.scope", "ok", "allowed all the same", ""),
        (replace(INSIDE, hidepid=True), None, "proc.hidepid", "problem", "hidepid", "--cap-add SYS_PTRACE"),
        (replace(ROOT, capabilities=None), None, "ptrace.capability", "unknown", "cannot be read", ""),
        (USER, None, "ptrace.capability", "info", "only processes of ann", ""),
        (USER, MINE, "ptrace.capability", "ok", "none is needed", ""),
        (USER, THEIRS, "target.user", "problem", "as bob, ppscope as ann", "sudo"),
        (ROOT, replace(THEIRS, unreadable=()), "target.user", "ok", "may read it", ""),
        (USER, MINE, "target.user", "ok", "as we do", ""),
        (USER, THEIRS, "target.memory", "problem", "2 processes does not open: 4250, 4251", 'sudo env "PATH=$PATH" ppscope attach 4242'),
        (replace(ROOT, capabilities=0), THEIRS, "target.memory", "problem", "does not open", "--cap-add SYS_PTRACE"),
        (replace(ROOT, ptrace_scope=3), THEIRS, "target.memory", "problem", "does not open", "reboot"),
        (ROOT, THEIRS, "target.memory", "problem", "although this process has CAP_SYS_PTRACE", "apparmor"),
        (USER, replace(MINE, unreadable=None), "target.memory", "unknown", "could be tried", ""),
        (replace(USER, reads_itself="EPERM", seccomp=2), None, "ptrace.seccomp", "problem", "EPERM", "seccomp=unconfined"),
        (replace(USER, seccomp=2), None, "ptrace.seccomp", "ok", "lets process_vm_readv through", ""),
        (replace(USER, reads_itself=None), None, "ptrace.seccomp", "unknown", "could not be tried", ""),
        (replace(USER, contained=True), None, "namespace.pid", "info", "ordinal and UUID", ""),
        (ROOT, replace(MINE, pids_inside=(4242, 7)), "namespace.pid", "ok", "its launcher is 7 there", ""),
        (replace(USER, contained=None), None, "namespace.pid", "unknown", "cannot be read", ""),
        (replace(USER, hidepid=True), None, "proc.hidepid", "problem", "hidepid", "sudo"),
        (replace(USER, hidepid=True), MINE, "proc.hidepid", "info", "this one is not", ""),
    ],
)  # fmt: skip
def test_locks_of_the_kernel(own: Own, target: Target | None, name: str, state: str, said: str, remedy: str) -> None:
    check = verdict(Facts(own, target=target), name)
    assert (check.state, said in check.what, remedy in check.remedy) == (state, True, True), check
    assert bool(check.remedy) == bool(remedy)


@pytest.mark.parametrize(
    ("own", "sudo", "sysctl"),
    [
        (USER, True, True),
        (replace(USER, bounding=2 * CAP - 1), True, True),
        (replace(USER, bounding=2 * CAP - 1, contained=True), True, False),
        (INSIDE, False, False),
        (replace(INSIDE, contained=False), False, False),
        (replace(ROOT, capabilities=0), False, False),
        (replace(ROOT, capabilities=0, contained=True), False, False),
    ],
)
@pytest.mark.parametrize("target", [THEIRS, replace(MINE, unreadable=(4250,)), None])
def test_no_remedy_asks_for_what_a_container_does_not_allow(
    own: Own, sudo: bool, sysctl: bool, target: Target | None
) -> None:
    verdicts = judge(Facts(replace(own, ptrace_scope=1), target=target), ACCESS)
    remedies = "\n".join(check.remedy for check in verdicts)
    assert ("sudo env" in remedies, "sudo sysctl" in remedies) == (sudo, sysctl)
    assert ("--cap-add SYS_PTRACE" in remedies) is not sudo


@pytest.mark.parametrize(
    ("python", "free", "has", "state", "said"),
    [
        ((3, 10), False, (0, 4, 0), "ok", "3.10"),
        ((3, 13), False, (0, 4, 0), "ok", "3.13"),
        ((3, 11), False, (0, 3, 12), "problem", "from 0.3.13 on; here is 0.3.12"),
        ((3, 12), False, (0, 3, 14), "problem", "from 0.4.0 on; here is 0.3.14"),
        ((3, 14), False, (0, 4, 3), "ok", "3.14"),
        ((3, 14), False, (0, 4, 1), "problem", "from 0.4.2 on; here is 0.4.1"),
        ((3, 15), False, (0, 4, 2), "problem", "from 0.4.3 on; here is 0.4.2"),
        ((3, 15), False, (0, 4, 3), "ok", "3.15"),
        ((3, 16), False, (0, 4, 3), "problem", "3.3 to 3.15"),
        ((3, 13), True, (0, 4, 3), "problem", "free-threaded"),
        (None, None, (0, 4, 3), "unknown", "cannot be told"),
    ],
)
def test_py_spy_against_the_targets_python(
    python: tuple[int, int] | None, free: bool | None, has: tuple[int, ...], state: str, said: str
) -> None:
    facts = Facts(USER, Tools("/x", has), target=replace(MINE, python=python, free_threaded=free))
    check = verdict(facts, "pyspy.python")
    assert check.state == state
    assert said in check.what


@pytest.mark.parametrize(
    ("tools", "target", "name", "state", "said"),
    [
        (Tools(None), None, "pyspy.present", "problem", "not installed"),
        (Tools("/x", None, "Exec format error"), None, "pyspy.present", "problem", "Exec format error"),
        (Tools(nvml_state="off", nvml_message="no driver", nvml_remedy="r"), None, "gpu.nvml", "info", "no driver"),
        (
            Tools(nvml_state="off", nvml_message="no driver"),
            replace(MINE, device="cpu"),
            "gpu.nvml",
            "info",
            "no driver; the server runs on cpu",
        ),
        (
            Tools(nvml_state="off", nvml_message="no driver"),
            replace(MINE, device="cuda"),
            "gpu.nvml",
            "problem",
            "no driver",
        ),
        (Tools(nvml_state="dead", nvml_message="differ in version"), None, "gpu.nvml", "problem", "differ in version"),
        (Tools(nvml_state="stalled", nvml_message="has been starting"), None, "gpu.nvml", "problem", "starting"),
        (Tools(nvml_state="degraded", nvml_message="no util (MIG mode)"), None, "gpu.nvml", "info", "never as 0"),
        (Tools(nvml_state="degraded", nvml_message="is lost", nvml_remedy="r"), None, "gpu.nvml", "problem", "is lost"),
        (Tools(), replace(MINE, emulated=True), "gpu.nvml", "info", "emulated"),
        (Tools(), None, "gpu.nvml", "unknown", "nothing in time"),
        (Tools(mig=(0, 3)), None, "gpu.mig", "info", "GPU 0, 3"),
        (Tools(driver="550.54", binding="12.535.108"), None, "gpu.driver", "ok", "550.54"),
        (Tools(driver="535.54", binding="11.525.84"), None, "gpu.driver", "problem", "too old"),
    ],
)
def test_tools(tools: Tools, target: Target | None, name: str, state: str, said: str) -> None:
    check = verdict(Facts(USER, tools, target=target), name)
    assert (check.state, said in check.what) == (state, True), check


@pytest.mark.parametrize(
    ("target", "name", "state", "said"),
    [
        (replace(MINE, no_http=("in another network namespace", "nsenter")), "http.port", "problem", "namespace"),
        (replace(MINE, no_http=("no HTTP port is known", "")), "http.port", "info", "no HTTP port"),
        (replace(MINE, no_http=("p belongs to another", "x"), state="loading"), "http.port", "info", "another"),
        (replace(MINE, port=9, http=Answer(trouble="refused")), "http.port", "problem", "port 9: refused"),
        (replace(MINE, port=9, http=Answer(trouble="refused"), state="loading"), "http.port", "info", "loading"),
        (replace(MINE, http=Answer(503)), "http.port", "problem", "503"),
        (replace(MINE, http=Answer(401, key=("wants a key", "set it"))), "http.key", "problem", "wants a key"),
        (replace(MINE, http=Answer(200)), "http.key", "ok", "no key is missing"),
        (replace(MINE, metrics=Answer(404)), "http.metrics", "info", "--enable-metrics"),
        (replace(MINE, metrics=Answer(trouble="no answer")), "http.metrics", "problem", "no answer"),
        (replace(MINE, log="the log is not a file (a pipe)"), "log", "info", "a pipe"),
        (replace(MINE, log="no permission", log_usual=False), "log", "problem", "no permission"),
        (replace(MINE, folders=(("/tmp", "0 MB are free"), ("/x", ""))), "trace.folder", "ok", "/x"),
        (replace(MINE, folders=(("/tmp", "0 MB are free"),)), "trace.folder", "problem", "/tmp: 0 MB"),
        (
            replace(MINE, folders=(("/tmp", ""),), no_export=("no room", "make room")),
            "trace.folder",
            "problem",
            "no room",
        ),
    ],
)
def test_server(target: Target, name: str, state: str, said: str) -> None:
    check = verdict(Facts(USER, target=target), name)
    assert (check.state, said in check.what) == (state, True), check


@pytest.mark.parametrize(
    ("terminal", "name", "state", "said"),
    [
        (replace(SCREEN, encoding="ANSI_X3.4-1968"), "locale", "info", "ASCII"),
        (replace(SCREEN, encoding="UTF-8"), "locale", "ok", "UTF-8"),
        (replace(SCREEN, columns=79), "terminal.size", "problem", "79×40"),
        (replace(SCREEN, columns=0, lines=0), "terminal.size", "unknown", "does not tell its size"),
        (replace(SCREEN, columns=None, lines=None), "terminal.size", "info", "not a terminal"),
        (replace(SCREEN, colorterm=""), "terminal.colours", "ok", "256"),
        (replace(SCREEN, colorterm="", term="xterm"), "terminal.colours", "info", "16 colours"),
        (replace(SCREEN, term="dumb"), "terminal.colours", "problem", "TERM=dumb"),
        (replace(SCREEN, term="unknown"), "terminal.colours", "problem", "TERM=unknown"),
        (replace(SCREEN, no_color=True), "terminal.colours", "info", "NO_COLOR"),
        (replace(SCREEN, tmux=True), "tmux", "ok", "tmux"),
        (replace(SCREEN, tmux=True, colorterm="", term="screen"), "tmux", "info", "true colour"),
    ],
)
def test_terminal(terminal: Terminal, name: str, state: str, said: str) -> None:
    check = verdict(Facts(USER, terminal=terminal), name)
    assert (check.state, said in check.what) == (state, True), check


def test_a_pid_without_a_server_is_a_problem_and_no_pid_is_none() -> None:
    asked = Facts(USER, missing=("no process 9", "ppscope doctor", True))
    assert verdict(asked, "target.found").state == "problem"
    assert verdict(replace(asked, missing=("no server", "", False)), "target.found").state == "info"


def test_json_has_stable_keys() -> None:
    verdicts = judge(replace(WELL, own=replace(USER, reads_itself="EPERM", seccomp=2)))
    document = json.loads(json.dumps(as_json(WELL, verdicts)))
    assert set(document) == {"schema", "pid", "problems", "checks"}
    assert (document["schema"], document["pid"], document["problems"]) == (SCHEMA, 4242, 1)
    assert all(set(check) == {"id", "state", "what", "remedy"} for check in document["checks"])


OWN = st.builds(
    Own, st.sampled_from([0, 1000, 1001]), st.just("ann"), st.none() | st.integers(0, 2**41), st.none() | st.integers(0, 2),
    st.none() | st.integers(-1, 4), st.sampled_from([None, "ok", "EPERM"]), st.none() | st.booleans(), st.booleans(),
    st.none() | st.integers(0, 2**41),
)  # fmt: skip
TARGET = st.none() | st.builds(
    Target,
    st.just(7), st.just("7"), uid=st.none() | st.sampled_from([0, 1000]), unreadable=st.sampled_from([None, (), (7,)]),
    python=st.none() | st.tuples(st.integers(2, 4), st.integers(0, 20)), free_threaded=st.none() | st.booleans(),
    http=st.none() | st.builds(Answer, st.none() | st.integers(100, 599)), pids_inside=st.sampled_from([(), (7,), (7, 1)]),
)  # fmt: skip


@given(OWN, TARGET)
def test_any_facts_give_verdicts_that_agree(own: Own, target: Target | None) -> None:
    """Ids once each, a remedy for every problem of access; a target whose memory opens has no closed lock but Yama's last."""
    verdicts = judge(Facts(own, target=target), ALL)
    assert len({check.id for check in verdicts}) == len(verdicts)
    assert {check.state for check in verdicts} <= {"ok", "problem", "unknown", "info"}
    locked = problems(judge(Facts(own, target=target), ACCESS))
    assert all(check.remedy for check in locked)
    remedies = [line for check in verdicts for line in check.remedy.split("\n")]
    assert not any(set("()") & set(line.partition("  # ")[0]) for line in remedies), "a shell would stumble"
    for command in (line for line in remedies if "ppscope " in line):
        shlex.split(command)
        assert "…" not in command, "it can be pasted as it stands"
        assert target is None or f"ppscope attach {target.pid}" in command
    if target is not None and target.unreadable == ():
        assert {check.id for check in locked} <= {"ptrace.scope", "ptrace.seccomp", "proc.hidepid"}
        assert not any(check.id == "ptrace.scope" for check in locked) or (own.ptrace_scope or 0) >= 3


def test_room_in_a_folder(tmp_path: object) -> None:
    assert gather_own.no_room(str(tmp_path), 1) == ""
    assert "are needed" in gather_own.no_room(str(tmp_path), 1 << 60)
    assert gather_own.no_room(f"{tmp_path}/absent", 1) == "no such folder"


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        (
            "no permission to look into process 7",
            ["ppscope: no permission to look into process 7", "ppscope: locked", "  try: a key"],
        ),
        ("no process 7", ["ppscope: no process 7", "  try: another"]),
    ],
)
def test_a_refused_attach_names_the_lock_and_no_other_failure_does(
    message: str, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gather, "refused", lambda _: [Check("ptrace.scope", "problem", "locked", "a key")])
    say_why_not(7, End(0, "attach_failed", message, "another", 3))
    assert capsys.readouterr().err.splitlines() == lines


def test_a_refusal_without_a_closed_lock_keeps_its_own_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gather, "refused", lambda _: [])
    say_why_not(7, End(0, "attach_failed", "no permission to look into process 7", "sudo", 3))
    assert capsys.readouterr().err.splitlines()[1] == "  try: sudo"

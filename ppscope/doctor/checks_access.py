"""May we look into the target's memory, and if not, which of the five locks is closed?"""

from __future__ import annotations

from ppscope.doctor.facts import Check, Facts
from ppscope.target.errors import SUDO

_CONTAINER = "docker run --cap-add SYS_PTRACE  # Kubernetes: securityContext.capabilities.add: [SYS_PTRACE]"
_SYSCTL = "sudo sysctl kernel.yama.ptrace_scope=0"
_REBOOT = "set kernel.yama.ptrace_scope=1 in /etc/sysctl.d and reboot: it cannot be lowered while the machine runs"
_MODULE = "dmesg | grep -i -e apparmor -e avc -e denied"


def again(facts: Facts) -> str:
    """The command to run once more, for this server where there is one."""
    return "ppscope doctor" if facts.target is None else f"ppscope attach {facts.target.pid}"


def sudo(facts: Facts) -> str:
    """The same with the rights of root."""
    return SUDO + again(facts).removeprefix("ppscope")


def _capability(facts: Facts) -> str:
    """How root gets its missing capability. One command a line: an exec into a container has not what the container was given."""
    root = facts.own.uid == 0
    user = "" if root else "-u 0 "
    own = f"docker exec -it {user}--privileged CONTAINER {again(facts)}\n" if facts.own.contained else ""
    return own + _CONTAINER + ("" if root else "; enter it as root (docker exec -u 0)")


def _as_root(facts: Facts) -> str:
    """How to come to the rights of root that are missing: sudo gives none that nobody below this process can have."""
    return _capability(facts) if facts.own.uid == 0 or facts.own.root_may_trace is False else sudo(facts)


def right(facts: Facts) -> str:
    """What opens the memory of a process, by the lock that is closed."""
    own = facts.own
    if own.ptrace_scope is not None and own.ptrace_scope >= 3:
        return _REBOOT
    if own.may_trace_others:
        return _MODULE
    return _as_root(facts)


def memory(facts: Facts) -> Check | None:
    """The proof: whether the memory of the server's processes could be opened."""
    target = facts.target
    if target is None:
        return None
    if target.unreadable is None:
        return Check("target.memory", "unknown", "no process of the server could be tried")
    if not target.unreadable:
        return Check("target.memory", "ok", "stacks can be read: the memory of every scheduler opens")
    pids = ", ".join(map(str, target.unreadable[:4])) + (" …" if len(target.unreadable) > 4 else "")
    said = f"the memory of {len(target.unreadable)} processes does not open: {pids}"
    if facts.own.may_trace_others and (facts.own.ptrace_scope or 0) < 3:
        said += ", although this process has CAP_SYS_PTRACE: a security module or a user namespace refuses it"
    return Check("target.memory", "problem", said, right(facts))


def _proven(facts: Facts) -> bool:
    return facts.target is not None and facts.target.unreadable == ()


def scope(facts: Facts) -> Check:
    """Yama's ptrace_scope (Documentation/admin-guide/LSM/Yama.rst)."""
    value, may = facts.own.ptrace_scope, facts.own.may_trace_others
    if value is None:
        return Check("ptrace.scope", "ok", "no ptrace_scope here: Yama is absent")
    said = f"kernel.yama.ptrace_scope={value}"
    if value <= 0:
        return Check("ptrace.scope", "ok", said)
    if value >= 3:
        return Check("ptrace.scope", "problem", f"{said}: nobody may read another process, not even root", _REBOOT)
    if may or _proven(facts):
        return Check("ptrace.scope", "ok", f"{said}, and this process is allowed all the same")
    who = "only a parent may read its children" if value == 1 else "only CAP_SYS_PTRACE may read other processes"
    remedy = _as_root(facts)
    if remedy == sudo(facts) and not facts.own.contained:  # in a container /proc/sys cannot be written
        remedy += f"\n{_SYSCTL}"
    return Check("ptrace.scope", "problem", f"{said}: {who}", remedy)


def capability(facts: Facts) -> Check:
    """CAP_SYS_PTRACE of this very process: a container's flags say nothing about an exec into it."""
    own = facts.own
    may = own.may_trace_others
    if may is None:
        return Check("ptrace.capability", "unknown", "the capabilities of this process cannot be read")
    if may:
        return Check("ptrace.capability", "ok", "this process has CAP_SYS_PTRACE")
    if _proven(facts):
        return Check("ptrace.capability", "ok", "no CAP_SYS_PTRACE, and none is needed")
    unknown = facts.target is None or facts.target.unreadable is None
    if own.uid == 0:
        said = "root here lacks CAP_SYS_PTRACE"
        if unknown:
            # cap_ptrace_access_check (security/commoncap.c): between equals none is needed, as in one container.
            said += ": it reads only processes that lack it too, as those beside it in one container do"
        return Check("ptrace.capability", "info" if unknown else "problem", said, _capability(facts))
    if own.root_may_trace is False and not unknown:
        said = f"no CAP_SYS_PTRACE, and root here would have none either: only processes of {own.user} can be read"
        return Check("ptrace.capability", "problem", said, _capability(facts))
    return Check("ptrace.capability", "info", f"no CAP_SYS_PTRACE: only processes of {own.user} can be read")


def user(facts: Facts) -> Check | None:
    """Whose server it is."""
    target, own = facts.target, facts.own
    if target is None:
        return None
    if target.uid is None:
        return Check("target.user", "unknown", f"the owner of process {target.pid} is not known")
    if target.uid == own.uid:
        return Check("target.user", "ok", f"the server runs as {target.user}, as we do")
    said = f"the server runs as {target.user}, ppscope as {own.user}"
    if own.may_trace_others or _proven(facts):
        return Check("target.user", "ok", said + ", which may read it")
    return Check("target.user", "problem", said, _as_root(facts))


def seccomp(facts: Facts) -> Check:
    """Whether a filter takes away the call that reads memory, shown by reading our own, which every other rule allows."""
    own = facts.own
    if own.reads_itself == "ok":
        said = (
            "a seccomp filter is on and lets process_vm_readv through"
            if own.seccomp == 2
            else "no filter is in the way"
        )
        return Check("ptrace.seccomp", "ok", said)
    if own.reads_itself is None:
        return Check("ptrace.seccomp", "unknown", "process_vm_readv could not be tried")
    remedy = f"{_CONTAINER}\ndocker run --security-opt seccomp=unconfined"
    return Check("ptrace.seccomp", "problem", f"process_vm_readv is filtered here ({own.reads_itself})", remedy)


def namespace(facts: Facts) -> Check:
    """Who sees which pids: from inside a container NVML's pids are strangers, from outside the server's own are."""
    target, own = facts.target, facts.own
    if target is not None and len(target.pids_inside) > 1:
        inner = target.pids_inside[-1]
        said = f"the server is in a PID namespace of its own (its launcher is {inner} there): pids are translated"
        return Check("namespace.pid", "ok", said)
    if own.contained is None:
        return Check("namespace.pid", "unknown", "the PID namespace of this process cannot be read")
    if own.contained:
        said = "ppscope runs in a container's PID namespace: NVML may name the host's pids, so GPUs are joined by ordinal and UUID"
        return Check("namespace.pid", "info", said)
    return Check("namespace.pid", "ok", "ppscope runs in the machine's own PID namespace")


def hidepid(facts: Facts) -> Check | None:
    """/proc that hides other users' processes."""
    if not facts.own.hidepid:
        return None
    if facts.target is not None:
        return Check(
            "proc.hidepid",
            "info",
            "/proc is mounted with hidepid: servers of other users are invisible, this one is not",
        )
    said = "/proc is mounted with hidepid: servers of other users are invisible"
    return Check("proc.hidepid", "problem", said, _as_root(facts))

"""What the checks judge: plain values, gathered once. `None` is not known everywhere."""

from __future__ import annotations

from dataclasses import dataclass, field

from ppscope.target.procfs import CAP_SYS_PTRACE


@dataclass(frozen=True)
class Own:
    """This process. `ptrace_scope` None: Yama is absent. `reads_itself` is `ok`, or the errno name of process_vm_readv on ourselves.

    `contained` says whether we run in a PID namespace other than the machine's first. `seccomp` is 0 off, 1 strict, 2 filter.
    """

    uid: int
    user: str
    capabilities: int | None = None
    seccomp: int | None = None
    ptrace_scope: int | None = None
    reads_itself: str | None = None
    contained: bool | None = None
    hidepid: bool = False
    bounding: int | None = None
    """The capabilities that any process below this one can have, root's too."""

    @property
    def root_may_trace(self) -> bool | None:
        """Whether root could have CAP_SYS_PTRACE here: in most containers it cannot."""
        return None if self.bounding is None else bool(self.bounding >> CAP_SYS_PTRACE & 1)

    @property
    def may_trace_others(self) -> bool | None:
        """Whether CAP_SYS_PTRACE is in force for this very process, whatever its container was given."""
        return None if self.capabilities is None else bool(self.capabilities >> CAP_SYS_PTRACE & 1)


@dataclass(frozen=True)
class Answer:
    """What the server answered to one GET: `status`, or the `trouble` in words. `key` says how the API key fared."""

    status: int | None = None
    trouble: str = ""
    key: tuple[str, str] | None = None
    """Message and remedy where the server wants a key that it did not get."""


@dataclass(frozen=True)
class Target:
    """The server, as far as it matters here. `unreadable` are pids whose memory we may not open; None: there was none to try."""

    pid: int
    name: str
    user: str | None = None
    uid: int | None = None
    device: str | None = None
    emulated: bool = False
    pids_inside: tuple[int, ...] = ()
    """The launcher's pid in each PID namespace from ours inwards."""
    unreadable: tuple[int, ...] | None = None
    python: tuple[int, int] | None = None
    free_threaded: bool | None = None
    no_http: tuple[str, str] | None = None
    """Why its port is not asked: message and remedy."""
    state: str = "serving"
    port: int | None = None
    http: Answer | None = None
    metrics: Answer | None = None
    log: str | None = None
    """Why the log cannot be followed; empty when it can."""
    log_usual: bool = True
    folders: tuple[tuple[str, str], ...] = ()
    """(folder for the traces of a burst, why it will not do or an empty text)."""
    no_export: tuple[str, str] | None = None
    """Why the server itself has no room to write the traces of a usual burst: message and remedy."""
    unlooked: str = ""
    """Why nothing but the permissions is known of it."""


@dataclass(frozen=True)
class Tools:
    """py-spy and NVML. The state of NVML is that of the gpu source: `ok`, `off`, `degraded`, `dead` or `stalled`."""

    pyspy: str | None = None
    pyspy_version: tuple[int, ...] | None = None
    pyspy_trouble: str = ""
    nvml_state: str | None = None
    nvml_message: str = ""
    nvml_remedy: str = ""
    driver: str | None = None
    binding: str | None = None
    """Version of nvidia-ml-py."""
    mig: tuple[int, ...] = ()
    install: str = "pip install"
    """What installs into the Python that ppscope runs on, whatever `pip` is on PATH."""


@dataclass(frozen=True)
class Terminal:
    """Where the view would be drawn. Sizes are None where stdout is no terminal."""

    encoding: str = ""
    columns: int | None = None
    lines: int | None = None
    term: str = ""
    colorterm: str = ""
    no_color: bool = False
    tmux: bool = False


@dataclass(frozen=True)
class Facts:
    """Everything the checks look at. `missing` is why there is no target: message, remedy, and whether that was asked for."""

    own: Own
    tools: Tools = field(default_factory=Tools)
    terminal: Terminal = field(default_factory=Terminal)
    shm: str | None = None
    """Why /dev/shm cannot be used; empty when it can."""
    target: Target | None = None
    missing: tuple[str, str, bool] | None = None


@dataclass(frozen=True)
class Check:
    """One verdict: `state` is `ok`, `problem`, `unknown` or `info`; `remedy` is a command or empty."""

    id: str
    state: str
    what: str
    remedy: str = ""

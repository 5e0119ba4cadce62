"""The server that was found: ranks, settings, the rules of its source, and its ending."""

from __future__ import annotations

import msgspec

from ppscope.records.base import RankKey, Record


class GpuRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The GPU of a rank and how it was found.

    `index` is NVML's; `None` when only the CUDA ordinal is known and the order is not PCI_BUS_ID. `source` is one of
    `nvml_pid`, `dump_locals`, `title_formula`, `emulated`.
    """

    index: int | None
    uuid: str | None
    cuda_ordinal: int | None
    source: str


class Rank(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One scheduler process. `started_ticks` is /proc's start time: with the pid it names the process for ever."""

    key: RankKey
    pid: int
    started_ticks: int
    title: str
    gpu: GpuRef | None = None
    ep: int | None = None
    attn_cp: int | None = None
    moe_dp: int | None = None
    main_tid: int | None = None
    ns_pid: int | None = None
    """Pid inside the target's own pid namespace; None when it is the same."""
    threads: int | None = None


class Fact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One thing known about the server, with where it came from (`cmdline`, `server_info`, `title`, `dump`, `env`, `log`)."""

    name: str
    value: str | int | float | bool | None
    source: str


class Server(Record, frozen=True, tag="server"):
    """The server that was found; sent again whenever something about it changes.

    `kind` is `launch_server`, `serve`, `engine` (embedded) or `node` (a node without HTTP). `state` is `loading`, `serving`
    or `gone`. `launch_command` is redacted.
    """

    at_ns: int
    launcher_pid: int
    launcher_started_ticks: int
    kind: str
    state: str
    ranks: tuple[Rank, ...]
    pp_size: int
    tp_size: int
    dp_size: int
    version: str | None = None
    model: str | None = None
    device: str | None = None
    """`cuda`, `cpu`, `hip`, `xpu`, `npu`; None when nothing says it."""
    host: str | None = None
    port: int | None = None
    user: str | None = None
    launch_command: tuple[str, ...] = ()
    sglang_path: str | None = None
    """Folder of the installed `sglang` package as the target sees it."""
    facts: tuple[Fact, ...] = ()
    emulated: bool = False
    others: tuple[tuple[int, str], ...] = ()
    """(pid, title) of the other processes of the server: detokenizer, DP controller, tokenizer workers."""
    pp_loop_size: int | None = None

    @property
    def tls(self) -> bool:
        """Whether its API was asked to speak TLS (fact `tls`)."""
        return any(fact.name == "tls" for fact in self.facts)


class Settings(Record, frozen=True, tag="settings"):
    """Server settings as asked or as resolved. `origin` is `requested` (command line, environment), `resolved` (/server_info)
    or `model` (the model's own config.json).

    `values` is the flat or nested mapping with secrets removed; a value that was removed reads `«redacted»`.
    """

    at_ns: int
    origin: str
    values: dict[str, object]


class Rules(Record, frozen=True, tag="rules"):
    """The graph rules of the installed SGLang: `book` is the msgpack of a `RuleBook`, empty where `problem` says why there is none."""

    at_ns: int
    version: str | None
    path: str
    book: bytes = b""
    problem: str = ""


class RankExit(Record, frozen=True, tag="exit"):
    """A scheduler process is gone (`reason`: `gone`, `zombie`, `pid_reused`) or stopped by somebody (`stopped`, `resumed`)."""

    rank: RankKey
    pid: int
    at_ns: int
    reason: str


class ServerGone(Record, frozen=True, tag="server_gone"):
    """The launcher is gone; `candidates` are (launcher pid, model or title) of servers that could be attached to instead."""

    at_ns: int
    launcher_pid: int
    candidates: tuple[tuple[int, str], ...] = ()

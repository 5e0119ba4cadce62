"""Everything about one server, read from the process table: ranks, sizes, port, device, installation, state."""

from __future__ import annotations

import msgspec

from ppscope.records import Fact, Rank, RankKey
from ppscope.target.arguments import LaunchArguments, arguments_of, over, parse_arguments
from ppscope.target.commands import parse_python
from ppscope.target.config_file import ConfigProblem, config_words
from ppscope.target.environment import kept_environment, rank_environment
from ppscope.target.errors import printable
from ppscope.target.found import Found
from ppscope.target.gpu_map import Placement, map_gpus
from ppscope.target.installed import find_installed
from ppscope.target.procfs import Proc, user_name
from ppscope.target.redact import redact_argv, redact_text
from ppscope.target.sockets import Located, PortCheck, locate_port
from ppscope.target.tree import Tree

_LIBRARIES = (("libcuda.so", "cuda"), ("libamdhip64.so", "hip"), ("libze_loader.so", "xpu"), ("libascendcl.so", "npu"))


def build(tree: Tree, launcher: int, kind: str) -> Found | None:
    """Read everything about one server; None when its launcher has gone meanwhile."""
    proc = tree.proc
    stat = tree.stats.get(launcher)
    status = proc.status(launcher)
    if stat is None or status is None:
        return None
    argv = tree.argv[launcher]
    environ = proc.environ(launcher)
    command = parse_python(argv)
    configured = _configured(proc, launcher, argv)
    ours = kind != "engine" or _is_sglang_tool(argv)
    arguments = over(parse_arguments(configured), arguments_of(argv)) if ours else _of_script(argv)
    members = tree.members(launcher)
    ranks, others = _ranks(tree, members)
    loading = tree.untitled_children(launcher)
    embedded = kind == "engine"
    if embedded and not loading:
        arguments = _on_node(arguments, ranks)
    facts: list[Fact] = []
    placement = _placement(arguments, ranks, facts)
    if placement.nnodes > 1 and placement.node_rank > 0:
        kind = "node"
    rank_env = {rank.key: rank_environment(proc.environ(rank.pid) or {}) for rank in ranks}
    emulated = "PPSCOPE_EMULATED_GPUS" in (environ or {})
    device = _device(tree, arguments, ranks, facts, emulated=emulated)
    gpus = map_gpus(ranks, placement, environ or {}, device=device, rank_env=rank_env)
    ranks = tuple(msgspec.structs.replace(rank, gpu=gpus.get(rank.key)) for rank in ranks)
    workers = [pid for pid in members if tree.titles[pid].kind == "tokenizer_worker"]
    located = locate_port(proc, [launcher, *workers], arguments.host, arguments.port, default=not embedded)
    facts += _port_facts(located)
    state = _state(ranks, placement, located.check, spawning=embedded and bool(loading))
    if loading:
        facts.append(Fact("untitled_children", len(loading), "cmdline"))
    installed = find_installed(
        proc, launcher, argv, command=command, environ=environ or {}, more_pids=[rank.pid for rank in ranks[:1]]
    )
    if installed.version is not None:
        facts.append(Fact("version", installed.version, installed.version_source or ""))
    kept = kept_environment(environ or {})
    facts += [Fact(f"env.{name}", value, "env") for name, value in sorted(kept.items())]
    if arguments.config is not None:
        facts.append(Fact("config_file", redact_text(arguments.config), "cmdline"))
    model = arguments.served_model_name or arguments.model
    if any(word.split("=")[0] == "--ssl-certfile" for word in (*argv, *configured)):
        facts.append(Fact("tls", "yes", "cmdline"))
    if model is not None:
        facts.append(Fact("model_path", redact_text(arguments.model or model), "cmdline"))
    again = proc.stat(launcher)
    if again is None or again.started_ticks != stat.started_ticks or again.state in "ZX":
        return None
    return Found(
        launcher_pid=launcher,
        launcher_started_ticks=stat.started_ticks,
        kind=kind,
        state=state,
        ranks=ranks,
        placement=placement,
        arguments=arguments,
        launch_command=redact_argv(argv),
        readable=environ is not None,
        user=user_name(status.uid),
        uid=status.uid,
        host=located.host,
        port=located.port,
        port_check=located.check,
        model=None if model is None else redact_text(model),
        device=device,
        installed=installed,
        env=kept,
        rank_env=rank_env,
        others=others,
        emulated=emulated,
        facts=tuple(facts),
        gpus_file=(environ or {}).get("PPSCOPE_EMULATED_GPUS"),
    )


def _configured(proc: Proc, launcher: int, argv: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return config_words(proc, launcher, argv)
    except ConfigProblem:
        return ()  # the source of the settings says so


def _is_sglang_tool(argv: tuple[str, ...]) -> bool:
    """One of SGLang's own programs, such as bench_offline_throughput: its options mean what they mean for a server."""
    command = parse_python(argv)
    return command is not None and command.module is not None and command.module.startswith("sglang.")


def _of_script(argv: tuple[str, ...]) -> LaunchArguments:
    """Of a user's own program only the model's name is believed; its other options may mean anything."""
    found = arguments_of(argv)
    return LaunchArguments(model=found.model)


def _on_node(arguments: LaunchArguments, ranks: tuple[Rank, ...]) -> LaunchArguments:
    """Of an Engine whose lowest stage or tensor rank is not the first: it is on a node behind the first, each with as many ranks."""
    for numbers in ({rank.key.pp for rank in ranks}, {rank.key.tp for rank in ranks}):
        lowest, held = min(numbers, default=0), len(numbers)
        if lowest and lowest % held == 0:
            return arguments._replace(nnodes=lowest // held + 1, node_rank=lowest // held)
    return arguments


def _ranks(tree: Tree, members: list[int]) -> tuple[tuple[Rank, ...], tuple[tuple[int, str], ...]]:
    ranks: dict[RankKey, Rank] = {}
    others: list[tuple[int, str]] = []
    for pid in members:
        title, stat = tree.titles[pid], tree.stats[pid]
        key = title.key
        if key is None or key in ranks:
            others.append((pid, printable(title.text)))
            continue
        status = tree.proc.status(pid)
        inner = status.ns_pids[-1] if status is not None and len(status.ns_pids) > 1 else None
        ranks[key] = Rank(
            key=key,
            pid=pid,
            started_ticks=stat.started_ticks,
            title=title.text,
            ep=title.ep,
            attn_cp=title.attn_cp,
            moe_dp=title.moe_dp,
            main_tid=pid,
            ns_pid=inner,
            threads=stat.threads,
        )
    return tuple(ranks[key] for key in sorted(ranks)), tuple(others)


def _placement(arguments: LaunchArguments, ranks: tuple[Rank, ...], facts: list[Fact]) -> Placement:
    """Sizes: the larger of what the command line asks and what titles prove; titles of one node show a part only."""
    asked = {
        "pp_size": arguments.pp_size,
        "tp_size": arguments.tp_size,
        "dp_size": (arguments.dp_size or 1) * (arguments.attn_dp_size or 1)
        if arguments.dp_size or arguments.attn_dp_size
        else None,
    }
    seen = {
        "pp_size": max((rank.key.pp for rank in ranks), default=-1) + 1,
        "tp_size": max((rank.key.tp for rank in ranks), default=-1) + 1,
        "dp_size": max((rank.key.dp for rank in ranks), default=-1) + 1,
    }
    if asked["dp_size"] is None and len({rank.key.dp for rank in ranks}) == 1:
        seen["dp_size"] = 1  # one of several servers that a router started: SGLANG_DP_RANK numbers them
    sizes: dict[str, int] = {}
    for name, value in asked.items():
        sizes[name] = max(value or 1, seen[name], 1)
        if value is not None:
            facts.append(Fact(name, value, "cmdline"))
        if seen[name] > (value or 1):
            facts.append(Fact(name, seen[name], "title"))
    attention = arguments.dp_attention or (arguments.attn_dp_size or 1) > 1 or _dp_inside_tp(ranks)
    return Placement.of(arguments, sizes["pp_size"], sizes["tp_size"], sizes["dp_size"], attention)


def _dp_inside_tp(ranks: tuple[Rank, ...]) -> bool:
    """DP attention splits the TP group: every (pp, tp) occurs once. Replicas repeat them."""
    several = len({rank.key.dp for rank in ranks}) > 1
    return several and len({(rank.key.pp, rank.key.tp) for rank in ranks}) == len(ranks)


def _device(
    tree: Tree, arguments: LaunchArguments, ranks: tuple[Rank, ...], facts: list[Fact], *, emulated: bool
) -> str | None:
    """What the server computes on; emulated GPUs stand for CUDA ones. None until a scheduler has loaded its driver library."""
    if arguments.device is not None:
        device = arguments.device.split(":")[0]
        facts.append(Fact("device", device, "cmdline"))
        return device
    if emulated:
        facts.append(Fact("device", "cuda", "env"))
        return "cuda"
    for rank in ranks[:1]:
        names = [name.rsplit("/", 1)[-1] for name in tree.proc.mapped_files(rank.pid) or ()]
        for library, device in _LIBRARIES:
            if any(name.startswith(library) for name in names):
                facts.append(Fact("device", device, "maps"))
                return device
    return None


def _port_facts(located: Located) -> list[Fact]:
    if located.port is None or located.check is None:
        return []
    facts = [Fact("port", located.port, located.source), Fact("port.owned", located.check.owned, "socket")]
    if located.check.same_network is not None:
        facts.append(Fact("port.same_network", located.check.same_network, "socket"))
    return facts


def _state(ranks: tuple[Rank, ...], placement: Placement, check: PortCheck | None, *, spawning: bool) -> str:
    """`serving` once every rank of this node has its title and the port, where there is one, is open.

    `spawning` says that children without a title may still become ranks, where nothing else says how many there will be.
    """
    if not ranks or spawning:
        return "loading"
    if len(ranks) < placement.ranks_on_node or (check is not None and check.owned == "no"):
        return "loading"
    return "serving"

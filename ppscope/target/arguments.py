"""The launch arguments that place ranks, ports and GPUs, read from the launcher's command line as SGLang's argparse would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ppscope.target.commands import parse_python
from ppscope.whole import whole

DEFAULT_PORT = 30000
DEFAULT_HOST = "127.0.0.1"

_ALIASES: dict[str, tuple[str, ...]] = {
    "model": ("--model-path", "--model"),
    "served_model_name": ("--served-model-name",),
    "pp_size": ("--pp-size", "--pipeline-parallel-size", "--pp"),
    "tp_size": ("--tp-size", "--tensor-parallel-size", "--tp"),
    "dp_size": ("--dp-size", "--data-parallel-size", "--dp"),
    "attn_dp_size": ("--attn-dp-size", "--attention-data-parallel-size"),
    "ep_size": ("--ep-size", "--expert-parallel-size", "--ep"),
    "nnodes": ("--nnodes",),
    "node_rank": ("--node-rank",),
    "base_gpu_id": ("--base-gpu-id",),
    "gpu_id_step": ("--gpu-id-step",),
    "device": ("--device",),
    "host": ("--host",),
    "port": ("--port",),
    "config": ("--config",),
    "pp_async_batch_depth": ("--pp-async-batch-depth",),
}
_NAME_OF = {alias: name for name, aliases in _ALIASES.items() for alias in aliases}
_NUMBERS = frozenset(_ALIASES) - {"model", "served_model_name", "device", "host", "config"}
_ATTENTION_FLAG = "--enable-dp-attention"


class LaunchArguments(NamedTuple):
    """What the command line says; None where it says nothing (SGLang's defaults are not filled in)."""

    model: str | None = None
    served_model_name: str | None = None
    pp_size: int | None = None
    tp_size: int | None = None
    dp_size: int | None = None
    attn_dp_size: int | None = None
    ep_size: int | None = None
    nnodes: int | None = None
    node_rank: int | None = None
    base_gpu_id: int | None = None
    gpu_id_step: int | None = None
    device: str | None = None
    host: str | None = None
    port: int | None = None
    config: str | None = None
    """A YAML file with settings that are not on the command line (`ppscope.target.config_file` reads it)."""
    pp_async_batch_depth: int | None = None
    dp_attention: bool = False


def parse_arguments(words: Sequence[str]) -> LaunchArguments:
    """Read the words behind the program; `--name value` and `--name=value`, aliases and argparse's abbreviations, last one wins."""
    text: dict[str, str] = {}
    numbers: dict[str, int] = {}
    attention = False
    index = 0
    if words and words[0] == "serve":
        words = words[1:]
        if words and not words[0].startswith("-"):
            text["model"] = words[0]
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("--"):
            continue
        flag, equals, value = word.partition("=")
        name = _option(flag)
        if name is None:
            attention = attention or (len(flag) >= len("--enable-dp") and _ATTENTION_FLAG.startswith(flag))
            continue
        if not equals:
            if index >= len(words) or words[index].startswith("--"):
                continue
            value = words[index]
            index += 1
        if name not in _NUMBERS:
            text[name] = value
        elif (number := whole(value, signed=True)) is not None:
            numbers[name] = number
    return LaunchArguments(**text, **numbers, dp_attention=attention)  # type: ignore[arg-type]


def over(configured: LaunchArguments, asked: LaunchArguments) -> LaunchArguments:
    """What both say, the command line before its `--config` file."""
    said = {name: value for name, value in asked._asdict().items() if value is not None and value is not False}
    return configured._replace(**said)


def _option(flag: str) -> str | None:
    """The option a flag means. The server accepted it, so an abbreviation is unique among all of its options."""
    if flag in _NAME_OF:
        return _NAME_OF[flag]
    if len(flag) < 6:
        return None
    meant = {name for alias, name in _NAME_OF.items() if alias.startswith(flag)}
    return meant.pop() if len(meant) == 1 else None


def arguments_of(argv: Sequence[str]) -> LaunchArguments:
    """Arguments on a launcher's whole command line."""
    command = parse_python(argv)
    return parse_arguments(command.arguments if command is not None else tuple(argv[1:]))

"""Settings as asked (the launch command and environment facts) and as resolved (`/server_info`), without secrets.

`/server_info` of SGLang 0.5.6 to 0.5.23 is one flat object of 296 to 556 keys: the server arguments after resolution, the
scheduler's own figures, the version, and `internal_states`, one object per data-parallel rank from the first stage.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from ppscope.records import Fact
from ppscope.target.redact import redact_argv, redact_joined, redact_mapping

TEXT_LIMIT = 400
LIST_LIMIT = 256
KEY_LIMIT = 1200

_SHORT = {
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "pp": "pp_size",
    "pipeline_parallel_size": "pp_size",
    "dp": "dp_size",
    "data_parallel_size": "dp_size",
    "ep": "ep_size",
    "expert_parallel_size": "ep_size",
    "attention_context_parallel_size": "attn_cp_size",
    "moe_data_parallel_size": "moe_dp_size",
    "model": "model_path",
    "nccl_init_addr": "dist_init_addr",
    "speculative_draft_model": "speculative_draft_model_path",
}
"""Other spellings that SGLang's parser takes (server_args.py `add_argument`, 0.5.6 to 0.5.23; `--tp` is argparse's abbreviation)."""

CONFIG_PROBLEM = "config_problem"
"""Among the requested settings: why the file of `--config` could not be read. What the command line lacks may then be in it."""

_NESTED = ("cuda_graph_config",)
_STATE_NESTED = ("memory_usage", "decode_cuda_graph_bs")


def requested_settings(
    argv: Sequence[str], facts: Iterable[Fact] = (), config: Sequence[str] = ()
) -> dict[str, object]:
    """The options on a launch command as setting names with typed values, and the environment facts under their own names.

    `config` are the options of its config file (`ppscope.target.config_file`), which those of the command line override.

    A bare option is True, several values are a list, the same option given twice keeps the last; what is not an option
    is left out, but for the model of `sglang serve MODEL`. Secrets are replaced by the marker.
    """
    found: dict[str, object] = {}
    words = list(redact_argv(argv))
    start = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    words[start:start] = redact_argv(config)
    if start >= 2 and words[start - 2] == "serve":
        found["model_path"] = words[start - 1]
    index = start
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("--") or len(word) == 2:
            continue
        name, equals, value = word[2:].partition("=")
        values = [value] if equals else []
        while not equals and index < len(words) and not _is_option(words[index]):
            values.append(words[index])
            index += 1
        key = name.replace("-", "_")
        typed = [_typed(text) for text in values]
        found[_SHORT.get(key, key)] = True if not typed else typed[0] if len(typed) == 1 else typed
    for fact in facts:
        if fact.source == "env":
            found[fact.name.removeprefix("env.")] = fact.value
    return redact_mapping({key: _capped(value) for key, value in list(found.items())[:KEY_LIMIT]})


def resolved_settings(answer: object) -> dict[str, object]:
    """The settings in an answer of `/server_info`: scalars, short lists, `cuda_graph_config` as it nests, no secrets.

    `internal_states` keeps only what differs from the top level. Empty when the answer is not an object.
    """
    if not isinstance(answer, Mapping):
        return {}
    kept: dict[str, object] = {}
    for raw_key, value in list(answer.items())[:KEY_LIMIT]:
        key = str(raw_key)
        if key == "internal_states":
            kept[key] = _states(value, answer)
        elif key == "launch_command" and isinstance(value, str):
            kept[key] = redact_joined(value[: 1 << 16])[:LIST_LIMIT]  # 0.5.23 joins the words without quotes
        elif key == "env_vars":
            continue
        elif not isinstance(value, Mapping) or key in _NESTED:
            kept[key] = _capped(value)
    return redact_mapping(kept)


def _states(states: object, top: Mapping[str, object]) -> list[object]:
    if not isinstance(states, list):
        return []
    kept: list[object] = []
    for state in states[:64]:
        if not isinstance(state, Mapping):
            continue
        differs = {
            str(key): _capped(value)
            for key, value in list(state.items())[:KEY_LIMIT]
            if (not isinstance(value, Mapping | list) or key in _STATE_NESTED)
            and key != "env_vars"
            and (key not in top or top[key] != value)
        }
        kept.append(differs)
    return kept


def _capped(value: object, depth: int = 0) -> object:
    if isinstance(value, str):
        return value if len(value) <= TEXT_LIMIT else value[:TEXT_LIMIT] + "…"
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else str(value)[:TEXT_LIMIT]
    if depth > 4:
        return "…"
    if isinstance(value, Mapping):
        return {str(key)[:80]: _capped(item, depth + 1) for key, item in list(value.items())[:LIST_LIMIT]}
    if isinstance(value, list | tuple):
        return [_capped(item, depth + 1) for item in value[:LIST_LIMIT]]
    return str(value)[:TEXT_LIMIT]


def _is_option(word: str) -> bool:
    return word.startswith("--") or (
        word.startswith("-") and len(word) > 1 and not word[1].isdigit() and word[1] != "."
    )


def _typed(text: str) -> object:
    if text[:1] in "{[" or text in ("true", "false", "null"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text) if any(char.isdigit() for char in text) else text
    except ValueError:
        return text

"""The model's own config.json, for the number of its layers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from ppscope.records import Server

_NAMES = ("num_hidden_layers", "n_layer", "num_layers")
_NESTED = ("text_config", "llm_config", "language_config")
_MAX_BYTES = 4 << 20


def model_settings(server: Server, root: str) -> dict[str, object]:
    """`num_hidden_layers` of the model whose folder the server's record names; empty where it cannot be read.

    `root` is the root of the target's files. A model that was named by its hub id is looked for in the hub's cache.
    """
    for folder in _folders(server.model, root):
        try:
            file = os.open(os.path.join(folder, "config.json"), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(file, "rb") as opened:
                found = json.loads(opened.read(_MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            continue
        layers = _layers(found)
        return {} if layers is None else {"num_hidden_layers": layers}
    return {}


def _layers(config: object) -> int | None:
    if not isinstance(config, Mapping):
        return None
    for part in (config, *(config.get(name) for name in _NESTED)):
        for name in _NAMES:
            value = part.get(name) if isinstance(part, Mapping) else None
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10_000:
                return value
    return None


def _folders(model: str | None, root: str) -> list[str]:
    if not model or "\0" in model:
        return []
    if model.startswith("/"):
        return [root + model]
    home = os.environ.get("HF_HOME") or os.path.join(os.path.expanduser("~"), ".cache", "huggingface")
    snapshots = os.path.join(home, "hub", "models--" + model.replace("/", "--"), "snapshots")
    try:
        return [os.path.join(snapshots, name) for name in sorted(os.listdir(snapshots))]
    except OSError:
        return []

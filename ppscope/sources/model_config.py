"""The model's own config.json, for the number of its layers."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Mapping
from contextlib import suppress

from ppscope.records import Server
from ppscope.target.installed import Root
from ppscope.target.procfs import Proc

_NAMES = ("num_hidden_layers", "n_layer", "num_layers")
_NESTED = ("text_config", "llm_config", "language_config")
_MAX_BYTES = 4 << 20


def model_settings(server: Server, root: str) -> dict[str, object]:
    """`num_hidden_layers` of the model that the server's record names; empty where it cannot be read.

    `root` is the root of the target's files. The path it was loaded from counts, not the name it is served under. A model that
    was named by its hub id is looked for in the hub's cache of the server, of its user and of ours.
    """
    for folder in _folders(server, root):
        path = os.path.join(folder, "config.json")
        try:
            if not os.path.isfile(path):
                continue
            with open(path, "rb") as opened:
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


def _folders(server: Server, root: str) -> list[str]:
    facts = {fact.name: str(fact.value) for fact in server.facts}
    model = facts.get("model_path", server.model)
    if not model or "\0" in model:
        return []
    there = Root(root)
    cwd = Proc().link(server.launcher_pid, "cwd") or ""
    found = [there.resolve(os.path.join(cwd, model))] if cwd or model.startswith("/") else []
    if not model.startswith("/"):
        hubs = [there.resolve(hub) for hub in _hubs(facts, _home(server.launcher_pid))]
        hubs += _hubs({f"env.{name}": value for name, value in os.environ.items()}, os.path.expanduser("~"))
        for hub in hubs:
            snapshots = os.path.join(hub, "models--" + model.replace("/", "--"), "snapshots")
            with suppress(OSError):
                found += [os.path.join(snapshots, name) for name in sorted(os.listdir(snapshots))]
    return found


def _hubs(environ: Mapping[str, str], home: str | None) -> list[str]:
    """Where huggingface_hub keeps models by these variables (its constants.py), likeliest first."""
    named = [environ.get("env.HF_HUB_CACHE"), environ.get("env.HUGGINGFACE_HUB_CACHE")]
    hf_home = environ.get("env.HF_HOME") or (home and os.path.join(home, ".cache", "huggingface"))
    return [hub for hub in (*named, hf_home and os.path.join(hf_home, "hub")) if hub]


def _home(pid: int) -> str | None:
    try:
        return pwd.getpwuid(os.stat(f"/proc/{pid}").st_uid).pw_dir
    except (OSError, KeyError):
        return None

"""What is known about a server's settings when a graph rule is judged: asked, resolved, defaults, and the device seen."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ppscope.sources.rules_model import RuleBook
from ppscope.target.server_info import CONFIG_PROBLEM

PLATFORMS = frozenset({"cuda", "hip", "npu", "cpu", "mps", "xpu", "musa", "hpu"})
_REDACTED = "«redacted»"


@dataclass(frozen=True)
class Open:
    """A value that cannot be known from here, with the names that would decide it."""

    names: tuple[str, ...]


def merge(*values: object) -> Open:
    """One open value for several, each name once."""
    names: dict[str, None] = {}
    for value in values:
        if isinstance(value, Open):
            names.update(dict.fromkeys(value.names))
    return Open(tuple(names))


@dataclass(frozen=True)
class World:
    """Where values come from, strongest first.

    `asked` are what-if values (`--set`) and stand above all; `requested` is the command line (None when it was not seen);
    `resolved` is `/server_info` (None without a server). `device` is the platform that was observed, not the server's own
    word for it (an AMD server also says "cuda"). `dropped` are flags taken away to see what would happen.
    """

    book: RuleBook
    asked: Mapping[str, object] = field(default_factory=dict)
    requested: Mapping[str, object] | None = None
    resolved: Mapping[str, object] | None = None
    device: str | None = None
    dropped: frozenset[str] = frozenset()

    def without(self, names: frozenset[str]) -> World:
        """The same server, these flags not given."""
        return replace(self, dropped=self.dropped | names)

    def setting(self, name: str) -> object:
        """The value of a setting once the server has started; Open when only the running server could say."""
        for source in (self.asked, self.resolved or {}):
            found = find(source, name)
            if found is not _MISSING:
                return self._told(name, found)
        if name == "device":
            return self.device if self.device is not None else Open(("device",))
        if self.requested is not None and (found := find(self.requested, name)) is not _MISSING:
            if found in (None, "auto") and name in self.book.resolved_late:
                return Open((name,))
            return self._told(name, found)
        if name in self.book.defaults and name not in self.book.resolved_late and not self._config_unread:
            return self.book.defaults[name]
        return Open((name,))

    @property
    def _config_unread(self) -> bool:
        return self.requested is not None and CONFIG_PROBLEM in self.requested

    def _told(self, name: str, value: object) -> object:
        if value == _REDACTED:
            return Open((name,))
        if name == "device" and value is None and self.device is not None:
            return self.device
        return value

    def request(self, name: str) -> object:
        """What the command line asked for; the default when it is known not to have been given."""
        found = self._request(name)
        if name not in self.dropped and (found is None or found == self.book.defaults.get(name)):
            for flag, (stands_for, value) in self.book.aliases.items():
                given = self._request(flag) if stands_for == name else None
                if not isinstance(given, Open) and given not in (None, False):
                    return value
        return found

    def _request(self, name: str) -> object:
        default = self.book.defaults.get(name)
        if name in self.dropped:
            return default
        if (found := find(self.asked, name)) is not _MISSING:
            return found
        phase, is_json = json_phase(name)
        if self.requested is not None:
            found = find(self.requested, name)
            if found is _MISSING and self._config_unread:
                return Open(("--config",))
            return default if found is _MISSING else found
        if self.resolved is None:
            return default
        command = _command(self.resolved.get("launch_command"))
        if command is not None:
            return _in_command(command, name, phase if is_json else None, default)
        if is_json:
            state = self.resolved_off(phase)
            return None if state is False else Open(("--cuda-graph-config",))
        found = find(self.resolved, name)
        if found is _MISSING or found is None or found is False:
            return default if found is _MISSING else found
        if name in ("disable_cuda_graph", "disable_piecewise_cuda_graph"):
            # True after start-up: the user or a rule, and the value alone does not say which.
            return Open(("--" + name.replace("_", "-"),))
        return found

    def resolved_off(self, phase: str) -> bool | None:
        """What the running server says of a phase; None when it says nothing (or there is no server)."""
        if self.resolved is None:
            return None
        backend = find(self.resolved, f"cuda_graph_config.{phase}.backend")
        if isinstance(backend, str):
            return backend == "disabled"
        if self.book.dialect == "flags":
            off = find(self.resolved, "disable_cuda_graph" if phase == "decode" else "disable_piecewise_cuda_graph")
            if isinstance(off, bool):
                return off
        return None

    def platform(self, name: str) -> object:
        """A platform helper (`is_cuda()`, `is_sm90`, …) as the observed device decides it."""
        shown = f"is_{name}()" if name in PLATFORMS else f"is_{name}"
        device = self.device
        if device is None:
            told = find(self.asked, "device")
            # `--device cpu` on a machine with GPUs leaves is_cuda() true: the setting does not tell the platform.
            device = told if isinstance(told, str) and told != "cpu" else None
        if device in PLATFORMS:
            if name == "cpu" == device:
                # SGLang's is_cpu() also wants SGLANG_USE_CPU_ENGINE=1 (0.5.11, 0.5.23 utils/common.py): a server on
                # `--device cpu` without it says False.
                return Open((shown,))
            if name in PLATFORMS:
                return name == device
            return False if device not in ("cuda", "hip") and name != "out_of_tree" else Open((shown,))
        told = find(self.resolved or {}, "device")
        if isinstance(told, str) and name in PLATFORMS and name not in (told, "cuda", "hip"):
            return False
        return Open((shown,))

    def fact(self, text: str) -> object:
        """A fact the settings do not decide, unless the user told it by its last name or it is the same for every target."""
        if text == "cuda_graph_config":
            return "parsed"
        tail = text.rsplit(".", 1)[-1].split("(", 1)[0]
        if tail in ("is_draft_worker", "force_for_draft_worker"):
            return False
        if tail.isidentifier() and tail in self.asked and tail not in self.book.settings:
            return self.asked[tail]
        return Open((text,))


class _Missing:
    """Stands for "not in the mapping", which None does not."""


_MISSING = _Missing()


def find(source: Mapping[str, object], name: str) -> object:
    """A value by its flat or dotted name in a flat or nested mapping."""
    if name in source:
        return source[name]
    head, _, rest = name.partition(".")
    inner = source.get(head)
    if rest and isinstance(inner, Mapping):
        return find(inner, rest)
    return _MISSING


def json_phase(name: str) -> tuple[str, bool]:
    """Whether a requested name stands for a key of --cuda-graph-config, and for which phase."""
    parts = name.split(".")
    return (parts[1], True) if len(parts) == 3 and parts[0] == "cuda_graph_config" else ("", False)


def _command(value: object) -> list[str] | None:
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError:
            return None
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, str) for item in value):
        return [str(item) for item in value]
    return None


def _in_command(command: list[str], name: str, phase: str | None, default: object) -> object:
    """A flag's value on a command line; a config file beside it leaves the rest open."""
    option = "--cuda-graph-config" if phase is not None else "--" + name.replace("_", "-")
    for index, word in enumerate(command):
        head, equals, tail = word.partition("=")
        if head != option:
            continue
        following = tail if equals else command[index + 1] if index + 1 < len(command) else ""
        if phase is not None:
            try:
                found = find({"cuda_graph_config": json.loads(following)}, name)
            except ValueError:
                return Open(("--cuda-graph-config",))
            return None if found is _MISSING else found
        return True if isinstance(default, bool) else following
    return Open((option,)) if "--config" in command else default

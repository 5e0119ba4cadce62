"""`ppscope rules`: which rules of an installed SGLang turn CUDA graphs off for given settings, as text or JSON."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path

from ppscope import stdout
from ppscope.complain import complain
from ppscope.diagnose.graph_rules import answers, judge
from ppscope.diagnose.graph_world import World
from ppscope.diagnose.rules_text import report
from ppscope.sources.rules import NotSglang, read_rules
from ppscope.sources.rules_model import RuleBook

_WORDS: dict[str, object] = {"true": True, "false": False, "none": None, "null": None}


def run(
    source: str,
    settings: dict[str, str],
    resolved: Mapping[str, object] | None,
    device: str | None,
    as_json: bool,
    *,
    requested: Mapping[str, object] | None = None,
    show_all: bool = False,
) -> int:
    """Print the rules of the sglang package at `source`; `settings` are what-if values over `resolved` (/server_info).

    `requested` is the command line, None where it was not seen. `device` is the observed platform (cuda, hip, cpu, …), None
    when nothing was observed; it is taken to be cuda, and said so, where no server and no setting tells it. `show_all` lists every
    rule that is not decided. Returns 0 when no rule fires, 1 when one does, 2 for a value of the wrong type, 3 when the folder is no
    sglang package or cannot be parsed.
    """
    try:
        book = read_rules(Path(source).expanduser())
    except NotSglang as error:
        complain(str(error))
        return 3
    asked = {setting_name(key): setting_value(text) for key, text in settings.items()}
    wrong = _wrong_type(book, asked)
    if wrong:
        complain(wrong)
        return 2
    _warn_unknown(book, asked)
    assumed = device is None and resolved is None and "device" not in asked
    world = World(book, asked, requested, resolved, "cuda" if assumed else device)
    decode, prefill = answers(world)
    if as_json:
        stdout.write_text(json.dumps(as_object(world, assumed=assumed), indent=1) + "\n")
    else:
        stdout.write_text("\n".join(report(world, decode, prefill, assumed=assumed, show_all=show_all)) + "\n")
    for file, reason in book.unreadable:
        complain(f"{file}: cannot parse: {reason}; rules in it are missing here")
    return 1 if decode.fired or prefill.fired else 0


def as_object(world: World, *, assumed: bool = False) -> dict[str, object]:
    """The JSON of `ppscope rules`, schema ppscope.rules/1."""
    book = world.book
    return {
        "schema": "ppscope.rules/1",
        "sglang": {"version": book.version, "path": book.path},
        "rules": [
            {
                "phase": item.rule.phase,
                "file": item.rule.file,
                "line": item.rule.line,
                "function": item.rule.function,
                "condition": item.rule.condition,
                "message": item.rule.message,
                "verdict": item.verdict,
                "undecided": list(item.undecided),
            }
            for item in judge(world)
        ],
        "assumed": {"device": "cuda"} if assumed else {},
    }


def setting_name(key: str) -> str:
    """A setting's name from what the user typed: `--disable-cuda-graph` is `disable_cuda_graph`."""
    return key.strip().lstrip("-").replace("-", "_")


def setting_value(text: str) -> object:
    """A value as typed: true, false, none, a number, JSON or a Python literal; anything else is a string."""
    word = text.strip()
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        return json.loads(word, parse_constant=str)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _wrong_type(book: RuleBook, asked: Mapping[str, object]) -> str:
    """What is wrong with the first value that a setting cannot have, by the type of its default; empty where nothing is."""
    for name, value in asked.items():
        default = book.defaults.get(name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if isinstance(default, bool) and not isinstance(value, bool) and value is not None:
            return f"--set {name}={value}: {name} is true or false"
        if isinstance(default, int) and not isinstance(default, bool) and not whole and value is not None:
            return f"--set {name}={value}: {name} is a whole number"
    return ""


def _warn_unknown(book: RuleBook, asked: Mapping[str, object]) -> None:
    text = " ".join(rule.condition for rule in book.rules)
    for name in asked:
        if name.split(".", 1)[0] not in book.settings | book.aliases.keys() and name not in text:
            complain(f"this sglang has no setting {name}; it decides nothing here")

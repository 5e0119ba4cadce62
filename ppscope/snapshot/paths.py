"""Paths made short on request: home folders and absolute paths down to what lies within their package."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ppscope.records import AnyRecord, BurstReport, FrameDef, Rules, Server
from ppscope.sources.rules_model import RuleBook
from ppscope.views import Finding

_PACKAGES = ("site-packages/", "dist-packages/")
_LIBRARY = re.compile(r".*/lib/python\d[\w.]*/")
_SOURCE = re.compile(r".*/(?=(?:sglang|torch|triton|vllm|flashinfer|transformers)/)")
_PART = r"/{1,8}[\w.@+,%~#!$-]+"  # bounded: a text may be nothing but slashes
_HOMES = ("home", "homes", "user", "users")
_PATH = re.compile(
    rf"(?<![\w/.~…-])(?!(?<=:)//)(?:{_PART}){{2,}}/*"  # behind a colon too, but not the // of an address
    rf"|(?<=://)(?:{_PART})+/*"
    rf"|(?<![\w/.~…-])~[\w.-]*(?:{_PART})*/{{1,8}}(?:[\w.@+,%~#!$-]+/*)?"
)
_HOME = re.compile(rf"/(?:{'|'.join(_HOMES)})(?:{_PART})+/*", re.IGNORECASE)
"""One that follows a word, as in -I/home/NAME: not told from the middle of a relative path, and not left for its name's sake."""
_PUBLIC = re.compile(r"/(?:dev|proc|sys)/(?!.*/root/)")


def short(path: str) -> str:
    """One absolute path: within its package, else `…/` and its last part, which a home folder itself does not have."""
    known = _in_package(path)
    if known is not None and not _HOME.search(known):
        return known
    folders, _, last = path.rstrip("/").rpartition("/")
    is_home = folders.rstrip("/").rpartition("/")[2].lower() in _HOMES or not folders
    return "…" if is_home else f"…/{last}"


def _in_package(path: str) -> str | None:
    """A path within its package or library, None for any other."""
    for mark in _PACKAGES:
        if mark in path:
            return path.rpartition(mark)[2]
    for pattern in (_LIBRARY, _SOURCE):
        found = pattern.match(path)
        if found:
            return path[found.end() :]
    return None


def shorten_text(text: str) -> str:
    """Any text, with every absolute path of two parts or more, and every one into a home folder, made short."""
    while "/" in text and (shown := _shorten_once(text)) != text:
        text = shown  # what two paths with a comma between them are left as may begin with the second one
    return text


def _shorten_once(text: str) -> str:
    text = _PATH.sub(lambda found: found[0] if _PUBLIC.match(found[0]) else short(found[0]), text)
    return _HOME.sub(lambda found: "…/" + short(found[0]).removeprefix("…").removeprefix("/"), text)


def _shorten_file(text: str) -> str:
    """The same for what is a path and nothing else, whatever characters are in it."""
    if text.startswith("/") and text.count("/") == 1:
        return text  # a file of the root folder, as in a container
    return short(text) if text.startswith("/") and not _PUBLIC.match(text) else shorten_text(text)


def _all(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(_all(item, change) for item in value)
    if isinstance(value, dict):
        return {_all(key, change): _all(item, change) for key, item in value.items()}
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        changed = {name: _all(getattr(value, name), change) for name in names}
        same = all(changed[name] is getattr(value, name) for name in names)
        return value if same else type(value)(**changed)
    return value


def shorten_paths(records: Iterable[AnyRecord]) -> list[AnyRecord]:
    """Records in which no absolute path, and so no home folder, is left, and not the name of the server's user."""
    out: list[AnyRecord] = []
    for record in records:
        if isinstance(record, FrameDef):
            out.append(FrameDef(record.id, record.function, _shorten_file(record.file), record.line))
        elif isinstance(record, Rules):
            book = _within(record.book, RuleBook)
            out.append(msgspec.structs.replace(record, path=_shorten_file(record.path), book=book))
        elif isinstance(record, BurstReport):
            out.append(msgspec.structs.replace(record, findings=_within(record.findings, list[Finding])))
        elif isinstance(record, Server):
            package = record.sglang_path and _shorten_file(record.sglang_path)
            out.append(_all(msgspec.structs.replace(record, user=None, sglang_path=package), shorten_text))
        else:
            out.append(_all(record, shorten_text))
    return out


def _within(packed: bytes, kind: Any) -> bytes:
    """The same for a value that a record carries packed; one that cannot be read is dropped."""
    try:
        return msgspec.msgpack.encode(_all(msgspec.msgpack.decode(packed, type=kind), shorten_text))
    except msgspec.MsgspecError:
        return b""

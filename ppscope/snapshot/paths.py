"""Paths made short on request: home folders and absolute paths down to what lies within their package."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ppscope.records import AnyRecord, BurstReport, FrameDef, Rules
from ppscope.sources.rules_model import RuleBook
from ppscope.views import Finding

_PACKAGES = ("site-packages/", "dist-packages/")
_LIBRARY = re.compile(r".*/lib/python\d[\w.]*/")
_SOURCE = re.compile(r".*/(?=(?:sglang|torch|triton|vllm|flashinfer|transformers)/)")
_PATH = re.compile(r"(?<![\w/:.~-])~?(?:/[\w.@+,%-]+){2,}/?|(?<=file://)(?:/[\w.@+,%-]+)+")
_PUBLIC = re.compile(r"/(?:dev|proc|sys)/")


def short(path: str) -> str:
    """One absolute path: within its package, else `…/` and its last part."""
    for mark in _PACKAGES:
        if mark in path:
            return path.rpartition(mark)[2]
    for pattern in (_LIBRARY, _SOURCE):
        found = pattern.match(path)
        if found:
            return path[found.end() :]
    return "…/" + path.rstrip("/").rpartition("/")[2]


def shorten_text(text: str) -> str:
    """Any text, with every absolute path of two parts or more in it made short."""
    if "/" not in text:
        return text
    return _PATH.sub(lambda found: found[0] if _PUBLIC.match(found[0]) else short(found[0]), text)


def _all(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)(_all(item, change) for item in value)
    if isinstance(value, dict):
        return {key: _all(item, change) for key, item in value.items()}
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        changed = {name: _all(getattr(value, name), change) for name in names}
        same = all(changed[name] is getattr(value, name) for name in names)
        return value if same else type(value)(**changed)
    return value


def shorten_paths(records: Iterable[AnyRecord]) -> list[AnyRecord]:
    """Records in which no absolute path, and so no home folder and user name, is left."""
    out: list[AnyRecord] = []
    for record in records:
        if isinstance(record, FrameDef):
            out.append(FrameDef(record.id, record.function, shorten_text(record.file), record.line))
        elif isinstance(record, Rules):
            book = _within(record.book, RuleBook)
            out.append(msgspec.structs.replace(record, path=shorten_text(record.path), book=book))
        elif isinstance(record, BurstReport):
            out.append(msgspec.structs.replace(record, findings=_within(record.findings, list[Finding])))
        else:
            out.append(_all(record, shorten_text))
    return out


def _within(packed: bytes, kind: Any) -> bytes:
    """The same for a value that a record carries packed; one that cannot be read is dropped."""
    try:
        return msgspec.msgpack.encode(_all(msgspec.msgpack.decode(packed, type=kind), shorten_text))
    except msgspec.MsgspecError:
        return b""

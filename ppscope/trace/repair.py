"""Mending of single events that JSON parsers refuse: seen with with_stack, dynamo and other exporters."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_CONTROL_TO_SPACE = bytes(32 if byte < 32 else byte for byte in range(256))
_NOT_A_NUMBER = re.compile(rb"(?<=[:,\[])\s*[-+]?(?:nan|inf(?:inity)?)\s*(?=[,}\]])", re.IGNORECASE)
_LONE_BACKSLASH = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_SURROGATE = re.compile(rb"\\u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_TRAILING_COMMA = re.compile(rb",\s*(?=[}\]])")


def _escape(match: re.Match[bytes]) -> bytes:
    return match.group(0) if match.group(1) else b"\\\\"


def _surrogate(match: re.Match[bytes]) -> bytes:
    return match.group(0) if len(match.group(0)) == 12 else b"\\ufffd"


def mend(text: bytes) -> bytes:
    """Returns the text with control characters, bad UTF-8, NaN, lone backslashes, lone surrogates and trailing commas made harmless."""
    text = text.translate(_CONTROL_TO_SPACE)
    text = text.decode("utf-8", "replace").encode()
    text = _LONE_BACKSLASH.sub(_escape, text)
    text = _SURROGATE.sub(_surrogate, text)
    text = _NOT_A_NUMBER.sub(b"null", text)
    return _TRAILING_COMMA.sub(b"", text)


def _without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    kept = {key: item for key, item in value.items() if item is not None}
    arguments = kept.get("args")
    if arguments is not None and not isinstance(arguments, dict):
        del kept["args"]
    elif arguments is not None:
        kept["args"] = {key: item for key, item in arguments.items() if item is not None}
    return kept


def decode_damaged(text: bytes, kind: type[T]) -> T | None:
    """Decodes one event that the fast path refused; None when it is beyond repair."""
    try:
        value = json.loads(mend(text))
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    try:
        return msgspec.convert(_without_nulls(value), kind, strict=False)
    except (msgspec.ValidationError, ValueError, OverflowError):
        return None

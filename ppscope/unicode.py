"""Text that is no Unicode, the name of a file with other bytes or half a surrogate pair: an encoder refuses all that it stands in."""

from __future__ import annotations

import msgspec


def as_unicode(value: object) -> object:
    """The same value, built of plain types, with `?` where text cannot be encoded."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list | tuple):
        return [as_unicode(part) for part in value]
    if isinstance(value, dict):
        return {as_unicode(key): as_unicode(part) for key, part in value.items()}
    return value


def json_bytes(value: object) -> bytes:
    """JSON, whatever the text in it."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(as_unicode(msgspec.to_builtins(value)))

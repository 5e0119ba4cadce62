"""The embedded data of a page: found in it and unpacked, packed and put into it."""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from typing import Any, cast

import msgspec

from ppscope.unicode import json_bytes
from ppscope.whole import whole

SCHEMA = "ppscope.snapshot/1"
MARK = b'<meta name="generator" content="ppscope'
MARK_WITHIN = 4096
"""The mark lies within the first bytes of a page."""
_BLOCK = rb'<script type="application/octet-stream" id="%s">([A-Za-z0-9+/=\s]*)(</script>)?'
KEPT = ("columns", "records")
"""Parts that the page does not draw: they lie in a block of their own, which it need not unpack."""
_MAX_BYTES = 1 << 30

Json = dict[str, Any]


class NoData(ValueError):
    """A page without data that can be read; the message is the end of a sentence."""


def embed(data: Json) -> tuple[str, str]:
    """The two blocks of a page: what it draws, and the rest. Base64 of raw deflate of JSON: nothing of it means anything to HTML."""
    drawn = {name: value for name, value in data.items() if name not in KEPT}
    kept = {name: data[name] for name in KEPT if name in data}
    return _squeeze(drawn), _squeeze(kept)


def _squeeze(data: Json) -> str:
    squeeze = zlib.compressobj(7, zlib.DEFLATED, -15)
    packed = squeeze.compress(json_bytes(data)) + squeeze.flush()
    return base64.b64encode(packed).decode()


def extract(page: bytes) -> Json:
    """The data of a snapshot. Raises NoData for a page that is cut, damaged, or of another version."""
    data = _unpack(page, b"data")
    schema = data.get("schema")
    if schema != SCHEMA:
        raise NoData(_other_schema(schema))
    return {**data, **_unpack(page, b"kept")}


def _unpack(page: bytes, name: bytes) -> Json:
    found = re.search(_BLOCK % name, page)
    if found is None or found[2] is None:
        raise NoData("is a ppscope page that is cut before the end of its data")
    try:
        text = zlib.decompressobj(-15).decompress(base64.b64decode(found[1]), _MAX_BYTES)
        data = msgspec.json.decode(text)
    except (binascii.Error, zlib.error, msgspec.MsgspecError, UnicodeDecodeError):
        raise NoData("is a ppscope page whose data is damaged") from None
    if not isinstance(data, dict):
        raise NoData("is a ppscope page whose data is damaged")
    return cast(Json, data)


def _other_schema(schema: object) -> str:
    name, _, version = str(schema).partition("/")
    if name == "ppscope.compare":
        return "is a comparison, not a snapshot; open one of the two files it was made from"
    number = whole(version)
    if name != "ppscope.snapshot" or number is None:
        return "holds no ppscope snapshot"
    if number > int(SCHEMA.partition("/")[2]):
        return f"was written by a newer ppscope (schema {name}/{version[:9]}); this one reads {SCHEMA}"
    return f"was written by an older ppscope (schema {name}/{version[:9]}); this one reads {SCHEMA}"

"""The embedded data of a page: found in it and unpacked, packed and put into it."""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from typing import Any, cast

import msgspec

SCHEMA = "ppscope.snapshot/1"
MARK = b'<meta name="generator" content="ppscope'
MARK_WITHIN = 4096
"""The mark lies within the first bytes of a page."""
_DATA = re.compile(rb'<script type="application/octet-stream" id="data">([A-Za-z0-9+/=\s]*)(</script>)?')
_MAX_BYTES = 1 << 30

Json = dict[str, Any]


class NoData(ValueError):
    """A page without data that can be read; the message is the end of a sentence."""


def embed(data: Json) -> str:
    """The data as base64 of raw deflate of JSON: no character of it means anything to HTML."""
    squeeze = zlib.compressobj(7, zlib.DEFLATED, -15)
    packed = squeeze.compress(msgspec.json.encode(data)) + squeeze.flush()
    return base64.b64encode(packed).decode()


def extract(page: bytes) -> Json:
    """The data of a snapshot. Raises NoData for a page that is cut, damaged, or of another version."""
    found = _DATA.search(page)
    if found is None or found[2] is None:
        raise NoData("is a ppscope page that is cut before the end of its data")
    try:
        unpack = zlib.decompressobj(-15)
        text = unpack.decompress(base64.b64decode(found[1]), _MAX_BYTES)
        data = msgspec.json.decode(text)
    except (binascii.Error, zlib.error, msgspec.MsgspecError, UnicodeDecodeError):
        raise NoData("is a ppscope page whose data is damaged") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise NoData(_other_schema(schema))
    return cast(Json, data)


def _other_schema(schema: object) -> str:
    name, _, version = str(schema).partition("/")
    if name == "ppscope.compare":
        return "is a comparison, not a snapshot; open one of the two files it was made from"
    if name != "ppscope.snapshot" or not version.isdigit():
        return "holds no ppscope snapshot"
    if int(version) > int(SCHEMA.partition("/")[2]):
        return f"was written by a newer ppscope (schema {name}/{version[:9]}); this one reads {SCHEMA}"
    return f"was written by an older ppscope (schema {name}/{version[:9]}); this one reads {SCHEMA}"

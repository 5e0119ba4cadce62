"""Turns real inputs into nearly real ones: bytes moved, doubled, lost and replaced, and single values within JSON and msgpack."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import msgspec

from ppscope.collect.stream import MAGIC

MOST_BYTES = 1 << 18
NUMBERS = (
    0,
    1,
    -1,
    127,
    128,
    255,
    256,
    65535,
    2**31 - 1,
    2**31,
    2**32,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -(2**63),
    10**40,
)
TOKENS = (
    b"", b"null", b"true", b"NaN", b"Infinity", b"1e999", b"-0", b"[", b"]", b"{", b"}", b'"', b"\\", b"\\u0000", b"\\ud800",
    b"\x00", b"\xff\xfe", b"\n", b"\r\n", b"\t", b"\x1b[2J", b"</script>", b"\xef\xbb\xbf", b"}{", b",,", b"'", b"#", b"%s", b"../../",
    b"=", b":", b"!!python/object", b"&a [*a]", b"9" * 400, b"9" * 5000,
)  # fmt: skip
HOSTILE: tuple[object, ...] = (
    None, True, False, "", "\x1b[31m", "</script>", "x" * 5000, [], {}, [[]], {"": None}, float("inf"), float("nan"), -1.5, *NUMBERS,
)  # fmt: skip


class Mutator:
    """An endless supply of inputs near the seeds; the same seed number gives the same inputs."""

    def __init__(self, seeds: list[bytes], number: int = 0) -> None:
        self._random = random.Random(number)
        self._seeds = seeds
        self._pool = list(seeds)

    def next(self) -> bytes:
        """One input: a seed or an earlier input, changed one to six times; now and then plain noise."""
        rng = self._random
        if rng.random() < 0.02:
            return rng.randbytes(rng.choice((0, 1, 3, 40, 3000)))
        data = rng.choice(self._pool if rng.random() < 0.4 else self._seeds)
        for _ in range(rng.choice((1, 1, 2, 3, 6))):
            data = self._value(data) if rng.random() < 0.35 else self._bytes(data)
        data = data[:MOST_BYTES]
        if rng.random() < 0.01 and len(self._pool) < 200:
            self._pool.append(data)
        return data

    def _bytes(self, data: bytes) -> bytes:
        rng = self._random
        at = rng.randint(0, len(data))
        length = min(len(data) - at, rng.choice((0, 1, 1, 2, 8, 64, 4096)))
        piece = data[at : at + length]
        kind = rng.randrange(8)
        if kind == 0:
            return data[:at] + data[at + length :]
        if kind == 1:
            return data[:at] + piece * rng.choice((2, 3, 50)) + data[at + length :]
        if kind == 2:
            return data[:at] + rng.choice(TOKENS) + data[at + length :]
        if kind == 3:
            return data[:at] + rng.randbytes(length or 1) + data[at + length :]
        if kind == 4:
            other = rng.choice(self._seeds)
            return data[:at] + other[rng.randint(0, len(other)) :]
        if kind == 5:
            return data[:at]
        if kind == 6 and data:
            changed = bytearray(data)
            for _ in range(rng.choice((1, 2, 8))):
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            return bytes(changed)
        return data[:at] + str(rng.choice(NUMBERS)).encode() + data[at + length :]

    def _value(self, data: bytes) -> bytes:
        if data.startswith(MAGIC):
            return self._frame(data)
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return self._bytes(data)
        return json.dumps(self._changed(value)).encode()

    def _frame(self, data: bytes) -> bytes:
        frames = []
        at = len(MAGIC)
        while at + 4 <= len(data):
            (length,) = struct.unpack_from("<I", data, at)
            if at + 4 + length > len(data):
                break
            frames.append(data[at + 4 : at + 4 + length])
            at += 4 + length
        if not frames:
            return self._bytes(data)
        which = self._random.randrange(len(frames))
        try:
            frames[which] = msgspec.msgpack.encode(self._changed(msgspec.msgpack.decode(frames[which])))
        except (msgspec.MsgspecError, ValueError, OverflowError, TypeError, RecursionError):
            return self._bytes(data)
        if self._random.random() < 0.3:
            self._random.shuffle(frames)
        return MAGIC + b"".join(struct.pack("<I", len(frame)) + frame for frame in frames)

    def _changed(self, value: Any) -> Any:
        """The value with one of its parts replaced, removed or doubled."""
        rng = self._random
        if isinstance(value, dict) and value and rng.random() < 0.9:
            key = rng.choice(list(value))
            if rng.random() < 0.15:
                return {name: part for name, part in value.items() if name != key}
            return {**value, key: self._changed(value[key])}
        if isinstance(value, list) and value and rng.random() < 0.9:
            at = rng.randrange(len(value))
            if rng.random() < 0.15:
                return value[:at] + value[at + 1 :] + value[:at]
            return [*value[:at], self._changed(value[at]), *value[at + 1 :]]
        if isinstance(value, int) and rng.random() < 0.5:
            return value + rng.choice((-1, 1, -(2**31), 2**31, 2**53))
        return rng.choice(HOSTILE)

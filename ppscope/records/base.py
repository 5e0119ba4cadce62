"""What every record and command is built from."""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of every record of the stream."""


class RankKey(msgspec.Struct, frozen=True, array_like=True, gc=False, order=True):
    """The scheduler's place in the server: data-, pipeline- and tensor-parallel rank."""

    dp: int
    pp: int
    tp: int


class Command(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of what the view may ask of the collector."""

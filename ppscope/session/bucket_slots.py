"""Which micro-batch slot a rank worked on in each bucket of time, packed."""

from __future__ import annotations

from array import array

_CHUNK = 512
_NONE, _MIXED = -1, -2


class BucketSlots:
    """One slot for each bucket, where there was only one."""

    def __init__(self) -> None:
        self._chunks: dict[int, array[int]] = {}

    def mark(self, first: int, last: int, slot: int) -> None:
        """A slot was worked on in these buckets, the last one included; a slot below 0 is none."""
        if slot < 0:
            return
        for bucket in range(first, last + 1):
            chunk, at = divmod(bucket, _CHUNK)
            slots = self._chunks.get(chunk)
            if slots is None:
                slots = self._chunks[chunk] = array("h", [_NONE]) * _CHUNK
            if slots[at] != slot:
                slots[at] = slot if slots[at] == _NONE else _MIXED

    def only(self, first: int, upto: int) -> int:
        """The one slot of these buckets, the last one not included; -1 where there was none or more than one."""
        seen: set[int] = set()
        for chunk in range(first // _CHUNK, -(-upto // _CHUNK)):
            slots = self._chunks.get(chunk)
            if slots is not None:
                seen.update(slots[max(first - chunk * _CHUNK, 0) : min(upto - chunk * _CHUNK, _CHUNK)])
        seen.discard(_NONE)
        return max(seen.pop(), _NONE) if len(seen) == 1 else _NONE

    def drop_before(self, bucket: int) -> None:
        """Forget whole chunks before a bucket."""
        for chunk in [chunk for chunk in self._chunks if (chunk + 1) * _CHUNK <= bucket]:
            del self._chunks[chunk]

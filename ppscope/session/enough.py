"""In which seconds there were requests enough for every slot: only those tell whether such a load fills the slots."""

from __future__ import annotations

_SECOND = 1_000_000_000
_KEEP_S = 120
_ANOTHER_S = 10
"""Requests that were too few for so long were another load: what was seen before then says nothing of this one."""


class Enough:
    """Notes, about once a second, whether there are requests enough; a second of which it is not known is as the one before."""

    def __init__(self) -> None:
        self.now: bool | None = None
        """Whether there are requests enough; None while that was never known."""
        self._lacking: dict[int, None] = {}
        self._noted: int | None = None
        self._begin = 0
        self._run = 0

    def note(self, at_ns: int, enough: bool | None) -> None:
        """Take note of the time from the last note up to an instant."""
        second = at_ns // _SECOND
        first = second if self._noted is None else max(self._noted + 1, second - _KEEP_S)
        if enough is not None:
            if self.now is None and not enough:
                self._begin = second + 1
            self.now = enough
        self._noted = second
        if self.now is not False:
            self._run = 0
            return
        for lacking in range(first, second + 1):
            self._lacking[lacking] = None
        self._run += second + 1 - first
        if self._run >= _ANOTHER_S:
            self._begin = second + 1
        while len(self._lacking) > _KEEP_S:
            del self._lacking[next(iter(self._lacking))]

    def tells(self, second: int) -> bool:
        """Whether what was seen in a second tells of the load of now: any does, while there are not requests enough."""
        return self.now is not True or (second >= self._begin and second not in self._lacking)

"""How far behind the present the sampled view is: windows of stacks arrive whole, two to five seconds late."""

from __future__ import annotations

from collections.abc import Iterable

_MAX_BEHIND_NS = 6_000_000_000
_SHRINK_PER_SECOND = 0.1


class Lag:
    """Follows the worst delay of late; grows at once, shrinks slowly, so that the time axis does not jump."""

    def __init__(self) -> None:
        self._behind_ns = 0
        self._at_ns = 0

    def note(self, now_ns: int, newest_ns: Iterable[int | None]) -> None:
        """Take note, as a window arrives, of how old the oldest rank's newest data is."""
        known = [newest for newest in newest_ns if newest is not None and now_ns - newest < _MAX_BEHIND_NS]
        if known:
            self._behind_ns = max(self.behind_ns(now_ns), min(now_ns - min(known), _MAX_BEHIND_NS))
            self._at_ns = now_ns

    def behind_ns(self, now_ns: int) -> int:
        """The delay to draw with now."""
        faded = (now_ns - self._at_ns) * _SHRINK_PER_SECOND if self._at_ns else 0
        return max(int(self._behind_ns - faded), 0)

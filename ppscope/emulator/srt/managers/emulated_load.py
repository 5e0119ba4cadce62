"""The load: requests that arrive by themselves, so that every occupied slot keeps its number of running requests.

After a /set_internal_state the same number of requests goes on, each admitted to the next slot that has room for it: as in SGLang,
those that run stay where they are.
"""

from __future__ import annotations

import random

from ppscope.emulator.scenarios import Scenario

from .schedule_batch import Req


class Load:
    """Source of requests for stage 0. The same scenario gives the same requests every time."""

    def __init__(self, scenario: Scenario, pp_size: int) -> None:
        self._random = random.Random(scenario.name)
        self._slots = frozenset(scenario.occupied_slots(pp_size))
        self._target = scenario.slot_requests(pp_size)
        self._lengths = scenario.output_tokens
        self._issued = 0
        self._stuck = scenario.stuck
        self.limit: int | None = None
        """Requests that a slot takes, once it was set on the running server."""

    def stuck(self) -> list[Req]:
        """Return the requests that wait from the start and are never admitted."""
        return [Req(f"req-stuck-{number}", 0, 8192, 128) for number in range(self._stuck)]

    def arrivals(self, mb_id: int, running: int, everywhere: int = 0) -> list[Req]:
        """Return the requests that arrive while slot `mb_id` has `running` of its own, of `everywhere` in all slots."""
        if self.limit is not None:
            missing = min(self.limit - running, self._target * len(self._slots) - everywhere)
        else:
            missing = self._target - running if mb_id in self._slots else 0
        if missing <= (self._target // 16 if self.limit is None else 0):
            return []
        shortest, longest = self._lengths
        fresh = running == 0 and self.limit is None
        arrived = []
        for _ in range(missing):
            self._issued += 1
            # The first requests are caught in mid-life, or they would all end together.
            length = self._random.randint(2 if fresh else shortest, longest)
            arrived.append(Req(f"req-{self._issued}", mb_id, self._random.randint(256, 1024), length))
        return arrived

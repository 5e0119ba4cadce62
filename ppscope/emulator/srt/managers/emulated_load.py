"""The load: requests that arrive by themselves, so that every occupied slot keeps its number of running requests."""

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

    def arrivals(self, mb_id: int, running: int) -> list[Req]:
        """Return the requests that arrive while slot `mb_id` has `running` of its own."""
        missing = self._target - running
        if mb_id not in self._slots or missing <= self._target // 16:
            return []
        shortest, longest = self._lengths
        fresh = running == 0
        arrived = []
        for _ in range(missing):
            self._issued += 1
            # The first requests are caught in mid-life, or they would all end together.
            length = self._random.randint(2 if fresh else shortest, longest)
            arrived.append(Req(f"req-{self._issued}", mb_id, self._random.randint(256, 1024), length))
        return arrived

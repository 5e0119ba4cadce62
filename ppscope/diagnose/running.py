"""How many requests run, where SGLang's own counts are those of one micro-batch.

Under pipeline parallelism the gauge, `/v1/loads` and the log all give the size of the slot at hand (0.5.6 to 0.5.23). So the
running requests are the occupied slots times the mean micro-batch, checked against the open requests at the HTTP server.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ppscope.diagnose.occupancy import likely
from ppscope.records import Server
from ppscope.views import Load, Occupancy


class Running(NamedTuple):
    """`at_least` holds whatever the occupancy is; `estimate` is the best guess. None where nothing says it."""

    at_least: int | None
    estimate: int | None


def needed_slots(slots: int, server: Server) -> int:
    """Slots of a replica that keep every stage at work: those beyond the stages (`--pp-async-batch-depth`) are spare."""
    return min(slots, server.pp_size)


def places(slots: int, server: Server) -> int:
    """Slots of all data-parallel replicas that keep every stage at work."""
    return needed_slots(slots, server) * max(server.dp_size, 1)


def enough(running: int | None, at_least: int | None, needed: int) -> bool | None:
    """Whether as many requests run as slots are needed; None where it is not known."""
    if running is not None:
        return running >= needed  # of now, where the least may be of some seconds ago
    return True if at_least is not None and at_least >= needed else None


def is_idle(active: bool | None, with_batch: bool, load: Load, in_flight: int | None) -> bool:
    """Whether there is nothing to do. `active`: a forward pass was seen of late; `with_batch`: a stage waits with a batch.

    The stacks know it best: counts are of the moment, and none counts embeddings or the first pass of a long prompt. But one pass
    may take longer than stacks are remembered for, and a pipeline that hangs does none.
    """
    if load.queued or in_flight or (load.running and load.running_provenance == "exact"):
        return False
    return load.running == 0 if active is None else not active and not with_batch


def counts_requests(in_flight: int | None, micro_batch: float | None) -> bool:
    """Whether open HTTP requests are the requests that run and wait: not where one carries several prompts."""
    return in_flight is not None and (micro_batch is None or in_flight >= micro_batch - 0.5)


def wanting(running: int, queued: int, in_flight: int | None, micro_batch: float | None) -> int:
    """Requests that want a slot: no more than are open, where these count.

    One that waits for its first pass while another ends is in `queued`, and that other one still in `running`.
    """
    if in_flight is None or not counts_requests(in_flight, micro_batch):
        return running + queued
    return max(running, min(running + queued, in_flight))


def estimate_running(
    occupied: float | None,
    micro_batch: float | None,
    in_flight: int | None,
    queued: int | None,
    largest: int | None = None,
    producing: bool = False,
) -> Running:
    """Running requests of a server with several stages.

    `occupied` are slots in use, `micro_batch` mean requests of a decode pass, `in_flight` open HTTP requests (one may carry
    several prompts, then it is smaller than the micro-batch and is not believed). `largest` is the largest micro-batch seen of late.
    `producing` says that tokens come: 0.5.9 does not count a request whose answer streams, and no release those of some paths.
    """
    if in_flight == 0 and not producing:
        return Running(0, 0)
    open_now = None if in_flight is None else max(in_flight - (queued or 0), 0)
    lower = [
        value for value in (open_now, largest, None if micro_batch is None else round(micro_batch)) if value is not None
    ]
    at_least = max(lower, default=None)
    if counts_requests(open_now, micro_batch):
        return Running(at_least, open_now)
    if occupied is None or micro_batch is None:
        return Running(at_least, None)
    # Slots are whole; what is left of a whole number is the error of the dumps.
    return Running(at_least, max(at_least or 0, round(max(round(occupied), 1) * micro_batch)))


def most_running(
    occupied: Occupancy, micro_batch: float | None, in_flight_most: int | None, replicas: int = 1
) -> int | None:
    """The most requests that ran at once in the last seconds, as far as the evidence excludes more; None where it does not.

    `in_flight_most` is the largest number of open HTTP requests of those seconds: clients that ask anew as soon as they are answered
    leave a gap in between, and the reading that falls into it is not the load.
    """
    if counts_requests(in_flight_most, micro_batch):
        return in_flight_most
    between = likely(occupied)
    if between is None or micro_batch is None:
        return None
    return round(math.floor(between[1]) * micro_batch * max(replicas, 1))

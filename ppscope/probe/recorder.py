"""What the wrappers of one process share: the ring, the turn, and what is known of the micro-batch at hand.

Whatever goes wrong in the probe itself is counted and forgotten.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from . import layout
from .dormancy import Dormancy
from .gpu_timing import GpuTimer
from .ring import SHM, Ring, RingError, open_folder, sweep

now = time.monotonic_ns
_NO_SLOT = -1
_MOST_ERRORS = 100
_WITHIN_NS = 3_600_000_000_000
_OF_PARENTS: list[Any] = []
"""CUDA events that a fork brought along: to free one calls CUDA, which works in no forked child."""


class Recorder:
    """What the wrappers share. `on` is False while dormant, off, or before the loop has begun."""

    __slots__ = (
        "base", "batch_size", "buffer", "depth", "dormancy", "errors", "facts", "failures", "failures_end_ns", "gpu", "gpu_wanted",
        "graph", "mask", "micro_batch", "mode", "on", "owner", "resyncs", "ring", "seq", "slots", "state", "thread", "ticket",
        "tokens", "turn", "wants",
    )  # fmt: skip

    def __init__(self, *, always: bool, gpu_timing: bool = False, base: str = SHM) -> None:
        self.base = base
        self.gpu_wanted = gpu_timing
        self.wants = not always
        self.facts: dict[str, Any] = {"wrapped": [], "missing": [], "error": "", "gpu_timing": ""}
        self.reset()

    def reset(self) -> None:
        """Forget everything of the process this was copied from: a forked child has no ring until it runs a loop of its own."""
        self.on = False
        self.state = "new"
        self.ring: Ring | None = None
        self.buffer: Any = None
        self.dormancy: Dormancy | None = None
        self.gpu: GpuTimer | None = None
        self.ticket: Any = None
        self.owner: Any = None
        self.depth = self.seq = self.mask = self.errors = self.resyncs = self.thread = 0
        self.failures = self.failures_end_ns = 0
        self.turn = -1
        self.slots = self.micro_batch = _NO_SLOT
        self.mode = self.batch_size = self.tokens = self.graph = 0

    def forked(self) -> None:
        """Let go of the parent's files in a forked child, and start afresh."""
        dormancy = self.dormancy
        _OF_PARENTS.append((self.gpu, self.ticket))
        self.reset()
        if dormancy is not None:
            dormancy.close()

    # -- beginning and ending

    def fail(self, error: BaseException) -> None:
        """Count what went wrong in the probe; after a hundred such within an hour it is off for good. Raises nothing."""
        at = now()
        if at >= self.failures_end_ns:
            self.failures, self.failures_end_ns = 0, at + _WITHIN_NS
        self.errors += 1
        self.failures += 1
        if self.failures >= _MOST_ERRORS:
            self.on = False
            self.state = "off"
        self.facts["error"] = type(error).__name__
        try:
            self.facts["error"] = f"{type(error).__name__}: {error}"[:200]
            if self.state == "off" and self.ring is not None:
                self.live()
                self.ring.set_text(self.facts)
                self._flag(layout.GAVE_UP)
        except Exception:  # noqa: BLE001  what cannot even be told is forgotten
            return

    def begin(self, owner: Any) -> None:
        """First turn of a loop: find a place for the ring, and be awake or dormant as was asked."""
        self.owner, self.thread = owner, threading.get_ident()
        try:
            folder = open_folder(self.base)
            try:
                sweep(folder)
                self.dormancy = Dormancy(folder) if self.wants else None
            finally:
                os.close(folder)
            self.state = "dormant"
            if self.dormancy is None:
                self.wake()
        except (RingError, OSError) as error:
            self.facts["error"] = str(error)[:200]
            self.state = "off"

    def wake(self) -> None:
        """Write spans from now on."""
        if self.ring is None:
            folder = open_folder(self.base)
            try:
                self.ring = Ring(folder, ranks=ranks_of(self.owner), slots=self.slots, flags=0)
            finally:
                os.close(folder)
            self.buffer, self.mask = self.ring.map, self.ring.capacity - 1
            if self.gpu_wanted and self.gpu is None:
                self.gpu, self.facts["gpu_timing"] = GpuTimer.if_possible(self.write_gpu)
            self.ring.set_text(self.facts)
        if self.gpu is not None:
            self.gpu.reset()
        self._flag(layout.AWAKE)
        self.state = "awake"
        self.mode = self.batch_size = self.tokens = self.graph = 0
        at = now()
        self.write(layout.WAKE, at, at, 0, _NO_SLOT)
        self.on = True

    def _try_to_wake(self, dormancy: Dormancy) -> None:
        try:
            self.wake()
        except (RingError, OSError) as error:  # a full /dev/shm may have room later: this is no error of the probe's
            self.facts["error"] = str(error)[:200]
            dormancy.rest(now())

    def sleep(self) -> None:
        """Write nothing until somebody wants it again."""
        self.on = False
        self.state = "dormant"
        self._flag(0)

    def _flag(self, awake: int) -> None:
        if self.ring is not None:
            always = 0 if self.wants else layout.ALWAYS
            self.ring.set_flags(awake | always | (layout.GPU_TIMING if self.gpu else 0))

    def told(self) -> None:
        """The list of what is wrapped has grown."""
        if self.ring is not None:
            self.ring.set_text(self.facts)

    # -- once a turn

    def next_turn(self, owner: Any) -> None:
        """A turn of the loop begins: count it, know its slot, look whether anybody watches."""
        if self.state == "new":
            if self.slots < 0:
                self.slots = _slots_of(owner)
            self.begin(owner)
        self.turn = turn = (self.turn + 1) & 0xFFFFFFFF
        self.micro_batch = turn % self.slots if self.slots > 1 else _NO_SLOT
        if self.dormancy is not None and self.state in ("awake", "dormant"):
            wanted = self.dormancy.wanted(now())
            if wanted is not None and wanted != self.on:
                if wanted:
                    self._try_to_wake(self.dormancy)
                else:
                    self.live()
                    self.sleep()
        if self.on:
            self.mode = self.batch_size = self.tokens = self.graph = 0
            if self.gpu is not None:
                self.gpu.poll()
            self.live()

    def live(self) -> None:
        """Renew the header's counts, so that a reader knows how far to look and that the loop turns."""
        clock_error = self.gpu.error_ns if self.gpu is not None else -1
        layout.LIVE.pack_into(
            self.buffer, layout.LIVE_OFFSET, self.seq, self.turn, now(), self.errors, self.resyncs, clock_error
        )

    def loop_began(self, scheduler: Any) -> None:
        """`init_pp_loop_state` has run: the loop starts at slot 0 of this many."""
        self.slots = int(scheduler.pp_loop_size)
        self.turn = -1
        self.owner = scheduler
        if self.state == "new":
            self.begin(scheduler)
        elif self.ring is not None:
            layout.FLAGS.pack_into(self.buffer, layout.SLOTS_OFFSET, self.slots)

    def launching(self, micro_batch: int) -> None:
        """The loop says which slot it launches; should the count of turns ever disagree, it follows the loop."""
        if micro_batch != self.micro_batch and isinstance(micro_batch, int):
            self.turn += micro_batch - self.micro_batch if self.micro_batch >= 0 else 0
            self.micro_batch = micro_batch
            self.resyncs += 1

    # -- records

    def write(self, kind: int, start_ns: int, end_ns: int, depth: int, micro_batch: int) -> None:
        """One record; the slot's old content is gone."""
        seq = self.seq = self.seq + 1
        layout.RECORD.pack_into(
            self.buffer, layout.HEADER_BYTES + (seq & self.mask) * 48, seq, start_ns, end_ns, self.turn & 0xFFFFFFFF,
            self.tokens & 0xFFFFFFFF, self.batch_size & 0xFFFF, micro_batch, kind, depth & 0xFF, self.mode, self.graph, 0,
            seq & 0xFFFFFFFF,
        )  # fmt: skip

    def write_gpu(self, start_ns: int, end_ns: int, facts: tuple[int, int, int, int, int, int]) -> None:
        """A forward on the GPU, known some turns after its launch; `facts` are those of then."""
        kept = self.turn, self.tokens, self.batch_size, self.mode, self.graph
        self.turn, self.tokens, self.batch_size, micro_batch, self.mode, self.graph = facts
        try:
            self.write(layout.GPU_FORWARD, start_ns, end_ns, 0, micro_batch)
        finally:
            self.turn, self.tokens, self.batch_size, self.mode, self.graph = kept


def _slots_of(owner: Any) -> int:
    # 0.5.6 has no pp_loop_size: its loop goes round pp_size slots.
    size = getattr(owner, "pp_loop_size", None) or getattr(owner, "pp_size", None)
    return size if isinstance(size, int) else _NO_SLOT


def ranks_of(owner: Any) -> tuple[int, int, int]:
    """(dp, pp, tp) of a scheduler, -1 where it keeps them elsewhere; 0.5.15 and later hold them in `ps`."""
    places = (owner, getattr(owner, "ps", None))

    def rank(name: str, group: str) -> int:
        for place in places:
            value = getattr(place, name, None)
            if isinstance(value, int):
                return value
        value = getattr(getattr(owner, group, None), "rank_in_group", None)
        return value if isinstance(value, int) else -1

    return rank("dp_rank", ""), rank("pp_rank", "pp_group"), rank("tp_rank", "tp_group")

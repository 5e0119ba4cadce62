"""The hot path: wrappers that note when a call began and ended.

Every wrapper calls what it wraps exactly once and gives back its result or exception unchanged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from . import layout
from .batch import batch_facts, refusal
from .recorder import Recorder

now = time.monotonic_ns
Call = Callable[..., Any]


def timed(recorder: Recorder, original: Call, kind: int, floor_ns: int, *, following: bool = False) -> Call:
    """A call whose time is of one kind. Below `floor_ns` nothing is written: the time is then its caller's.

    `following`: the micro-batch concerned is the next one (outputs and results come a turn before their slot is up again).
    """
    r, pack, record, head = recorder, layout.RECORD.pack_into, layout.RECORD.size, layout.HEADER_BYTES

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not r.on:
            return original(*args, **kwargs)
        r.depth += 1
        start = now()
        try:
            return original(*args, **kwargs)
        finally:
            end = now()
            depth = r.depth = r.depth - 1
            if end - start >= floor_ns:
                try:
                    slot = r.micro_batch
                    if following and slot >= 0:
                        slot = (slot + 1) % r.slots
                    seq = r.seq = r.seq + 1
                    pack(
                        r.buffer, head + (seq & r.mask) * record, seq, start, end, r.turn, r.tokens, r.batch_size, slot,
                        kind, depth, r.mode, r.graph, 0, seq & 0xFFFFFFFF,
                    )  # fmt: skip
                except Exception as error:  # noqa: BLE001  the server goes on
                    r.fail(error)

    return wrapper


def on_loop_thread(recorder: Recorder, original: Call, wrapped: Call) -> Call:
    """Only the loop's own thread is timed: other threads call this too."""
    r, ident = recorder, threading.get_ident

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if r.on and ident() == r.thread:
            return wrapped(*args, **kwargs)
        return original(*args, **kwargs)

    return wrapper


def turning(recorder: Recorder, original: Call, kind: int) -> Call:
    """The first call of every loop turn."""
    r = recorder
    inner = timed(r, original, kind, 0)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if r.depth == 0 and r.state != "off":
            try:
                r.next_turn(args[0] if args else None)
            except Exception as error:  # noqa: BLE001  the server goes on
                r.fail(error)
        return inner(*args, **kwargs)

    return wrapper


def beginning(recorder: Recorder, original: Call) -> Call:
    """`init_pp_loop_state`."""
    r = recorder

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        try:
            r.loop_began(args[0])
        except Exception as error:  # noqa: BLE001  the server goes on
            r.fail(error)
        return result

    return wrapper


def launching(recorder: Recorder, original: Call) -> Call:
    """`_pp_launch_batch(self, mb_id, …)`."""
    r = recorder
    inner = timed(r, original, layout.LAUNCH, 0)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if r.on:
            try:
                r.launching(args[1] if len(args) > 1 else kwargs["mb_id"])
            except Exception as error:  # noqa: BLE001  the server goes on
                r.fail(error)
        return inner(*args, **kwargs)

    return wrapper


def running(recorder: Recorder, original: Call) -> Call:
    """`run_batch(self, batch, …)`: what the batch is; a span of its own only where no `_pp_launch_batch` is around it."""
    r = recorder
    inner = timed(r, original, layout.LAUNCH, 0)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not r.on:
            return original(*args, **kwargs)
        r.ticket = None
        try:
            r.mode, r.batch_size, r.tokens = batch_facts(args[1] if len(args) > 1 else kwargs["batch"])
            r.graph = layout.NO_RUNNER
            # The overlap loop changes to its forward stream inside run_batch: events recorded out here would time another stream.
            if r.gpu is not None and (r.depth or not getattr(args[0], "enable_overlap", False)):
                r.ticket = r.gpu.before()
        except Exception as error:  # noqa: BLE001  the server goes on
            r.fail(error)
        try:
            return original(*args, **kwargs) if r.depth else inner(*args, **kwargs)
        finally:
            ticket, r.ticket = r.ticket, None
            if ticket is not None and r.gpu is not None:
                try:
                    r.gpu.after(ticket, (r.turn, r.tokens, r.batch_size, r.micro_batch, r.mode, r.graph))
                except Exception as error:  # noqa: BLE001  the server goes on
                    r.fail(error)

    return wrapper


def processing(recorder: Recorder, original: Call) -> Call:
    """`process_batch_result(self, batch, …)`: the results of the following slot, whose batch is at hand here."""
    r = recorder
    inner = timed(r, original, layout.PROCESS, 0, following=True)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not r.on:
            return original(*args, **kwargs)
        kept = r.mode, r.batch_size, r.tokens, r.graph
        try:
            r.mode, r.batch_size, r.tokens = batch_facts(args[1])
            r.graph = 0
        except Exception as error:  # noqa: BLE001  the server goes on
            r.fail(error)
        try:
            return inner(*args, **kwargs)
        finally:
            r.mode, r.batch_size, r.tokens, r.graph = kept

    return wrapper


def replaying(recorder: Recorder, original: Call) -> Call:
    """A graph runner's replay."""
    r = recorder
    inner = timed(r, original, layout.REPLAY, 0)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        r.graph = layout.REPLAYED
        return inner(*args, **kwargs)

    return wrapper


def receiving(recorder: Recorder, original: Call) -> Call:
    """`recv_tensor_dict` of 0.5.6: activations below `run_batch`, outputs straight from the loop."""
    r = recorder
    activations = timed(r, original, layout.RECV_ACTIVATIONS, 0)
    outputs = timed(r, original, layout.RECV_OUTPUTS, 0, following=True)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not r.depth:
            return outputs(*args, **kwargs)
        result = activations(*args, **kwargs)
        if r.ticket is not None and r.gpu is not None:
            try:
                r.ticket = r.gpu.again(r.ticket)  # the wait for the stage before is no part of this one's forward
            except Exception as error:  # noqa: BLE001  the server goes on
                r.fail(error)
        return result

    return wrapper


def asking(recorder: Recorder, original: Call) -> Call:
    """A graph runner's `can_run`: when it says no, why, as far as its fields tell."""
    r = recorder

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs)
        if r.on:
            try:
                if not answer:  # of some models a tensor on the GPU: to ask it waits for that
                    r.graph = refusal(*args[:2])
            except Exception as error:  # noqa: BLE001  the server goes on
                r.fail(error)
        return answer

    return wrapper

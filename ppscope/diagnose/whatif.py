"""A small simulation of SGLang's pipeline loop (0.5.9 to 0.5.23): tokens a second for given stage times, slots and depth.

Each stage runs the loop's own order: requests from the stage before, schedule, activations from the stage before, forward,
exchange of outputs, wait for those of the next slot, post-processing, activations to the next stage. Outputs go round the ring
last → 0 → 1 → …, one hop an iteration. Messages are buffered; a receive waits for its message. On a CPU server the stages, and the
threads that carry their messages, share the cores.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator
from typing import NamedTuple

from ppscope.diagnose.shared_cores import SharedCores

ROUNDS = 40
"""Turns round all slots that are simulated; most of the second half counts."""
_LEAST_ROUNDS = 8
TENSORS = 4
"""Messages on the wire for activations or outputs: a size, a description, and two tensors; empty requests are a size alone."""


class Stage(NamedTuple):
    """What one micro-batch costs a stage, in seconds.

    `forward_s` is the forward pass of the micro-batch at hand, on the GPU, or on the CPU where `Pipeline.synchronous`; `each_s` is
    what each of its requests adds. `launch_s` is the host's part before it, `host_s` the rest of an iteration with a batch,
    `empty_s` one without. `message_s` is the work of bringing one message to the next stage, which other threads do.
    """

    forward_s: float
    launch_s: float = 0.0
    host_s: float = 0.0
    empty_s: float = 0.0
    message_s: float = 0.0
    each_s: float = 0.0


class Pipeline(NamedTuple):
    """Stages, the requests of each slot (0: an empty slot; as many as stages + depth), and whether the forward blocks the host.

    `cores` is how many cores the stages share for their host time and messages; None: each has its own.
    """

    stages: tuple[Stage, ...]
    slots: tuple[int, ...]
    depth: int = 0
    synchronous: bool = False
    cores: int | None = None


class Change(NamedTuple):
    """What is changed; None leaves it as it is. `slots_used` spreads the requests, `requests` in all, over that many slots."""

    slots_used: int | None = None
    requests: int | None = None
    depth: int | None = None
    layers: tuple[int, ...] | None = None
    graphs: bool | None = None


class _Message(NamedTuple):
    sent_s: float
    ready_s: float


class _Work(NamedTuple):
    """Host time; slower where there is more of it at once than cores."""

    seconds: float


class _Until(NamedTuple):
    """Wait for an instant."""

    at_s: float


class _Receive(NamedTuple):
    """Wait for the next message of a channel."""

    channel: deque[_Message]


_Step = _Work | _Until | _Receive
_Answer = tuple[float, _Message]
_NOTHING = _Message(0.0, 0.0)


class _Simulation:
    """Events in order of time; each stage is a process that works, waits and receives."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        count = len(pipeline.stages)
        self.requests: list[deque[_Message]] = [deque() for _ in range(count)]
        self.activations: list[deque[_Message]] = [deque() for _ in range(count)]
        self.outputs: list[deque[_Message]] = [deque() for _ in range(count)]
        self.waiting: dict[int, tuple[_Receive, float]] = {}
        self.events: list[tuple[float, int, _Message]] = []
        self.cores = SharedCores(pipeline.cores)
        self.carried: dict[int, tuple[list[deque[_Message]], int, _Message]] = {}
        self.sent = 0
        self.done: list[tuple[float, int]] = []

    def run(self) -> list[tuple[float, int]]:
        """(time, tokens) of every micro-batch whose outputs reached the first stage."""
        processes = [self._loop(rank) for rank in range(len(self.pipeline.stages))]
        for rank, process in enumerate(processes):
            self._wait(rank, next(process), 0.0)
        while (event := self._next()) is not None:
            now, rank, message = event
            if rank in self.carried:
                self._arrive(*self.carried.pop(rank), now)
                continue
            try:
                step = processes[rank].send((now, message))
            except StopIteration:
                continue
            self._wait(rank, step, now)
        return self.done

    def _next(self) -> tuple[float, int, _Message] | None:
        end = self.cores.next_end()
        if end is not None and (not self.events or end <= self.events[0][0]):
            return end, self.cores.pop(end), _NOTHING
        if not self.events:
            return None
        event = heapq.heappop(self.events)
        self.cores.advance(event[0])
        return event

    def _wait(self, rank: int, step: _Step, now: float) -> None:
        if isinstance(step, _Until):
            heapq.heappush(self.events, (max(now, step.at_s), rank, _NOTHING))
        elif isinstance(step, _Receive):
            if step.channel:
                message = step.channel.popleft()
                heapq.heappush(self.events, (max(now, message.sent_s), rank, message))
            else:
                self.waiting[rank] = (step, now)
        elif step.seconds:
            self.cores.add(rank, step.seconds, now)
        else:
            heapq.heappush(self.events, (now, rank, _NOTHING))

    def _send(self, rank: int, channels: list[deque[_Message]], ready_s: float, now: float) -> None:
        """To the next stage; the last one's is the first."""
        stages = self.pipeline.stages
        to, message = (rank + 1) % len(stages), _Message(now, ready_s)
        if not (work_s := stages[rank].message_s * (1 if channels is self.requests else TENSORS)):
            self._arrive(channels, to, message, now)
            return
        self.sent += 1
        self.carried[-self.sent] = (channels, to, message)
        self.cores.add(-self.sent, work_s, now)

    def _arrive(self, channels: list[deque[_Message]], to: int, message: _Message, now: float) -> None:
        channels[to].append(message._replace(sent_s=now))
        waiting = self.waiting.get(to)
        if waiting is not None and waiting[0].channel is channels[to]:
            del self.waiting[to]
            self._wait(to, *waiting)

    def _loop(self, rank: int) -> Generator[_Step, _Answer, None]:
        pipeline = self.pipeline
        stage, last = pipeline.stages[rank], len(pipeline.stages) - 1
        slots = pipeline.slots
        finished: dict[int, float] = {}
        gpu_free = 0.0
        carried: _Message | None = None
        for turn in range(ROUNDS * len(slots)):
            batch = slots[turn % len(slots)]
            if rank > 0:
                yield _Receive(self.requests[rank])
            now, _ = yield _Work(stage.host_s / 2 if batch else stage.empty_s)
            if rank < last:
                self._send(rank, self.requests, now, now)
            ready = 0.0
            if batch and rank > 0:
                now, activations = yield _Receive(self.activations[rank])
                ready = activations.ready_s
            if pipeline.depth:
                carried = yield from self._exchange(rank, turn, now, carried, finished)
                now, _ = yield _Work(0.0)
            if batch:
                began, forward_s = now, stage.forward_s + stage.each_s * batch
                if pipeline.synchronous:
                    now, _ = yield _Until(ready)
                    now, _ = yield _Work(stage.launch_s + forward_s)
                    gpu_free = now
                else:
                    now, _ = yield _Work(stage.launch_s)
                    # Kernels run along with their launches: a forward ends no sooner than its last launch.
                    gpu_free = max(max(began, gpu_free, ready) + forward_s, now)
                finished[turn] = gpu_free
            if not pipeline.depth:
                carried = yield from self._exchange(rank, turn, now, carried, finished)
            now, _ = yield _Work(0.0)
            if rank < last and batch:
                self._send(rank, self.activations, finished.pop(turn), now)

    def _exchange(
        self, rank: int, turn: int, now: float, carried: _Message | None, finished: dict[int, float]
    ) -> Generator[_Step, _Answer, _Message | None]:
        """Send outputs on, receive those of the next slot, wait for them and process them."""
        pipeline = self.pipeline
        last, slots, stage = len(pipeline.stages) - 1, pipeline.slots, pipeline.stages[rank]
        sent = 0.0
        if rank == last:
            ready = finished.pop(turn - pipeline.depth, None)
            if ready is not None:
                sent = ready
                self._send(rank, self.outputs, ready, now)
        elif carried is not None:
            self._send(rank, self.outputs, carried.ready_s, now)
        origin = turn + 1 - len(slots)
        batch = slots[origin % len(slots)] if origin >= 0 else 0
        if not batch:
            return None
        _, message = yield _Receive(self.outputs[rank])
        # The last stage's receive stands behind its own send of the batch it just launched.
        yield _Until(max(message.ready_s, sent))
        done, _ = yield _Work(stage.host_s / 2)
        if rank == 0:
            self.done.append((done, batch))
        return message


def tokens_per_s(pipeline: Pipeline) -> float:
    """Decoded tokens a second in the steady state; 0 where every slot is empty.

    Raises ValueError unless there are as many slots as stages + depth.
    """
    if len(pipeline.slots) != len(pipeline.stages) + pipeline.depth:
        raise ValueError(f"{len(pipeline.stages)} stages at depth {pipeline.depth} have another number of slots")
    done = _Simulation(pipeline).run()
    used = sum(1 for size in pipeline.slots if size)
    rounds = len(done) // used if used else 0
    # Neither the filling of the pipeline counts nor the end, where stages that are done leave the cores to the others.
    counted = done[rounds // 2 * used - 1 : rounds * 7 // 8 * used]
    if rounds < _LEAST_ROUNDS or counted[-1][0] <= counted[0][0]:
        return 0.0
    return sum(tokens for _, tokens in counted[1:]) / (counted[-1][0] - counted[0][0])


def spread(requests: int, slots: int, used: int) -> tuple[int, ...]:
    """Requests dealt evenly over the first `used` of the slots."""
    used = max(1, min(used, slots, requests)) if requests else 1
    each, rest = divmod(requests, used)
    return tuple(each + (slot < rest) if slot < used else 0 for slot in range(slots))

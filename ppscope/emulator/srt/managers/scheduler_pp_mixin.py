"""The pipeline loop: which micro-batch a stage takes up, and for what it waits, in the order of SGLang 0.5.9 to 0.5.23 at async depth 0."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Any

from ppscope.emulator.gpu_timeline import GpuTimeline

from ...torch.cuda.streams import Event
from ...torch.profiler import record_function
from ...torch.utils._contextlib import context_decorator
from ..distributed.parallel_state import GroupCoordinator, TensorDict
from ..server_args import PortArgs
from ..utils.common import point_to_point_pyobj
from .schedule_batch import Req, ScheduleBatch


class SchedulerPPMixin(ABC):
    """Pipeline half of the scheduler; the other half has the members declared first."""

    pp_group: GroupCoordinator
    gpu: GpuTimeline
    ports: PortArgs
    mb_id: int

    @abstractmethod
    def ingest_requests(self) -> list[Any]:
        """Receive requests and act on them."""

    @abstractmethod
    def get_next_batch_to_run(self, mb_id: int) -> ScheduleBatch | None:
        """Return the next micro-batch of a slot."""

    @abstractmethod
    def run_batch(self, batch: ScheduleBatch) -> int:
        """Launch a micro-batch."""

    @abstractmethod
    def process_batch_result(self, batch: ScheduleBatch) -> None:
        """Give requests their tokens."""

    @abstractmethod
    def on_idle(self) -> None:
        """Wait for work."""

    def init_pp_loop_state(self) -> None:
        """Make one slot for each stage."""
        self.pp_loop_size = self.pp_group.size
        self.mbs: list[ScheduleBatch | None] = [None] * self.pp_loop_size
        self.running_mbs: list[list[Req]] = [[] for _ in range(self.pp_loop_size)]
        self.pp_outputs: TensorDict | None = None
        self.last_rank_comm_queue: deque[TensorDict] = deque()
        self.send_work = 0

    @context_decorator
    def event_loop_pp(self) -> None:
        """Go round the slots for ever."""
        self.init_pp_loop_state()
        while True:
            server_is_idle = True
            for mb_id in range(self.pp_loop_size):
                next_mb_id = (mb_id + 1) % self.pp_loop_size
                next_first_rank_mb_id = (mb_id + self.pp_group.size) % self.pp_loop_size
                self.mb_id = mb_id
                with record_function("recv_requests"):
                    recv_reqs = self.ingest_requests()
                if not self.pp_group.is_last_rank:
                    self._pp_commit_comm_work()
                    with record_function("send_reqs_to_next_stage"):
                        self._pp_send_pyobj_to_next_stage(recv_reqs)
                with record_function("get_next_batch_to_run"):
                    self.mbs[mb_id] = self.get_next_batch_to_run(mb_id)
                cur_batch = self.mbs[mb_id]
                if cur_batch is not None:
                    server_is_idle = False
                    self._pp_recv_proxy_tensors()
                self._pp_commit_proxy_send_work()
                if cur_batch is not None:
                    result = self._pp_launch_batch(mb_id, cur_batch)
                self.pp_outputs, d2h_event = self._pp_send_recv_and_preprocess_output_tensors(
                    next_first_rank_mb_id, next_mb_id
                )
                process_target = self.mbs[next_mb_id]
                if process_target is not None and d2h_event is not None:
                    d2h_event.synchronize()
                    with record_function("process_batch_result"):
                        self._pp_process_batch_result(process_target)
                if not self.pp_group.is_last_rank and cur_batch is not None:
                    self._pp_send_proxy_to_next_stage(mb_id, result)
            if server_is_idle:
                self.on_idle()

    def _pp_commit_comm_work(self) -> None:
        # The links buffer whole messages, so the previous send is always done.
        self.send_work += 1

    def _pp_commit_proxy_send_work(self) -> None:
        self.send_work += 1

    def _pp_send_pyobj_to_next_stage(self, recv_reqs: list[Any]) -> None:
        if self.ports.requests_out is not None:
            point_to_point_pyobj(recv_reqs, None, self.ports.requests_out)

    def _pp_recv_proxy_tensors(self) -> None:
        if not self.pp_group.is_first_rank:
            message = self._pp_recv_typed_dict("proxy")
            self.gpu.receive(message.ready_ns, self.pp_group.rank - 1)

    def _pp_recv_typed_dict(self, msg_type: str) -> TensorDict:
        return self.pp_group.recv_tensor_dict(msg_type)

    def _pp_recv_dict_from_prev_stage(self) -> TensorDict:
        return self._pp_recv_typed_dict("output")

    def _pp_send_dict_to_next_stage(self, message: TensorDict) -> None:
        self.gpu.send(message.ready_ns, (self.pp_group.rank + 1) % self.pp_group.size)
        self.pp_group.send_tensor_dict(message)

    def _pp_send_proxy_to_next_stage(self, mb_id: int, ready_ns: int) -> None:
        with record_function("send_proxy_dict_to_next_stage"):
            self._pp_send_dict_to_next_stage(TensorDict("proxy", mb_id, ready_ns))

    def _pp_launch_batch(self, mb_id: int, cur_batch: ScheduleBatch) -> int:
        with record_function("run_batch"):
            ready_ns = self.run_batch(cur_batch)
        if self.pp_group.is_last_rank:
            self.last_rank_comm_queue.append(TensorDict("output", mb_id, ready_ns))
        return ready_ns

    def _pp_send_output_to_next_stage(self, next_first_rank_mb_id: int) -> None:
        outgoing = self.pp_outputs
        if self.pp_group.is_last_rank:
            outgoing = self.last_rank_comm_queue.popleft() if self.mbs[next_first_rank_mb_id] is not None else None
        if outgoing is not None:
            with record_function("send_res_dict_to_next_stage"):
                self._pp_send_dict_to_next_stage(outgoing)

    def _pp_send_recv_and_preprocess_output_tensors(
        self, next_first_rank_mb_id: int, next_mb_id: int
    ) -> tuple[TensorDict | None, Event | None]:
        def _do_recv() -> tuple[TensorDict | None, Event | None]:
            if self.mbs[next_mb_id] is None:
                return None, None
            with record_function("recv_res_dict_from_prev_stage"):
                message = self._pp_recv_dict_from_prev_stage()
            return self._pp_prep_batch_result(message)

        # Even ranks send first, odd ranks receive first, as every 0.5.23 backend does.
        if self.pp_group.rank % 2 == 0:
            self._pp_send_output_to_next_stage(next_first_rank_mb_id)
            return _do_recv()
        received = _do_recv()
        self._pp_send_output_to_next_stage(next_first_rank_mb_id)
        return received

    def _pp_prep_batch_result(self, message: TensorDict) -> tuple[TensorDict, Event]:
        arrived_ns = self.gpu.receive_output(message.ready_ns, (self.pp_group.rank - 1) % self.pp_group.size)
        d2h_event = Event()
        d2h_event.record(arrived_ns)
        return TensorDict("output", message.mb_id, arrived_ns), d2h_event

    def _pp_process_batch_result(self, batch: ScheduleBatch) -> None:
        self.process_batch_result(batch)

"""One scheduler process: the stage's loop, from its start to the launcher's death."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

import os
import signal
import traceback
from dataclasses import replace
from typing import Any

from ppscope.emulator.board import Board
from ppscope.emulator.gpu_timeline import GpuTimeline
from ppscope.emulator.log import write_log
from ppscope.emulator.process_title import set_title
from ppscope.emulator.stacks import frame

from ...torch._ops import spend
from ...torch.distributed.distributed_c10d import Link
from ..distributed.parallel_state import GroupCoordinator
from ..model_executor.model_runner import ModelRunner, forward_stacks
from ..observability.scheduler_stage_metrics import scheduler_stage
from ..server_args import PortArgs, ServerArgs
from ..utils.common import kill_itself_when_parent_died
from .emulated_load import Load
from .schedule_batch import ProfileReq, ScheduleBatch, SetInternalStateReq
from .scheduler_components.batch_result_processor import BatchResultProcessor
from .scheduler_components.idle_sleeper import IdleSleeper
from .scheduler_components.metrics_reporter import MetricsReporter
from .scheduler_components.output_streamer import OutputStreamer
from .scheduler_components.profiler_manager import ProfilerManager
from .scheduler_components.request_receiver import RequestReceiver
from .scheduler_pp_mixin import SchedulerPPMixin
from .tp_worker import TpModelWorker

SCHEDULING_MS = 0.2


class Scheduler(SchedulerPPMixin):
    """State of one rank."""

    def __init__(self, server_args: ServerArgs, port_args: PortArgs, gpu_id: int, tp_rank: int, pp_rank: int) -> None:
        scenario = server_args.options.scenario
        pp_size, tp_size = server_args.pp_size, server_args.tp_size
        row = pp_rank * tp_size + tp_rank
        prefix = f"PP{pp_rank}" + (f" TP{tp_rank}" if tp_size > 1 else "")
        board = Board(server_args.options.board_file)
        self.ports = port_args
        self.mb_id = 0
        self.pp_group = GroupCoordinator(pp_rank, pp_size, port_args.receive, port_args.send)
        self.gpu = GpuTimeline(scenario, pp_rank, pp_size, board, row)
        self.tp_worker = TpModelWorker(ModelRunner(scenario, pp_rank, pp_size, self.gpu))
        step = (frame(self.run_event_loop), frame(self.run_batch), frame(TpModelWorker.forward_batch_generation))
        stacks = replace(forward_stacks(), step=step)
        self.profiler_manager = ProfilerManager(self.gpu, pp_rank, pp_size, tp_rank, tp_size, gpu_id, prefix, stacks)
        self.request_receiver = RequestReceiver(pp_rank, tp_rank, port_args, self._poll_stage_zero)
        self.metrics_reporter = MetricsReporter(
            board,
            row,
            prefix,
            logs=tp_rank == 0,
            interval=server_args.decode_log_interval,
            device_timer=scenario.device_timer,
        )
        burn_ms = scenario.burn_ms / pp_size if pp_rank == 0 else 0.0
        self.result_processor = BatchResultProcessor(OutputStreamer(burn_ms))
        self.idle_sleeper = IdleSleeper()
        self.board, self.row = board, row
        self.load = Load(scenario, pp_size)
        self.waiting_queue = self.load.stuck()
        self._admits = not scenario.stuck
        self.forward_ct = 0
        self.token_count = 0

    def run_event_loop(self) -> None:
        """Run until killed."""
        dispatch_event_loop(self)

    def _poll_stage_zero(self) -> list[Any]:
        running = [len(slot) for slot in self.running_mbs]
        arrived: list[Any] = list(self.load.arrivals(self.mb_id, running[self.mb_id], sum(running)))
        control = self.ports.control
        while control is not None and control.poll():
            arrived.append(control.recv())
        return arrived

    def ingest_requests(self) -> list[Any]:
        """Receive requests and act on them."""
        recv_reqs = self.request_receiver.recv_requests()
        self.process_input_requests(recv_reqs)
        self.token_count = self.metrics_reporter.publish_load(self.running_mbs, self.mb_id, len(self.waiting_queue))
        return recv_reqs

    @scheduler_stage("process_input_requests")
    def process_input_requests(self, recv_reqs: list[Any]) -> None:
        """Queue requests; obey commands at once, before they are relayed."""
        for recv_req in recv_reqs:
            if isinstance(recv_req, ProfileReq):
                self.profiler_manager.profile(recv_req, self.forward_ct)
            elif isinstance(recv_req, SetInternalStateReq):
                self.load.limit = recv_req.pp_max_micro_batch_size
            else:
                self.waiting_queue.append(recv_req)

    @scheduler_stage("get_next_batch_to_run")
    def get_next_batch_to_run(self, mb_id: int) -> ScheduleBatch | None:
        """Return the next micro-batch of a slot: new requests first, else its running ones; None when it has neither."""
        running = [req for req in self.running_mbs[mb_id] if not req.finished]
        self.running_mbs[mb_id] = running
        if self.waiting_queue and self._admits:
            new, self.waiting_queue = self.waiting_queue, []
            running.extend(new)
            batch = ScheduleBatch("EXTEND", new)
        elif running:
            batch = ScheduleBatch("DECODE", list(running))
        else:
            return None
        spend(SCHEDULING_MS)
        return batch

    @scheduler_stage("run_batch")
    def run_batch(self, batch: ScheduleBatch) -> int:
        """Launch a micro-batch; return when the GPU will be done (ns, CLOCK_MONOTONIC)."""
        self.forward_ct += 1
        self.profiler_manager.profile_batch_predicate(self.forward_ct)
        replayed, ready_ns = self.tp_worker.forward_batch_generation(batch)
        self.board.add(self.row, "forward_passes", 1)
        if batch.forward_mode == "EXTEND":
            running = len(self.running_mbs[self.mb_id]) - batch.batch_size
            self.metrics_reporter.log_prefill_stats(batch, running, self.token_count)
        else:
            self.metrics_reporter.log_decode_stats(batch, replayed=replayed, token_count=self.token_count)
        return ready_ns

    @scheduler_stage("process_batch_result")
    def process_batch_result(self, batch: ScheduleBatch) -> None:
        """Give the requests of a finished micro-batch their tokens."""
        if batch.forward_mode == "EXTEND":
            self.result_processor.process_batch_result_prefill(batch)
        else:
            self.result_processor.process_batch_result_decode(batch)
        self.board.add(self.row, "tokens", batch.batch_size)

    def on_idle(self) -> None:
        """Nothing to run in any slot: only stage 0 sleeps, the others wait for it."""
        if self.pp_group.is_first_rank:
            self.idle_sleeper.maybe_sleep()


def dispatch_event_loop(scheduler: Scheduler) -> None:
    """Choose the loop."""
    _dispatch_event_loop_once(scheduler)


def _dispatch_event_loop_once(scheduler: Scheduler) -> None:
    scheduler.event_loop_pp()


def configure_scheduler_process(server_args: ServerArgs, tp_rank: int, pp_rank: int) -> None:
    """Take the title, after the part of a start in which real children have none."""
    kill_itself_when_parent_died(server_args.launcher_pid)
    load_plugins(server_args.options.load_seconds / 2)
    suffix = f"_PP{pp_rank}" + (f"_TP{tp_rank}" if server_args.tp_size > 1 else "")
    set_title(f"sglang::scheduler{suffix}")


def load_plugins(seconds: float) -> None:
    """Spend the first half of a slow start here, without a title."""
    spend(seconds * 1e3)


def run_scheduler_process(
    server_args: ServerArgs,
    port_args: PortArgs,
    gpu_id: int,
    tp_rank: int,
    pp_rank: int,
    dp_rank: int | None,
    pipe_writer: Link,
    display_tp_rank: int | None = None,
    display_dp_rank: int | None = None,
    display_moe_ep_rank: int | None = None,
) -> None:
    """Be one scheduler. A failure ends the whole server, as in SGLang: SIGQUIT to the launcher."""
    try:
        # A terminal sends its interrupt to the whole group; ending is the launcher's business.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        configure_scheduler_process(server_args, tp_rank, pp_rank)
        scheduler = Scheduler(server_args, port_args, gpu_id, tp_rank, pp_rank)
        scheduler.tp_worker.model_runner.load_model(server_args.options.load_seconds / 2)
        pipe_writer.send({"status": "ready", "pp_rank": pp_rank, "tp_rank": tp_rank})
        scheduler.run_event_loop()
    except Exception:  # noqa: BLE001 - reported, and the server ends
        write_log(f"Scheduler hit an exception: {traceback.format_exc()}", f"PP{pp_rank}")
        os.kill(server_args.launcher_pid, signal.SIGQUIT)

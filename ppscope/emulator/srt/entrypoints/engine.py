"""The launcher process: starts the stages, answers HTTP, writes the emulated GPUs, and ends everything when it ends."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

import multiprocessing
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
from multiprocessing.context import SpawnContext, SpawnProcess
from types import FrameType
from typing import Any

from ppscope.emulator.board import Board, create_board
from ppscope.emulator.gpus import PERIOD_S, EmulatedGpus
from ppscope.emulator.http_api import HttpApi
from ppscope.emulator.log import write_log
from ppscope.emulator.options import Options, read_options
from ppscope.emulator.process_title import allow_tracers

from ...torch.distributed.distributed_c10d import Link, new_link
from ..managers.detokenizer_manager import run_detokenizer_process
from ..managers.schedule_batch import ProfileReq, SetInternalStateReq
from ..managers.scheduler import run_scheduler_process
from ..server_args import PortArgs, ServerArgs

CHECK_S = 0.5


class Launcher:
    """One server with all its processes."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._context: SpawnContext = multiprocessing.get_context("spawn")
        self._children: list[SpawnProcess] = []
        self._kept: list[Link] = []
        self._control: list[Link] = []
        self._ready: list[Link] = []
        self._stop = threading.Event()
        self._status = 0
        self._started_ns = time.monotonic_ns()
        self._killed_pid: int | None = None

    def run(self) -> int:
        """Serve until told to end; return the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        allow_tracers()
        try:
            self._serve()
        finally:
            self._end()
        return self._status

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._status = 1 if number == signal.SIGQUIT else 0
        self._stop.set()

    def _serve(self) -> None:
        options = self._options
        command = " ".join(["python", "-m", "sglang.launch_server", *options.server_argv()])
        write_log(f"server_args=ServerArgs(launch_command={command!r})")
        write_log("Pipeline parallelism is incompatible with overlap schedule.")
        create_board(options.board_file, options.pp_size * options.tp_size)
        board = Board(options.board_file)
        pids = self._start_children()
        gpus = EmulatedGpus(options, board, pids)
        gpus.write()
        if options.end_with_stdin:
            threading.Thread(target=self._watch_stdin, name="stdin", daemon=True).start()
        threading.Thread(target=self._write_gpus, args=(gpus,), name="gpus", daemon=True).start()
        self._announce("started")
        if not self._wait_ready():
            return
        HttpApi(options, board, command, self._started_ns, self._profile, self._limit).serve(self._listener())
        print(f"INFO:     Uvicorn running on http://127.0.0.1:{options.port} (Press CTRL+C to quit)", flush=True)
        write_log("The server is fired up and ready to roll!")
        self._announce("ready")
        self._watch(pids)

    def _start_children(self) -> list[int]:
        options = self._options
        pp_size, tp_size = options.pp_size, options.tp_size
        args = ServerArgs(
            options=options,
            launcher_pid=os.getpid(),
            pp_size=pp_size,
            tp_size=tp_size,
            decode_log_interval=10 if "--decode-log-interval" in options.scenario.extra_flags else 40,
        )
        ports = [[PortArgs() for _ in range(tp_size)] for _ in range(pp_size)]
        for pp_rank in range(pp_size):
            for tp_rank in range(tp_size):
                self._link(ports, pp_rank, tp_rank)
        for pp_rank in range(pp_size):
            for tp_rank in range(tp_size):
                self._start_scheduler(args, ports[pp_rank][tp_rank], pp_rank, tp_rank)
        pids = [child.pid or 0 for child in self._children]
        # The detokenizer sees the launcher's end by this pipe closing, so nobody else may hold its writing end.
        reader, writer = new_link()
        self._kept.append(writer)
        ready, pipe_writer = new_link()
        detokenizer = self._context.Process(
            target=run_detokenizer_process, args=(reader, options.folder, pipe_writer), daemon=True
        )
        detokenizer.start()
        reader.close()
        pipe_writer.close()
        self._ready.append(ready)
        self._children.append(detokenizer)
        return pids

    def _link(self, ports: list[list[PortArgs]], pp_rank: int, tp_rank: int) -> None:
        pp_size, here = self._options.pp_size, ports[pp_rank][tp_rank]
        following = ports[(pp_rank + 1) % pp_size][tp_rank]
        following.receive["output"], here.send["output"] = new_link()
        if pp_rank < pp_size - 1:
            following.receive["proxy"], here.send["proxy"] = new_link()
            if tp_rank == 0:
                following.requests_in, here.requests_out = new_link()
        if tp_rank > 0:
            here.broadcast_in, sender = new_link()
            ports[pp_rank][0].broadcast_out.append(sender)
        elif pp_rank == 0:
            here.control, control = new_link()
            self._control.append(control)

    def _start_scheduler(self, args: ServerArgs, ports: PortArgs, pp_rank: int, tp_rank: int) -> None:
        reader, writer = new_link()
        gpu_id = pp_rank * self._options.tp_size + tp_rank
        process = self._context.Process(
            target=run_scheduler_process,
            args=(args, ports, gpu_id, tp_rank, pp_rank, None, writer, tp_rank, None, 0),
        )
        process.start()
        writer.close()
        self._children.append(process)
        self._ready.append(reader)
        # The links stay open here: a stage that dies leaves its neighbours waiting, as with NCCL, not failing.
        self._kept += [*ports.receive.values(), *ports.send.values(), *ports.broadcast_out]
        self._kept += [end for end in (ports.requests_in, ports.requests_out, ports.broadcast_in, ports.control) if end]

    def _wait_ready(self) -> bool:
        waiting = list(self._ready)
        while waiting and not self._stop.is_set():
            readable, _, _ = select.select(waiting, [], [], CHECK_S)
            for reader in readable:
                try:
                    reader.recv()
                except EOFError:
                    write_log("A child process ended before it was ready.")
                    self._status = 1
                    return False
                waiting.remove(reader)
            self._end_if_time_is_up()
        return not waiting

    def _listener(self) -> socket.socket:
        if self._options.listen_fd is not None:
            return socket.socket(fileno=self._options.listen_fd)
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._options.port))
        return listener

    def _watch(self, pids: list[int]) -> None:
        options, ready_ns = self._options, time.monotonic_ns()
        while not self._stop.wait(CHECK_S):
            self._end_if_time_is_up()
            up_s = (time.monotonic_ns() - ready_ns) / 1e9
            if options.kill_stage is not None and self._killed_pid is None and up_s >= options.kill_after_s:
                self._killed_pid = pids[options.kill_stage * options.tp_size]
                os.kill(self._killed_pid, signal.SIGKILL)
            dead = [child.pid for child in self._children if not child.is_alive() and child.pid != self._killed_pid]
            if dead:
                write_log(f"Child process {dead[0]} ended unexpectedly. The server ends.")
                self._status = 1
                self._stop.set()

    def _end_if_time_is_up(self) -> None:
        seconds = self._options.seconds
        if seconds is not None and time.monotonic_ns() - self._started_ns > seconds * 1e9:
            self._stop.set()

    def _write_gpus(self, gpus: EmulatedGpus) -> None:
        while not self._stop.wait(PERIOD_S):
            try:
                gpus.write()
            except OSError:
                return

    def _watch_stdin(self) -> None:
        while os.read(0, 4096):
            pass
        self._stop.set()

    def _profile(self, start: bool, fields: dict[str, Any]) -> None:
        now = str(time.time())
        steps = fields.get("num_steps")
        request = ProfileReq(
            start=start,
            output_dir=str(fields.get("output_dir") or os.environ.get("SGLANG_TORCH_PROFILER_DIR") or "/tmp"),
            num_steps=None if steps is None else int(steps),
            profile_id=str(fields.get("profile_id") or now),
            profile_prefix=fields.get("profile_prefix"),
            with_stack=bool(fields.get("with_stack")),
        )
        self._control[0].send(request)

    def _limit(self, requests: int) -> None:
        self._control[0].send(SetInternalStateReq(requests))

    def _announce(self, state: str) -> None:
        if self._options.announce_fd is None:
            return
        line = f"{state} pid={os.getpid()} port={self._options.port} folder={self._options.folder}\n"
        try:
            os.write(self._options.announce_fd, line.encode())
        except OSError:
            return

    def _end(self) -> None:
        self._stop.set()
        for child in self._children:
            if child.is_alive():
                child.kill()
        for child in self._children:
            child.join()
        shutil.rmtree(self._options.folder, ignore_errors=True)


def serve(folder: str) -> int:
    """Run the server whose options lie in `folder`; return its exit status."""
    log = os.open(read_options(folder).log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return Launcher(read_options(folder)).run()

"""One profile burst from the question to the result, on a thread of its own."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from msgspec.structs import replace

from ppscope.records import Burst, BurstRank, BurstRankState, BurstStatus, RankKey, Server
from ppscope.sources.base import Emit
from ppscope.sources.burst_alone import Turn, check_log, take_turn
from ppscope.sources.burst_checks import Unfit, check, dead_ranks
from ppscope.sources.burst_child import Job
from ppscope.sources.burst_files import BurstFiles
from ppscope.sources.burst_folder import Folder, FolderError, keep, make_folder, remove, remove_stale
from ppscope.sources.burst_http import LEAVE_READ_S, Profiler
from ppscope.sources.burst_plan import loop_size, make_plan, parse_version, start_body
from ppscope.sources.burst_reader import BurstReader
from ppscope.sources.burst_temp import check_room


class Patience(NamedTuple):
    """How long to wait, in seconds.

    `window_s` for the first trace file: after it traffic has stopped, or is too slow. `quiet_s` for any news of the files: a stage
    exports in memory first, which was seen to take 108 s for a large window (sglang #34942). `retry_s` until a stop that failed is asked
    for again.
    """

    look_s: float = 0.25
    window_s: float = 30.0
    quiet_s: float = 120.0
    retry_s: float = 5.0


class BurstRun:
    """Starts the profiler once, stops it when it does not stop by itself, and cleans up after itself, however it ends.

    `leave` must be called before the collector goes; `cancel` when the user has second thoughts.
    """

    def __init__(
        self, emit: Emit, server: Server, wish: Burst, profiler: Profiler | None = None, patience: Patience = Patience()
    ) -> None:
        self._emit = emit
        self._server = server
        self._wish = wish
        self._profiler = profiler or Profiler(server)
        self._patience = patience
        self.number = time.monotonic_ns()
        slots = loop_size(server.pp_loop_size, server.pp_size)
        self._plan = make_plan(server.version, slots, wish.rounds)
        self._token = f"ppscope-{self.number}"
        self._turn: Turn | None = None
        self._folder: Folder | None = None
        self._asked = False
        self._files: BurstFiles | None = None
        self._reader: BurstReader | None = None
        self._wake = threading.Event()
        self._cancelled = False
        self._leaving = False
        self._may_run = False
        """Whether a profile of ours may be running at the server: until it was seen to end, or the server said that none runs."""
        self._stop_failed_s: float | None = None
        self._stopper: threading.Thread | None = None
        self._stopped: str | None = None
        self._read: set[RankKey] = set()
        self._problems: dict[RankKey, str] = {}
        self._last: BurstStatus | None = None
        self._thread = threading.Thread(target=self._run, name="ppscope-burst", daemon=True)

    # -- from outside

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def active(self) -> bool:
        """False once everything is done and cleaned up."""
        return self._thread.is_alive()

    @property
    def child(self) -> int | None:
        """Pid of the reading process, None while there is none."""
        return self._reader.pid if self._reader is not None else None

    def cancel(self) -> None:
        """Stop the profile and throw away what it writes; returns at once."""
        self._cancelled = True
        self._interrupt()

    def leave(self, timeout_s: float = 1.5) -> None:
        """The view is gone: stop the profile if one runs, wait for nothing else."""
        self._leaving = True
        self._interrupt()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _interrupt(self) -> None:
        self._wake.set()
        self._profiler.abort()
        if self._reader is not None:
            self._reader.end()

    # -- the thread

    def _run(self) -> None:
        try:
            self._profile()
        except (Unfit, FolderError) as problem:
            self._say("failed", str(problem), problem.remedy)
        except Exception as error:  # noqa: BLE001  a fault here must neither go unsaid nor leave a profile running
            self._say("failed", f"fault in ppscope: {type(error).__name__}: {error}"[:300])
        finally:
            patience_s = LEAVE_READ_S if self._leaving else 10.0
            if self._stopper is not None:
                self._stopper.join(patience_s)
            why = self._profiler.stop(patience_s) if self._may_run else None
            if why is not None and not self._leaving:
                self._say(
                    "failed",
                    f"the server may profile on: /stop_profile: {why}",
                    f"POST /stop_profile ends it, and so do {self._plan.num_steps} micro-batches of traffic",
                )
            self._tidy()
            if self._turn is not None:
                self._turn.end()

    def _tidy(self) -> str | None:
        """Remove the folder, unless a scheduler may still write to it: a write that fails ends the server. Why it stays, or None.

        One that stays is swept by a later burst, unless it holds what is to be kept.
        """
        if self._folder is None:
            return None
        if self._kept():
            keep(self._folder)
            return None
        if self._asked and not (self._files is not None and self._files.complete):
            return "a stage may still write to it"
        return remove(self._folder)

    def _kept(self) -> bool:
        """Whether the folder holds what the user wants to keep, read or not; what was cancelled nobody wants."""
        return self._wish.keep and not self._cancelled and self._files is not None and bool(self._files.whole)

    def _profile(self) -> None:
        self._say("asked", "checking the server")
        check(self._server)
        self._turn = take_turn(self._server.launcher_pid)
        check_log(self._server.launcher_pid, parse_version(self._server.version))
        check_room(self._server, self._plan.num_steps, self._wish.with_stack)
        folder = self._folder = make_folder(self._server.ranks[0].pid)
        remove_stale(folder)
        self._files = BurstFiles(folder.here, self._token, (rank.key for rank in self._server.ranks))
        self._say("asked", "asking the server")
        if not self._start(folder):
            return
        offset_ns = _monotonic_minus_wall_ns()
        self._say("running", self._running_text())
        if not self._wait_for_files():
            return
        paths = self._files.whole
        if self._cancelled:
            self._say_cancelled(folder)
            return
        if not paths:
            dead = dead_ranks(self._server)
            raise Unfit(
                f"no stage wrote a trace{'; ' if dead else ''}{', '.join(dead)}{' ended' if dead else ''}",
                f"look into the server's log; its traces would be in {folder.there}",
            )
        self._say("reading", f"reading {len(paths)} traces")
        offset_ns = (offset_ns + _monotonic_minus_wall_ns()) // 2
        self._read_files(
            Job(
                self.number,
                [(key.dp, key.pp, key.tp, path) for key, path in paths.items()],
                offset_ns,
                self._wish.graphs_expected,
            )
        )
        self._finish(folder)

    def _start(self, folder: Folder) -> bool:
        server, plan = self._server, self._plan
        body = start_body(plan, server.version, server.device, folder.there, self._token, self._wish.with_stack)
        self._may_run = self._asked = True
        refusal = self._profiler.start(body)
        if refusal is None:
            return True
        if refusal.started is False:
            self._may_run = self._asked = False
            raise Unfit(refusal.message, refusal.remedy)
        # It may have been heard all the same: go on as if it was, and stop it in the end.
        return not self._leaving

    def _running_text(self) -> str:
        plan = self._plan
        return f"profiling {plan.micro_batches} micro-batches, {plan.rounds} rounds of the pipeline"

    def _wait_for_files(self) -> bool:
        """Wait until every rank's file is whole; False when nobody wants them any more."""
        files, patience = self._files, self._patience
        assert files is not None
        news_s = time.monotonic()
        while True:
            if self._leaving:
                return False
            if files.look():
                news_s = time.monotonic()
            if files.files and self._may_run and len(files.files) == len(files.expected):
                self._may_run = False
            if files.settled:
                self._may_run = False
                return True
            quiet_s = time.monotonic() - news_s
            if self._cancelled and self._stopped is None:
                news_s = self._stop("stopping: waiting until every stage has written its trace")
            elif not files.files and self._stopped is None and quiet_s > patience.window_s:
                news_s = self._stop(
                    f"the window was not full after {patience.window_s:.0f} s (too little traffic): stopped early"
                )
            elif quiet_s > patience.quiet_s:
                return True
            elif self._stop_failed_s is not None and time.monotonic() - self._stop_failed_s > patience.retry_s:
                self._ask_to_stop()
            dead = dead_ranks(self._server)
            if dead and not files.settled and quiet_s > 5.0:
                self._may_run = False
                return True
            self._say(*self._progress())
            self._wake.wait(patience.look_s)
            self._wake.clear()

    def _stop(self, why: str) -> float:
        """Ask the profiler to stop, and again when that fails, without waiting for the answer here; returns the time."""
        self._stopped = why
        self._say("stopping", why)
        self._ask_to_stop()
        return time.monotonic()

    def _ask_to_stop(self) -> None:
        self._stop_failed_s = None
        self._stopper = threading.Thread(target=self._stop_now, name="ppscope-burst-stop", daemon=True)
        self._stopper.start()

    def _stop_now(self) -> None:
        if self._profiler.stop() is None:
            self._may_run = False
        else:
            self._stop_failed_s = time.monotonic()

    def _progress(self) -> tuple[str, str]:
        files = self._files
        assert files is not None
        if self._stopped is not None:
            return "stopping", self._stopped
        if not files.files:
            return "running", self._running_text()
        whole = len(files.whole)
        return "waiting", f"{whole} of {len(files.expected)} stages have written their trace"

    def _read_files(self, job: Job) -> None:
        try:
            reader = self._reader = BurstReader(job)
        except OSError as error:
            raise Unfit(f"the traces could not be read: no process starts for it: {error.strerror or error}") from error
        if self._leaving or self._cancelled:
            reader.end()
        for record in reader.records():
            if isinstance(record, BurstStatus):
                self._problems |= {state.rank: state.problem for state in record.ranks}
                continue
            if isinstance(record, BurstRank):
                self._read.add(record.rank)
            self._emit(record)
        self._reader = None
        if reader.trouble and not (self._leaving or self._cancelled):
            kept = f"they are in {self._folder.there}" if self._folder is not None and self._kept() else ""
            raise Unfit(f"the traces could not be read: {reader.trouble}", kept)

    def _finish(self, folder: Folder) -> None:
        if self._leaving:
            return
        if self._cancelled:
            self._say_cancelled(folder)
            return
        parts = [f"{len(self._read)} of {len(self._server.ranks)} ranks read"]
        if self._stopped:
            parts.insert(0, self._stopped)
        if self._wish.keep:
            parts.append(f"the traces are in {folder.there}")
        elif (left := self._tidy()) is not None:
            parts.append(f"{folder.there} was not removed: {left}")
        elsewhere = self._server.pp_size * self._server.tp_size * self._server.dp_size - len(self._server.ranks)
        if elsewhere > 0:
            parts.append(f"{elsewhere} ranks run on other nodes: their traces stay there in {folder.there}")
        dead = dead_ranks(self._server)
        if dead:
            parts.insert(0, f"{', '.join(dead)} ended after the profile")
        missing = [rank for rank in self._server.ranks if rank.key not in self._read]
        state = "failed" if dead or not self._read else "done"
        self._say(state, "; ".join(parts), "look into the server's log" if dead or missing else "")

    def _say_cancelled(self, folder: Folder) -> None:
        left = self._tidy()
        end = "its traces were thrown away" if left is None else f"{folder.there} was not removed: {left}"
        self._say("cancelled", f"the profile was stopped, {end}")

    # -- words

    def _say(self, state: str, message: str, remedy: str = "") -> None:
        status = BurstStatus(
            burst=self.number,
            at_ns=0,
            state=state,
            message=message,
            remedy=remedy,
            ranks=self._rank_states(state),
            num_steps=self._plan.num_steps,
            folder=self._folder.there if self._folder is not None else None,
            prefix=self._token,
        )
        if status == self._last:
            return
        self._last = status
        self._emit(replace(status, at_ns=time.monotonic_ns()))

    def _rank_states(self, state: str) -> tuple[BurstRankState, ...]:
        return tuple(self._rank_state(rank.key, state) for rank in self._server.ranks)

    def _rank_state(self, key: RankKey, state: str) -> BurstRankState:
        file = self._files.files.get(key) if self._files is not None else None
        size = file.size_bytes if file is not None else 0
        if key in self._problems:
            return BurstRankState(key, "failed", size, self._problems[key])
        if key in self._read:
            return BurstRankState(key, "done", size)
        if file is None:
            over = state in ("reading", "done", "failed", "cancelled") and self._files is not None
            return BurstRankState(key, "missing" if over else "running" if state != "asked" else "asked")
        if file.problem is not None:
            return BurstRankState(key, "failed", size, file.problem)
        return BurstRankState(key, ("reading" if state == "reading" else "whole") if file.whole else "writing", size)


def _monotonic_minus_wall_ns() -> int:
    """What to add to wall time to get CLOCK_MONOTONIC: the reading with the least time between both clocks of a few."""
    best: tuple[int, int] | None = None
    for _ in range(5):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, (before + after) // 2 - wall)
    assert best is not None
    return best[1]

"""Stage rows: the ranks of each pipeline stage, summed up over the last seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from ppscope.phase_sums import PhaseTimes
from ppscope.records import GpuSample
from ppscope.session.gpus import Gpus
from ppscope.session.load import LoadState
from ppscope.session.ranks import RankState
from ppscope.views import PhaseStyle, RankRow, StageRow

WINDOW_NS = 5_000_000_000
"""Shares in the stage rows are over the last five seconds of what was seen."""
FORWARD = ("replay", "eager", "graph_input", "prepare", "sample")
"""Phases of the forward pass: on a CPU server, where it is synchronous, their time is busy time."""


def shares(times: PhaseTimes) -> tuple[tuple[int, float], ...]:
    """(phase, share) of the seen time, largest first."""
    seen = sum(times.values())
    if not seen:
        return ()
    return tuple(sorted(((phase, took / seen) for phase, took in times.items()), key=lambda pair: -pair[1]))


def _mean(values: Iterable[float | int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def rank_times(state: RankState, now_ns: int) -> tuple[PhaseTimes, bool]:
    """Phase times of the last window that was seen of this rank, and whether they are exact."""
    seen = state.seen_ns()
    newest = min(now_ns, seen) if seen is not None else now_ns
    return state.times(newest - WINDOW_NS, newest)


def _rank_row(state: RankState, gpus: Gpus, now_ns: int, phases: tuple[tuple[int, float], ...]) -> RankRow:
    gpu = state.rank.gpu
    index = gpu.index if gpu else None
    sample: GpuSample | None = gpus.last(index, now_ns)
    return RankRow(
        key=state.rank.key,
        pid=state.rank.pid,
        alive=state.alive,
        exit_reason=state.exit_reason if not state.alive else "stopped" if state.stopped else None,
        gpu_index=index,
        gpu_source=gpu.source if gpu else None,
        power_w=sample.power_w if sample else None,
        power_limit_w=gpus.power_limit_w(index, now_ns),
        util_percent=sample.util_percent if sample else None,
        host_cpu=state.host_cpu(now_ns - WINDOW_NS),
        phases=phases,
        threads=state.threads_count,
    )


class StageRows:
    """Builds the rows; `device` decides whether host time is busy time (a CPU server's forward is synchronous)."""

    def __init__(self, styles: Sequence[PhaseStyle], gpus: Gpus, load: LoadState) -> None:
        self._work = {index for index, style in enumerate(styles) if style.kind == "work"}
        self._forward = {index for index, style in enumerate(styles) if style.name in FORWARD}
        self._gpus = gpus
        self._load = load
        self.trace_busy: Callable[[int, int, int], float | None] = lambda dp, pp, now_ns: None
        """Busy share of a replica's stage by a profile burst of late, None without one."""

    def busy(
        self,
        dp: int,
        pp: int,
        host_forward: float | None,
        device: str | None,
        now: int,
        members: Sequence[RankState] = (),
        active: bool | None = None,
    ) -> tuple[float | None, str | None]:
        """Busy share of a replica's stage and where it is from; `host_forward` counts on a CPU server alone, or what `members` say exactly.

        `active` says whether the server was at work in the last seconds.
        """
        exact = self._exact_busy(members, device, now)
        if exact is not None:
            return exact, "probe"
        if (traced := self.trace_busy(dp, pp, now)) is not None:
            return traced, "trace"
        # The gauge keeps its last value while nothing runs (0.5.15; gone for 40 s in 0.5.23).
        if active is not False and (told := self._load.busy(pp, now)) is not None:
            return told, "metric"
        if device == "cpu" and host_forward is not None:
            return host_forward, "host"
        return None, None

    def _exact_busy(self, members: Sequence[RankState], device: str | None, now: int) -> float | None:
        if device != "cpu":
            return _mean(s.exact.gpu_busy(now - WINDOW_NS, now) for s in members if s.alive and s.exact is not None)
        timed = [rank_times(state, now) for state in members if state.alive]
        if not timed or not all(exact for _, exact in timed):
            return None
        seen = sum(sum(times.values()) for times, _ in timed)
        return sum(times.get(phase, 0) for times, _ in timed for phase in self._forward) / seen

    def build(
        self, states: Iterable[RankState], device: str | None, emulated: bool, now_ns: int, active: bool | None = None
    ) -> tuple[StageRow, ...]:
        """One row a stage, in dp, pp order."""
        rows = []
        ordered = sorted(states, key=lambda state: state.rank.key)
        for (dp, pp), group in groupby(ordered, key=lambda state: (state.rank.key.dp, state.rank.key.pp)):
            members = list(group)
            total: PhaseTimes = {}
            ranks = []
            for state in members:
                times, _ = rank_times(state, now_ns)
                for phase, took in times.items():
                    total[phase] = total.get(phase, 0) + took
                ranks.append(_rank_row(state, self._gpus, now_ns, shares(times)))
            seen = sum(total.values())
            work = sum(total.get(phase, 0) for phase in self._work) / seen if seen else None
            forward = sum(total.get(phase, 0) for phase in self._forward) / seen if seen else None
            busy, busy_source = self.busy(dp, pp, forward, device, now_ns, members, active)
            rows.append(
                StageRow(
                    dp=dp,
                    pp=pp,
                    ranks=tuple(ranks),
                    alive=any(state.alive for state in members),
                    gpus=tuple(sorted({rank.gpu_index for rank in ranks if rank.gpu_index is not None})),
                    power_w=_mean(rank.power_w for rank in ranks),
                    power_limit_w=_mean(rank.power_limit_w for rank in ranks),
                    util_percent=_mean(rank.util_percent for rank in ranks),
                    host_work=work,
                    busy=busy,
                    busy_source=busy_source,
                    phases=shares(total),
                    emulated=emulated,
                    # The rank of a trace file has no process, and may not know its stage.
                    label=members[0].rank.title if members[0].rank.pid == 0 else None,
                )
            )
        return tuple(rows)

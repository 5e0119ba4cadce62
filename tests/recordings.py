"""Made-up recordings: a pipeline whose stages take turns, with everything a collector would say of it."""

from __future__ import annotations

from collections.abc import Iterator

from ppscope.probe import layout
from ppscope.records import (
    SCHEMA,
    AnyRecord,
    BatchLog,
    Cost,
    End,
    FrameDef,
    GpuDevice,
    GpuRef,
    GpuSample,
    Hello,
    HostSamples,
    LoadSample,
    LoopSample,
    ProbeSpans,
    Rank,
    RankKey,
    Server,
    Settings,
    SourceStatus,
    StackDef,
    StackSpans,
)

SECOND = 1_000_000_000
MS = 1_000_000
START_NS = 5_000 * SECOND
WALL_NS = 1_780_000_000 * SECOND

MIXIN = "/opt/py/lib/python3.12/site-packages/sglang/srt/managers/scheduler_pp_mixin.py"
FRAMES = (
    ("run_scheduler_process", "/opt/py/lib/python3.12/site-packages/sglang/srt/managers/scheduler.py", 6390),
    ("event_loop_pp", MIXIN, 192),
    ("_pp_launch_batch", MIXIN, 1650),
    ("forward_decode", "/opt/py/lib/python3.12/site-packages/sglang/srt/model_executor/model_runner.py", 2284),
    ("_pp_recv_dict_from_prev_stage", MIXIN, 300),
)
EAGER, WAIT = 0, 1
STACKS = ((0, 1, 2, 3), (0, 1, 4))


def head(
    pp: int = 4,
    tp: int = 1,
    *,
    model: str = "org/Model-7B",
    frames: tuple[tuple[str, str, int], ...] = FRAMES,
    schema: int = SCHEMA,
) -> list[AnyRecord]:
    """What a stream begins with."""
    ranks = tuple(
        Rank(
            RankKey(0, number // tp, number % tp), 4000 + number, 77, f"sglang::scheduler_PP{number // tp}",
            GpuRef(number, f"GPU-{number}", number, "nvml_pid"),
        )
        for number in range(pp * tp)
    )  # fmt: skip
    asked: dict[str, object] = {"disable_cuda_graph": True, "pp_size": pp}
    records: list[AnyRecord] = [
        Hello(schema, "0.1.0", "gpu01", START_NS, WALL_NS, 99, "3.12.1", "Linux"),
        Server(
            START_NS, 3999, 70, "launch_server", "serving", ranks, pp, tp, 1, version="0.5.23", model=model, device="cuda",
            host="127.0.0.1", port=30000, launch_command=("python", "-m", "sglang.launch_server", "--disable-cuda-graph"),
            sglang_path="/opt/py/lib/python3.12/site-packages/sglang",
        ),
        Settings(START_NS, "requested", asked),
        Settings(START_NS, "resolved", {**asked, "pp_max_micro_batch_size": 64, "pp_async_batch_depth": 0}),
        SourceStatus("stacks", START_NS, "ok"),
    ]  # fmt: skip
    records += [
        GpuDevice(index, f"GPU-{index}", "NVIDIA B200", 600.0, 180 << 30, driver_version="580.1")
        for index in range(pp * tp)
    ]
    records += [FrameDef(number, *frame) for number, frame in enumerate(frames)]
    records += [StackDef(number, stack) for number, stack in enumerate(STACKS)]
    return records


def _turns(stage: int, pp: int, start_ns: int, end_ns: int, turn_ns: int) -> Iterator[tuple[int, int, int]]:
    """(start, end, stack) of one stage that works every pp-th turn."""
    at = start_ns
    while at < end_ns:
        turn = (at - START_NS) // turn_ns
        mine = turn % pp == stage
        upto = min(START_NS + (turn + 1) * turn_ns, end_ns)
        if not mine:
            upto = min(START_NS + (turn + (stage - turn) % pp) * turn_ns, end_ns)
        yield at, upto, EAGER if mine else WAIT
        at = upto


def second(
    at: int,
    pp: int = 4,
    tp: int = 1,
    *,
    turn_ns: int = 40 * MS,
    tokens_per_s: float = 24.0,
    running: int = 8,
    power_w: float = 86.0,
) -> list[AnyRecord]:
    """What comes within the second number `at`."""
    begin = START_NS + at * SECOND
    end = begin + SECOND
    records: list[AnyRecord] = []
    for stage in range(pp):
        for peer in range(tp):
            key, pid = RankKey(0, stage, peer), 4000 + stage * tp + peer
            overlapped = max(begin - 200 * MS, START_NS)
            rows = list(_turns(stage, pp, overlapped, end, turn_ns))
            records.append(
                StackSpans(
                    key,
                    pid,
                    "MainThread",
                    overlapped,
                    end,
                    20 * MS,
                    [r[0] for r in rows],
                    [r[1] for r in rows],
                    [r[2] for r in rows],
                    60,
                )
            )
            records.append(
                HostSamples(
                    key,
                    pid,
                    [begin, end - 1],
                    [at * SECOND // 8, (at + 1) * SECOND // 8],
                    [0, 0],
                    "S",
                    10,
                    20,
                    30,
                    [1, 1],
                )
            )
            index = stage * tp + peer
            records += [
                GpuSample(
                    index,
                    begin + tenth * 100 * MS,
                    power_w + stage,
                    600.0,
                    3,
                    None,
                    100 << 30,
                    1965,
                    throttle_reasons=0,
                    pids=(pid,),
                )
                for tenth in range(10)
            ]
        turn = (begin - START_NS) // turn_ns
        mine = START_NS + (turn + (stage - turn) % pp) * turn_ns + turn_ns // 2
        records += [
            LoopSample(RankKey(0, stage, 0), mine + k * pp * turn_ns, MS, EAGER, "event_loop_pp", 0, 1, True)
            for k in range(3)
            if mine + k * pp * turn_ns < end
        ]
    records.append(
        LoadSample(end - 10 * MS, "metrics", None, 0, tokens_per_s, in_flight=running, micro_batch=float(running))
    )
    records.append(BatchLog(end - 5 * MS, WALL_NS, "decode", 0, 0, 0, running, 0, tokens_per_s, False))
    records.append(Cost(end - 1, 0.05, 0.3, 50.0))
    return sorted(records, key=_when)


def _when(record: AnyRecord) -> int:
    at: object = getattr(record, "end_ns", None) or getattr(record, "at_ns", 0)
    return int(at[-1]) if isinstance(at, list) else int(str(at))


def recording(seconds: int = 8, pp: int = 4, tp: int = 1, **what: float | str) -> list[AnyRecord]:
    """A whole recording."""
    head_keys = {"model", "frames", "schema"}
    first: dict[str, object] = {key: value for key, value in what.items() if key in head_keys}
    rest: dict[str, object] = {key: value for key, value in what.items() if key not in head_keys}
    records = head(pp, tp, **first)  # type: ignore[arg-type]
    for at in range(seconds):
        records += second(at, pp, tp, **rest)  # type: ignore[arg-type]
    return [*records, End(START_NS + seconds * SECOND, "seconds")]


def probe_second(at: int, pp: int, spans_per_s: int) -> list[AnyRecord]:
    """Exact spans of one second: each turn of the loop is ten calls, the forward nested in its launch."""
    kinds = (
        layout.INTAKE, layout.SCHEDULE, layout.RECV_ACTIVATIONS, layout.EAGER, layout.LAUNCH, layout.SEND, layout.RECV_OUTPUTS,
        layout.WAIT_GPU, layout.PROCESS, layout.WAIT_SEND,
    )  # fmt: skip
    parts = (3, 5, 20, 30, 36, 4, 16, 8, 6, 2)
    records: list[AnyRecord] = []
    turns = max(spans_per_s // len(kinds), 1)
    turn_ns = SECOND // turns
    for stage in range(pp):
        rows: list[tuple[int, int, int, int, int, int]] = []
        state = at * 31 + stage
        for turn in range(turns):
            begin = now = START_NS + at * SECOND + turn * turn_ns
            for kind, part in zip(kinds, parts, strict=True):
                state = (state * 1103515245 + 12345) % 2**31
                took = turn_ns * part // 140 + state % (turn_ns // 160 + 1)
                if kind == layout.EAGER:
                    inner = (now + 7_013, min(now + took, begin + turn_ns), kind, 1, turn % pp, turn)
                    rows.append(inner)
                    continue
                rows.append((now, now + took, kind, 0, turn % pp, turn))
                now += took
        starts, ends, kinds_, depths, slots, turns_ = (list(column) for column in zip(*rows, strict=True))
        count = len(rows)
        records.append(
            ProbeSpans(
                RankKey(0, stage, 0), 4000 + stage, at * count + 1, 0, bytes(kinds_), starts, ends, bytes(depths), slots,
                bytes([2] * count), [8] * count, [8] * count, bytes([layout.RAN_EAGER] * count), [at * turns + turn for turn in turns_], pp,
            )
        )  # fmt: skip
    return records

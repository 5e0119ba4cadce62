"""The data of a snapshot: what the page draws, and the records it rests on, as one JSON object of schema `ppscope.snapshot/1`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ppscope import __version__
from ppscope.diagnose.occupancy import in_words, likely
from ppscope.finding_json import finding_object
from ppscope.records import AnyRecord, BurstRank, GpuDevice, ProbeSpans, StackSpans
from ppscope.session import Session
from ppscope.snapshot.lanes import lanes
from ppscope.snapshot.pack import pack, records_of
from ppscope.snapshot.page_data import SCHEMA
from ppscope.snapshot.recorded import session_of
from ppscope.snapshot.wall import WallClock
from ppscope.snapshot.window import RecordWindow, is_bulk, time_of
from ppscope.views import GraphState, RankRow, StageRow

Json = dict[str, Any]


def build(records: Iterable[AnyRecord], window_ns: int | None = None) -> Json:
    """The document of a recording; `window_ns` keeps that much before its end.

    The figures come from a session over the packed records, so whoever opens the document sees the same.
    """
    window = RecordWindow(window_ns)
    window.add(records)
    kept = [_to_microseconds(record) for record in window.records()]
    start_ns, end_ns = _extent(kept, window_ns)
    packed: Json = {
        "schema": SCHEMA,
        "window": {"origin_ns": start_ns, "end_ns": end_ns, "seconds": (end_ns - start_ns) / 1e9},
        **pack(kept, start_ns, start_ns),
    }
    session = session_of(records_of(packed))
    return {**packed, "made": _made(session, WallClock(kept).at(end_ns)), "view": view(session, packed)}


def _to_microseconds(record: AnyRecord) -> AnyRecord:
    """Exact spans without the nanoseconds that the probe itself takes for one, which are most of a file's size."""
    if not isinstance(record, ProbeSpans):
        return record
    times = {name: [at - at % 1000 for at in getattr(record, name)] for name in ("starts_ns", "ends_ns")}
    return msgspec.structs.replace(record, **times)


def _extent(records: Sequence[AnyRecord], window_ns: int | None) -> tuple[int, int]:
    starts = [record.start_ns for record in records if isinstance(record, StackSpans)]
    times = [at for record in records if is_bulk(record) and (at := time_of(record)) is not None]
    bursts = [record for record in records if isinstance(record, BurstRank)]
    newest = max(times, default=max((record.end_ns for record in bursts), default=0))
    oldest = min(starts or times, default=min((record.start_ns for record in bursts), default=newest))
    if window_ns is not None:
        oldest = max(oldest, newest - window_ns)
    return oldest, max(newest, oldest + 1)


def _made(session: Session, wall_ns: int | None) -> Json:
    hello = session.hello
    return {
        "ppscope": __version__,
        "wall_ns": wall_ns,
        "written_wall_ns": time.time_ns(),
        "host": hello.host if hello else None,
        "platform": hello.platform if hello else None,
        "python": hello.python if hello else None,
    }


def view(session: Session, packed: Json) -> Json:
    """What the page shows besides the columns: every figure is one the terminal shows too."""
    start_ns, end_ns = packed["window"]["origin_ns"], packed["window"]["end_ns"]
    screen = session.screen()
    header = screen.header
    exact, marks = lanes(session, start_ns, end_ns)
    return {
        "server": _server(session, header.layout),
        "load": msgspec.to_builtins(header.load),
        "graphs": {"decode": _graph(header.decode_graph), "prefill": _graph(header.prefill_graph)},
        "findings": [finding_object(finding) for finding in screen.findings],
        "occupancy": {
            **msgspec.to_builtins(screen.occupancy), "likely": likely(screen.occupancy), "text": in_words(screen.occupancy)
        },
        "stages": [_stage(stage, session) for stage in screen.stages],
        "phases": [msgspec.to_builtins(style) for style in session.phases()],
        "stack_phases": _stack_phases(session, packed["stacks"]["id"]),
        "exact_lanes": exact,
        "micro_batches": marks,
        "launches": [msgspec.to_builtins(row) for row in screen.launches],
        "settings": [msgspec.to_builtins(row) for row in screen.settings],
        "gpus": [_gpu(row.device) for row in screen.gpus],
        "sources": [
            {"name": status.name, "state": status.state, "message": status.message, "remedy": status.remedy,
             "rank": None if status.rank is None else list(msgspec.structs.astuple(status.rank))}
            for status in session.sources.values()
        ],
        "overhead": {
            "own_cores": session.cost.own_cores if session.cost else None,
            "children_cores": session.cost.children_cores if session.cost else None,
            "view_cores": session.cost.view_cores if session.cost else None,
            "stack_rate_hz": header.stack_rate_hz,
            "other_share": header.other_share,
            "dropped_records": session.dropped,
        },
    }  # fmt: skip


def _server(session: Session, layout: str) -> Json:
    server = session.server
    if server is None:
        return {}
    named = {
        name: getattr(server, name) for name in server.__struct_fields__ if name not in ("ranks", "facts", "others")
    }
    return {**msgspec.to_builtins(named), "layout": layout}


def _stack_phases(session: Session, stacks: list[int]) -> list[int]:
    """Phase of each stack, in the order of `stacks.id`."""
    return [session.interned.phase(stack) for stack in stacks]


def _graph(state: GraphState) -> Json:
    graph: Json = msgspec.to_builtins(state)
    return graph


def _stage(stage: StageRow, session: Session) -> Json:
    return {
        "dp": stage.dp,
        "pp": stage.pp,
        "alive": stage.alive,
        "busy": stage.busy,
        "busy_source": stage.busy_source,
        "host_work": stage.host_work,
        "power_w": stage.power_w,
        "power_limit_w": stage.power_limit_w,
        "util_percent": stage.util_percent,
        "gpus": list(stage.gpus),
        "emulated": stage.emulated,
        "phases": [list(share) for share in stage.phases],
        "ranks": [_rank(rank, session) for rank in stage.ranks],
    }


def _rank(rank: RankRow, session: Session) -> Json:
    state = session.states.get(rank.key)
    return {
        "key": list(msgspec.structs.astuple(rank.key)),
        "pid": rank.pid,
        "main_tid": (state.rank.main_tid or rank.pid) if state else rank.pid,
        "title": state.rank.title if state else "",
        "alive": rank.alive,
        "exit_reason": rank.exit_reason,
        "gpu": rank.gpu_index,
        "gpu_source": rank.gpu_source,
        "host_cpu": rank.host_cpu,
        "phases": [list(share) for share in rank.phases],
    }


def _gpu(device: GpuDevice) -> Json:
    return {name: getattr(device, name) for name in GpuDevice.__struct_fields__ if name != "p2p"} | {
        "p2p": [list(link) for link in device.p2p]
    }

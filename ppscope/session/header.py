"""The two top lines: what server this is, how it does, and which sources are not well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppscope.diagnose.running import is_idle
from ppscope.records import Server
from ppscope.session.evidence import with_batch
from ppscope.session.troubles import troubles
from ppscope.views import Header, Load

if TYPE_CHECKING:
    from ppscope.session.session import Session


def layout(server: Server) -> str:
    """`PP8×TP1`, with `DP2×` in front where there is one."""
    text = f"PP{server.pp_size}×TP{server.tp_size}"
    return f"DP{server.dp_size}×{text}" if server.dp_size > 1 else text


def _state(session: Session, load: Load, active: bool | None, now_ns: int) -> str:
    if session.gone is not None:
        return "gone"
    if not session.live:
        return "recording"
    if session.server is None:
        return "attaching"
    waits = active is False and with_batch(session.states.values(), session.interned, now_ns)
    if session.server.state == "serving" and is_idle(active, waits, load, session.load.in_flight(now_ns)):
        return "idle"
    return session.server.state


def build_header(session: Session, now_ns: int, active: bool | None) -> Header:
    """The header as of now; unknown fields are None. `active` says whether a forward pass was seen of late."""
    server, cost = session.server, session.cost
    settings = session.settings
    occupied = session.occupied(session.occupancy())
    load = session.load.view(now_ns, settings.integer("decode_log_interval"), occupied, settings.batch_interval, active)
    decode, prefill = session.settings.graphs(session.load.recent_batches(now_ns), now_ns)
    return Header(
        model=server.model if server else None,
        version=server.version if server else None,
        layout=layout(server) if server else "–",
        host=session.hello.host if session.hello else "",
        launcher_pid=server.launcher_pid if server else 0,
        state=_state(session, load, active, now_ns),
        load=load,
        decode_graph=decode,
        prefill_graph=prefill,
        stack_rate_hz=cost.stack_rate_hz if cost else None,
        idle_cores=cost.idle_cores if cost else None,
        cost_cores=cost.cores if cost else None,
        other_share=session.other_share(),
        notes=troubles(session),
        emulated=bool(server and server.emulated),
        dropped=session.dropped,
        provenance=session.provenance(now_ns),
        candidates=session.gone.candidates if session.gone else (),
    )

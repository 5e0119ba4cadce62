"""The server's settings as asked, resolved and seen, and what follows from them."""

from __future__ import annotations

import re
from collections import deque

from ppscope.diagnose.occupancy import in_words
from ppscope.diagnose.settings import graph_states, setting_rows
from ppscope.records import BatchLog, LogNote, Metric, Server, Settings
from ppscope.views import GraphState, Occupancy, SettingRow

_WINDOW_NS = 60_000_000_000
_METRICS_KEPT = 4096
_NOTES_KEPT = 400
_ASYNC_SINCE = (0, 5, 7)
"""The PP loop has `pp_size + pp_async_batch_depth` slots since 0.5.7 (PR #11852); before, `pp_size`."""


def version_of(server: Server | None) -> tuple[int, ...] | None:
    """`0.5.6.post2` → (0, 5, 6); None when the version is not known."""
    match = re.match(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", server.version) if server and server.version else None
    return tuple(map(int, match.groups())) if match else None


class SettingsState:
    """Keeps the last word on settings, and the log lines and metrics that show what graphs do."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: what another server was asked, resolved and logged says nothing of this one."""
        self._by_origin: dict[str, Settings] = {}
        self._notes: dict[str, deque[LogNote]] = {}
        self._metrics: deque[Metric] = deque(maxlen=_METRICS_KEPT)

    def add(self, record: Settings) -> None:
        """Take in settings."""
        self._by_origin[record.origin] = record

    def add_metric(self, record: Metric) -> None:
        """Take in a series."""
        self._metrics.append(record)

    def add_note(self, record: LogNote) -> None:
        """Take in a line of the log; each kind is kept for itself, so that what is said at start-up outlives what is said every second."""
        self._notes.setdefault(record.kind, deque(maxlen=_NOTES_KEPT)).append(record)

    @property
    def notes(self) -> list[LogNote]:
        """The last lines of each kind, oldest first."""
        return sorted((note for kind in self._notes.values() for note in kind), key=lambda note: note.at_ns)

    @property
    def requested(self) -> dict[str, object] | None:
        """What the command line and environment asked; None when it could not be read."""
        return self._by_origin["requested"].values if "requested" in self._by_origin else None

    @property
    def resolved(self) -> dict[str, object] | None:
        """What the server says it resolved; None when it has not answered."""
        return self._by_origin["resolved"].values if "resolved" in self._by_origin else None

    @property
    def model(self) -> dict[str, object] | None:
        """What the model's own config.json says; None when it could not be read."""
        return self._by_origin["model"].values if "model" in self._by_origin else None

    def integer(self, name: str) -> int | None:
        """A setting as resolved, or as asked; None where neither says it."""
        for values in (self.resolved, self.requested):
            value = values.get(name) if values else None
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return None

    @property
    def speculates(self) -> bool:
        """Whether a draft model is asked for or resolved."""
        return any((values or {}).get("speculative_algorithm") for values in (self.resolved, self.requested))

    @property
    def batch_interval(self) -> int | None:
        """Passes between two decode lines, for the size of a batch by its tokens; None where a pass may make several for a request."""
        return None if self.speculates else self.integer("decode_log_interval")

    def slots(self, server: Server | None) -> int | None:
        """Micro-batch slots of the PP loop; None without pipeline parallelism or when depth or version is not known."""
        version = version_of(server)
        if server is None or server.pp_size < 2 or version is None:
            return None
        stages = max(server.pp_size, self.integer("pp_size") or 0)  # of an Engine only this node's titles are known
        if version < _ASYNC_SINCE:
            return stages
        depth = self.integer("pp_async_batch_depth")
        if depth is None and (self.requested is None and self.resolved is None):
            return None
        return stages + (depth or 0)

    def _recent(self, now_ns: int) -> list[Metric]:
        return [metric for metric in self._metrics if now_ns - metric.at_ns <= _WINDOW_NS]

    def graphs(self, batches: list[BatchLog], now_ns: int) -> tuple[GraphState, GraphState]:
        """Requested, resolved and observed state of decode and prefill graphs over the last minute."""
        return graph_states(self.requested, self.resolved, batches, self._recent(now_ns))

    def rows(
        self, server: Server | None, occupancy: Occupancy, batches: list[BatchLog], now_ns: int
    ) -> tuple[SettingRow, ...]:
        """The settings panel."""
        observed: dict[str, str] = {}
        if server is not None:
            observed = {"pp_size": str(server.pp_size), "tp_size": str(server.tp_size), "dp_size": str(server.dp_size)}
        if occupancy.mean is not None:
            observed["micro-batch slots"] = f"{in_words(occupancy).partition(' of ')[0]} in use"
        return setting_rows(
            self.requested, self.resolved, observed, batches=batches, metrics=self._recent(now_ns), notes=self.notes
        )

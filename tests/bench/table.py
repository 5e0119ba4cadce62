"""The one table: rows of every part, kept between runs so that a part can be measured anew alone."""

from __future__ import annotations

import json
import os
import platform
import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

PEERS = ("py-spy top", "py-spy record", "nvitop")
"""Peers with a column of their own; all others share the last."""


@dataclass
class Row:
    """One figure of ppscope, its budget, and what the peers take for the same."""

    what: str
    ppscope: str
    budget: str = ""
    beside: dict[str, str] = field(default_factory=dict)


@dataclass
class Measured:
    """What a part gave: rows, and notes on what is absent or must be known to read them."""

    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    when: str = ""


class Skip(Exception):
    """A part that cannot be measured here; the text says why."""


def machine() -> str:
    """One line that names the machine."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    cores = f"{os.cpu_count()} cores of {model.group(1) if model else platform.machine()}"
    return f"{cores}, Linux {platform.release()}, Python {platform.python_version()}"


def keep(folder: Path, part: str, measured: Measured) -> None:
    """Write down what a part gave."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{part}.json").write_text(json.dumps(asdict(measured), ensure_ascii=False, indent=1), encoding="utf-8")


def kept(folder: Path, part: str) -> Measured | None:
    """What a part gave when it was last measured here."""
    path = folder / f"{part}.json"
    if not path.exists():
        return None
    data = json.loads(path.read_text(encoding="utf-8"))
    return Measured([Row(**row) for row in data["rows"]], data["notes"], data["when"])


def now() -> str:
    """The time of day and the load, for the note of a part."""
    return f"{time.strftime('%Y-%m-%d %H:%M')}, load {os.getloadavg()[0]:.1f} before"


def markdown(parts: dict[str, Measured]) -> str:
    """The table with its notes."""
    lines = [
        "# What ppscope costs, beside its peers",
        "",
        f"Made by `make bench` on {machine()}. Budgets are those of the design.",
        "",
        "| what | budget | ppscope | " + " | ".join(PEERS) + " | others |",
        "|---|---|---|" + "---|" * (len(PEERS) + 1),
    ]
    for measured in parts.values():
        for row in measured.rows:
            others = ", ".join(f"{name} {value}" for name, value in row.beside.items() if name not in PEERS)
            cells = [
                row.what,
                row.budget or "–",
                row.ppscope,
                *(row.beside.get(peer, "–") for peer in PEERS),
                others or "–",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "Notes"]
    lines += [f"- **{name}** ({measured.when}): {' '.join(measured.notes)}" for name, measured in parts.items()]
    return "\n".join(lines) + "\n"

"""Start-up, bytes, CPU, memory and answers to keys of the real commands in a terminal of 160×50, on emulated stages."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from itertools import cycle
from statistics import median

from ppscope import emulator
from tests.bench.peers import Peer, nvitop, ppscope, pyspy_top, recorded, schedulers, undeterred
from tests.bench.processes import Usage
from tests.bench.pty import TimedTerminal
from tests.bench.table import Measured, Row
from tests.terminal.terminal import PPSCOPE, Terminal

SETTLE_S = 6.0
BAR = re.compile(r"^[▸> ] +PP\d.*[▁▂▃▄▅▆▇█╌┈░▒▓╎]", re.MULTILINE)


def quantile(values: list[float], share: float) -> float:
    """The value below which that share of all lies."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def first_bars(server: int, stages: int) -> float | None:
    """Seconds from start of `ppscope attach` to a bar in the row of each stage."""
    started = time.monotonic()
    with Terminal([str(PPSCOPE), "attach", str(server)], columns=160, lines=50) as terminal:
        while len(BAR.findall(terminal.text)) < stages:
            if time.monotonic() > started + 20:
                return None
            time.sleep(0.005)
        seen = time.monotonic() - started
        terminal.send("q")
        terminal.wait()
    return seen


def first_frame(peer: Peer) -> float | None:
    """Seconds from start to the text of the first frame."""
    started = time.perf_counter()
    with TimedTerminal(peer.command, peer.env) as terminal:
        seen = terminal.when(peer.first, 0, 10.0)
        terminal.leave(peer.leave)
    return None if seen is None else seen - started


def start_up(runs: int) -> Measured:
    """First frame and first bars, medians."""
    rows = [Row("`--help`, seconds", _help(str(PPSCOPE), runs), "0.15")]
    notes = [f"Medians of {runs} starts; the first frame is the row of the last stage, for the peers their first text."]
    with emulator.start("serial", 8) as server:
        frame = Row("first frame, seconds", _median([first_frame(ppscope(server.pid)) for _ in range(runs)]), "0.6")
        top = pyspy_top(schedulers(server.pid)[0])
        frame.beside["py-spy top"] = _median([first_frame(top) for _ in range(runs)])
        gpu = nvitop(server)
        if isinstance(gpu, Peer):
            frame.beside["nvitop"] = _median([first_frame(gpu) for _ in range(runs)])
        else:
            notes.append(gpu)
        bars = _median([first_bars(server.pid, 8) for _ in range(runs)])
        rows += [frame, Row("first bar in every lane, seconds", bars, "2.5")]
    return Measured(rows, notes)


def _help(command: str, runs: int) -> str:
    took = []
    for _ in range(runs):
        began = time.perf_counter()
        subprocess.run([command, "--help"], capture_output=True, check=True)
        took.append(time.perf_counter() - began)
    return f"{median(took):.2f}"


def _median(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):.2f}" if known else "never seen"


class Figures:
    """What a program uses once it has settled."""

    def __init__(self, peer: Peer, seconds: float, before: str = "") -> None:
        with TimedTerminal(peer.command, peer.env) as terminal:
            time.sleep(SETTLE_S)
            if before:
                terminal.send(before)
                time.sleep(2.0)
            received, usage = terminal.received, Usage(terminal.process.pid)
            self.cores, self.own, self.mib = usage.over(seconds)
            self.bytes_s = (terminal.received - received) / seconds
            terminal.leave(peer.leave)


def eight(seconds: float) -> Measured:
    """Bytes, cores and memory on eight stages, beside the peers."""
    with emulator.start("serial", 8) as server:
        view = undeterred(server.pid)
        ours, wide = Figures(view, seconds), Figures(view, seconds, before="-")
        stages = schedulers(server.pid)
        top = Figures(pyspy_top(stages[0]), seconds)
        gpu = nvitop(server)
        record = _recording(stages, seconds)
        rows = _usage_rows("8 ranks", ours, "8", "0.5", "0.12")
        rows.insert(1, Row("the same at 100 ms a column (key `-`)", f"{wide.bytes_s / 1000:.1f}", "8"))
        notes = [
            f"{seconds:.0f} s each, 160×50, settled; sampling as on a node of many idle cores.",
            "`py-spy top` shows one process, so it has one of the eight stages;",
            "`py-spy record` is eight of them at 50 Hz without a screen. Memory counts shared pages by their share (PSS).",
        ]
        beside = {"py-spy top": top}
        if isinstance(gpu, Peer):
            beside["nvitop"] = Figures(gpu, seconds)
            notes.append("nvitop reads the fake NVML library of the tests, eight GPUs: there is no driver here.")
        else:
            notes.append(gpu)
        for name, figures in beside.items():
            rows[0].beside[name] = f"{figures.bytes_s / 1000:.1f}"
            rows[2].beside[name], rows[4].beside[name] = f"{figures.cores:.2f}", f"{figures.mib:.0f}"
        rows[2].beside["py-spy record"], rows[4].beside["py-spy record"] = record
        return Measured(rows, notes)


def _usage_rows(where: str, ours: Figures, bytes_kb: str, cores: str, own: str) -> list[Row]:
    return [
        Row(f"bytes to the terminal, {where}, kB/s", f"{ours.bytes_s / 1000:.1f}", bytes_kb),
        Row(f"CPU of everything, {where}, cores", f"{ours.cores:.2f}", cores),
        Row("of it our own Python, cores", f"{ours.own:.3f}", own),
        Row(f"memory, {where}, MiB", f"{ours.mib:.0f}"),
    ]


def _recording(stages: list[int], seconds: float) -> tuple[str, str]:
    """(cores, MiB) of one `py-spy record` a stage, together."""
    with recorded(stages) as pids:
        time.sleep(SETTLE_S)
        cores, _, mib = Usage(*pids).over(seconds)
    return f"{cores:.2f}", f"{mib:.0f}"


def answers(peer: Peer, presses: int) -> list[float] | None:
    """Milliseconds from each of many keys to its answer while it runs; None when one was never answered."""
    with TimedTerminal(peer.command, peer.env) as terminal:
        time.sleep(SETTLE_S)
        keys = cycle(peer.keys)
        took = []
        for number in range(presses):
            key, marker = next(keys)
            # Not in step with what the program does by itself.
            time.sleep(0.17 + 0.011 * (number % 13))
            milliseconds = terminal.press(key, marker)
            if milliseconds is None:
                return None
            took.append(milliseconds)
        terminal.leave(peer.leave)
    return took


def keys(presses: int) -> Measured:
    """Key to answer on eight stages, beside the peers."""
    row = Row("key to paint, 8 ranks, ms p50 / p99", "")
    notes = [f"{presses} keys each in a real terminal, one every quarter of a second: cursor, sort order, help screen."]
    with emulator.start("serial", 8) as server:
        row.ppscope = _quantiles(answers(undeterred(server.pid), presses))
        row.beside["py-spy top"] = _quantiles(answers(pyspy_top(schedulers(server.pid)[0]), presses))
        gpu = nvitop(server)
        if isinstance(gpu, Peer):
            row.beside["nvitop"] = _quantiles(answers(gpu, presses))
        else:
            notes.append(gpu)
    return Measured([row], notes)


def _quantiles(values: list[float] | None) -> str:
    return "not answered" if values is None else f"{median(values):.0f} / {quantile(values, 0.99):.0f}"


def sixty_four(seconds: float, presses: int) -> Measured:
    """The same of 64 emulated ranks, 8 stages of 8."""
    with emulator.start("serial", 8, tp=8) as server:
        view = undeterred(server.pid)
        ours = Figures(view, seconds)
        took = _quantiles(answers(view, presses))
    rows = _usage_rows("64 ranks", ours, "8", "0.5", "")
    rows.append(Row("key to paint, 64 ranks, ms p50 / p99", took, "100"))
    notes = [
        "Sampling as on a node of many idle cores, though 64 processes of the emulator share this machine's",
        "with what is measured.",
    ]
    return Measured(rows, notes)


PARTS: dict[str, Callable[[bool], Measured]] = {
    "start": lambda quick: start_up(3 if quick else 5),
    "eight": lambda quick: eight(5 if quick else 15),
    "keys": lambda quick: keys(20 if quick else 120),
    "sixty-four": lambda quick: sixty_four(5 if quick else 20, 20 if quick else 100),
}

"""What the fault tests look at: the stages on the screen, how much of the Gantt is drawn, and whose processes are whose."""

from __future__ import annotations

import re
from collections.abc import Callable

import psutil

from tests.terminal.terminal import PPSCOPE, Terminal, all_gone

BARS = re.compile(r"[▁▂▃▄▅▆▇█╌┈░▒▓╎]")
STAGES = 3


def stage_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if re.match(r"^[▸> ] +PP\d", line)]


def live(stages: int = STAGES) -> Callable[[str], bool]:
    def all_drawn(text: str) -> bool:
        lines = stage_lines(text)
        return len(lines) == stages and all(BARS.search(line[60:]) for line in lines)

    return all_drawn


def attach(pid: int) -> Terminal:
    return Terminal([str(PPSCOPE), "attach", str(pid)])


def take_successor(terminal: Terminal) -> None:
    """Attach to the likeliest other server: `a`, and Enter where there are several to choose from."""
    terminal.send("a")
    said = terminal.wait_for(lambda text: "attaching to" in text or "the server is gone; attach to" in text)
    if "attaching to" not in said:
        terminal.send("\r")


def leave(terminal: Terminal) -> None:
    """Quit, and see that nothing of it stays."""
    everything = terminal.descendants()
    terminal.send("q")
    assert terminal.wait() == 0
    assert all_gone(everything) == []


def drawn(text: str) -> int:
    """How much of the Gantt is filled."""
    return sum(len(BARS.findall(line[60:])) for line in stage_lines(text))


def ranks_of(pid: int) -> list[psutil.Process]:
    return [p for p in psutil.Process(pid).children(recursive=True) if "scheduler_PP" in "".join(p.cmdline())]


def collector_of(terminal: Terminal) -> psutil.Process:
    return next(p for p in terminal.descendants() if "ppscope.collect.collector" in " ".join(p.cmdline()))


def pyspies(terminal: Terminal) -> list[psutil.Process]:
    """The py-spy processes below a command now."""
    found = []
    for process in terminal.descendants():
        try:
            if process.name() == "py-spy":
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found

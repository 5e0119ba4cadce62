"""What goes to the terminal and comes from it: fewer bytes, a colour when it changes, the cursor moved once and not at every piece of text.

Textual frames every piece of text in its whole style and a reset; in the lanes that is two thirds of all bytes.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import Any, NamedTuple

from textual._parser import ParseError
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

_TOKEN = re.compile(
    r"\x1b\[(?P<style>[\d;:]*)m"
    r"|(?P<move>(?:\n|\x1b\[\d+;\d+H)*\x1b\[\d+;\d+H)"
    r"|(?P<sync>\x1b\[\?2026[hl])"
    r"|(?P<text>[^\x00-\x1f\x7f]+)"
    r"|(?P<other>\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]|[\x00-\x1f\x7f])"
)


_TRIES = 50
"""A terminal that is gone refuses every time."""


class Pen(NamedTuple):
    """How text comes out: the colours and, in the order they were asked for, all other codes; each as in the sequence."""

    colour: str = ""
    ground: str = ""
    codes: tuple[str, ...] = ()


PLAIN = Pen()


class Thrift:
    """Rewrites what goes to one terminal; the screen comes out the same."""

    def __init__(self) -> None:
        self._wanted = PLAIN
        self._there: Pen | None = None
        """What the terminal has now; None once something was sent that may have changed it."""

    def shorten(self, data: str) -> str:
        """The same for the screen in fewer bytes; escape sequences must be whole."""
        out: list[str] = []
        for token in _TOKEN.finditer(data):
            kind, said = token.lastgroup, token[0]
            if kind == "style":
                self._wanted = _styled(self._wanted, token["style"])
            elif kind == "move":
                out.append(said[said.rindex("\x1b") :])
            elif kind == "sync":
                out.append(said)
            else:
                if self._there != self._wanted:
                    out.append(_change(self._there, self._wanted))
                self._there = self._wanted if kind == "text" else None
                out.append(said)
        return "".join(out)


@lru_cache(maxsize=1024)
def _styled(pen: Pen, parameters: str) -> Pen:
    """The pen after one sequence of codes."""
    colour, ground, codes = pen
    parts = iter(parameters.split(";"))
    for part in parts:
        if part in ("38", "48"):
            kind = next(parts, "")
            whole = ";".join([part, kind, *(next(parts, "") for _ in range(3 if kind == "2" else 1))])
            colour, ground = (whole, ground) if part == "38" else (colour, whole)
        elif part.strip("0") == "":
            colour, ground, codes = PLAIN
        elif re.fullmatch(r"3[0-79]|9[0-7]|38:.*", part):
            colour = "" if part == "39" else part
        elif re.fullmatch(r"4[0-79]|10[0-7]|48:.*", part):
            ground = "" if part == "49" else part
        else:
            codes = (*codes, part)
    return Pen(colour, ground, codes)


@lru_cache(maxsize=4096)
def _change(there: Pen | None, wanted: Pen) -> str:
    """The shortest sequence from one pen to the other."""
    if there is None or there.codes != wanted.codes[: len(there.codes)]:
        kept, there = ["0"], PLAIN
    else:
        kept = []
    kept += wanted.codes[len(there.codes) :]
    if wanted.colour != there.colour:
        kept.append(wanted.colour or "39")
    if wanted.ground != there.ground:
        kept.append(wanted.ground or "49")
    return f"\x1b[{';'.join(kept)}m"


class ThriftyDriver(LinuxDriver):
    """Textual's driver on stdout, its output shortened, its input proof against all bytes, begun once however often it is told."""

    _thrift: Thrift | None = None
    _begun = False

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        """Write to stdout, which is asked whether it is a terminal; Textual writes to stderr, which may be a file."""
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        if sys.__stdout__ is not None:
            # As stderr would: a character that the encoding lacks is written in ASCII and ends nothing.
            encoding = sys.__stdout__.encoding
            self._file = open(1, "w", encoding=encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115

    def start_application_mode(self) -> None:
        """Take the terminal, unless it is taken.

        Textual takes it at every SIGCONT: at one that reaches a view which was not stopped, or is noticed when `fg` has been seen to,
        a second reader of the keys would begin, and the settings to leave behind would be those of the view. In the background
        (`bg`) the attempt stops us once more, and is made again in the foreground.
        """
        if self._begun:
            return
        self._begun = True
        before = self._writer_thread
        for _ in range(_TRIES):
            super().start_application_mode()  # type: ignore[no-untyped-call]
            if self._writer_thread is not before:
                return
        self._begun = False

    def stop_application_mode(self) -> None:
        """Give the terminal back."""
        self._begun = False
        super().stop_application_mode()

    def run_input_thread(self) -> None:
        """Read keys until the end; bytes that are no UTF-8, or a sequence with numbers that nothing has, are left out."""
        while not self.exit_event.is_set():
            try:
                super().run_input_thread()
            except (ValueError, ArithmeticError, LookupError, ParseError):
                # A descriptor that cannot be waited for is a ValueError too, and would be one for ever.
                self.exit_event.wait(0.01)
            else:
                return

    def write(self, data: str) -> None:
        """Send to the terminal."""
        if self._thrift is None:
            self._thrift = Thrift()
        super().write(self._thrift.shorten(data))

"""Keys faster than the screen, and bytes that no keyboard sends: the view goes on and ends as it should."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from ppscope import emulator
from ppscope.keys import KEYS
from tests.terminal.faults_tools import live
from tests.terminal.terminal import PPSCOPE, Terminal

ENDS = b"\x03\x1aq"
"""Keys that end or suspend the view."""

SENT: dict[str, bytes] = {
    "no UTF-8": b"\xff\xfe\x80abc\xc3(\xe2\x82",
    "a key that no alphabet has": b"\x1b[1114112u\x1b[99999999999999999999u\x1b[55296u",
    "a mouse far away": b"\x1b[<0;99999999999999999999;1M\x1b[<35;-1;-1m\x1b[<;;M",
    "a mouse of old": b"\x1b[M\xff\xff\xff\x1b[M   ",
    "answers that nobody asked for": b"\x1b[?1;2c\x1b[99999;99999R\x1b]11;rgb:ffff/ffff/ffff\x07\x1bP>|xterm(388)\x1b\\\x1b[?2026;2$y",
    "a size without end": b"\x1b[48;99999;99999;9999999;9999999t\x1b[48;;;;t",
    "an unfinished sequence": b"\x1b[1;2;3;4;5;6;7",
    "a paste without end": b"\x1b[200~quit\nrm -rf\x1b[31m",
    "every byte": bytes(byte for byte in range(256) if byte not in ENDS),
    "noise": bytes(byte for byte in random.Random(7).randbytes(4000) if byte not in ENDS),
}


@pytest.fixture(scope="module")
def server() -> Iterator[emulator.EmulatedServer]:
    with emulator.start("serial", 2) as running:
        yield running


def settle() -> None:
    """Longer than the view waits for the rest of a sequence after an Esc."""
    time.sleep(0.4)


def ends_well(terminal: Terminal) -> None:
    """The view still answers, and q ends it. Esc leaves whatever was opened; a paste is closed first."""
    terminal.send("\x1b[201~")
    for _ in range(4):
        terminal.wait_for(lambda text: "Traceback" not in text)
        terminal.send("\x1b")
        settle()
    terminal.wait_for("PP0")
    for _ in range(4):
        # Where the view is behind, a q right after an Esc in its input is one key, alt-q.
        terminal.send("q")
        with suppress(subprocess.TimeoutExpired):
            terminal.wait(5.0)
            break
    assert terminal.wait() == 0
    assert b"Traceback" not in terminal.raw
    assert terminal.restored


@pytest.mark.parametrize("kind", SENT)
def test_bytes_that_no_keyboard_sends_do_no_harm(server: emulator.EmulatedServer, kind: str) -> None:
    with Terminal([str(PPSCOPE), "attach", str(server.pid)]) as terminal:
        terminal.wait_for(live(2))
        terminal.send_bytes(SENT[kind])
        settle()
        ends_well(terminal)


def test_keys_that_come_faster_than_the_screen_do_no_harm(server: emulator.EmulatedServer) -> None:
    """All keys but those that end it, before there is a screen and again in many orders."""
    shown = {"PgUp": "\x1b[5~", "PgDn": "\x1b[6~", "Home": "\x1b[H", "End": "\x1b[F"}
    keys = ["\r", "\t", "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D", " ", *shown.values()]
    keys += [key.keys[0] for key in KEYS if len(key.keys[0]) == 1 and key.action not in ("quit", "burst", "snapshot")]
    keys += ["?", "+", "-", "/"]
    order = random.Random(3)
    with Terminal([str(PPSCOPE), "attach", str(server.pid)], columns=160) as terminal:
        for _ in range(30):
            terminal.send("".join(order.sample(keys, len(keys))) + "?k?jf")
        terminal.wait_for(lambda text: bool(text.strip()))
        settle()
        ends_well(terminal)

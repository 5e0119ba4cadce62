"""Makes screenshots/ anew: the demo's scenarios through the real collector and app, exported as SVG."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from typing import NamedTuple

from ppscope import emulator
from ppscope.app import PpscopeApp
from ppscope.collect.client import CollectorProcess
from ppscope.commands.live import wait_for_server
from ppscope.session import Session
from tests.shared import ROOT

FOLDER = ROOT / "screenshots"


class Shot(NamedTuple):
    """One picture: keys pressed once the scenario has been watched for some seconds."""

    name: str
    size: tuple[int, int] = (140, 40)
    keys: tuple[str, ...] = ()
    settle_s: float = 1.5


SHOTS: dict[str, tuple[Shot, ...]] = {
    "serial": (
        Shot("serial", (160, 44)),
        Shot("serial-80x24", (80, 24)),
        Shot("stacks", keys=("3",)),
        Shot("gpus", keys=("4",)),
        Shot("settings", keys=("5",)),
        Shot("help", keys=("question_mark",)),
    ),
    "healthy": (Shot("healthy", (160, 44)),),
    "imbalanced": (Shot("imbalanced"),),
    "eager": (Shot("burst", (160, 44), keys=("p", "enter"), settle_s=14.0),),
}
WATCH_S = 16.0


def tidy(svg: str) -> str:
    """An SVG that asks the network for nothing: the fonts are named, not fetched."""
    svg = re.sub(r"@font-face\s*\{[^}]*\}", "", svg)
    return re.sub(
        r"font-family: *Fira Code, *monospace", "font-family: 'DejaVu Sans Mono', Menlo, Consolas, monospace", svg
    )


async def shoot(session: Session, shot: Shot) -> None:
    """Draw one picture of a running session."""
    app = PpscopeApp(session, colours="full")
    async with app.run_test(size=shot.size) as pilot:
        await pilot.pause(1.0)
        for key in shot.keys:
            await pilot.press(key)
        await pilot.pause(shot.settle_s)
        svg = app.export_screenshot(title=f"ppscope – {shot.name}")
        (FOLDER / f"{shot.name}.svg").write_text(tidy(svg), encoding="utf-8")


def scenario(name: str, shots: tuple[Shot, ...]) -> None:
    """Watch one scenario, then take its pictures."""
    with emulator.start(name) as server:
        stream = CollectorProcess(["--pid", str(server.pid)])
        session = Session(stream)
        try:
            end = wait_for_server(session, stream)
            if end is not None:
                sys.exit(f"screenshots: {end.message}")
            deadline = time.monotonic() + WATCH_S
            while time.monotonic() < deadline:
                stream.wait(0.2)
                session.poll()
                session.screen()
                time.sleep(0.3)
            for shot in shots:
                asyncio.run(shoot(session, shot))
        finally:
            session.close()


def main(names: list[str]) -> None:
    """Make all pictures, or those of the named scenarios."""
    FOLDER.mkdir(exist_ok=True)
    for name, shots in SHOTS.items():
        if not names or name in names:
            scenario(name, shots)
            print(f"screenshots: {', '.join(shot.name for shot in shots)}")


if __name__ == "__main__":
    main(sys.argv[1:])

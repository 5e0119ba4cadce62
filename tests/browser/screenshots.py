"""Makes the pictures of the snapshot page in screenshots/ anew: the demo through the real commands, in headless Chromium."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from ppscope import emulator
from tests.browser.chromium import BINARY, Chromium
from tests.shared import ROOT
from tests.terminal.terminal import PPSCOPE

FOLDER = ROOT / "screenshots"
SECONDS = 12


def main() -> int:
    """Write snapshot-light.png, snapshot-dark.png, snapshot-phone.png; 3 without a browser."""
    if BINARY is None:
        sys.stderr.write("no Chromium here (Debian: apt-get install chromium)\n")
        return 3
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "serial.html"
        with emulator.start("serial", 8) as server:
            command = [
                str(PPSCOPE),
                "snapshot",
                str(server.pid),
                "-o",
                str(page),
                "--seconds",
                str(SECONDS),
                "--redact-paths",
            ]
            subprocess.run(command, check=True)
        with Chromium(Path(scratch) / "profile") as browser:
            browser.size(1280, 1640)
            browser.open(page)
            browser.scheme("light")
            browser.screenshot(FOLDER / "snapshot-light.png", whole=False)
            browser.size(1280, 1000)
            browser.scheme("dark")
            browser.run("document.getElementById('timeline').scrollIntoView()")
            browser.settle()
            browser.screenshot(FOLDER / "snapshot-dark.png", whole=False)
            browser.size(390, 844, phone=True)
            browser.open(page)
            browser.scheme("light")
            browser.run("document.getElementById('timeline').scrollIntoView()")
            browser.settle()
            browser.screenshot(FOLDER / "snapshot-phone.png", whole=False)
            if browser.said:
                sys.stderr.write("\n".join(browser.said) + "\n")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

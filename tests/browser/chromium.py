"""Headless Chromium, asked over a pair of pipes (DevTools protocol): pages loaded, keys pressed, what it said and asked for."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

BINARY = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
needs_chromium = pytest.mark.skipif(BINARY is None, reason="no Chromium here (Debian: apt-get install chromium)")
Json = dict[str, Any]

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


class Chromium:
    """One browser with one page. `said` is what the console and uncaught errors said, `asked` every URL that was requested."""

    def __init__(self, profile: Path, width: int = 1440, height: int = 1000) -> None:
        assert BINARY is not None
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # The protocol's pipes are file descriptors 3 and 4 of the browser.
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        command = [
            "bash",
            "-c",
            shell,
            "chromium",
            BINARY,
            *_FLAGS,
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
        ]
        self._process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.said: list[str] = []
        self.asked: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            self.call(f"{domain}.enable")
        self.size(width, height)

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and everything of it."""
        self._session = None
        try:
            self._write({"id": 0, "method": "Browser.close"})
            self._process.wait(5)
        except (OSError, subprocess.TimeoutExpired):
            os.killpg(self._process.pid, 9)
            self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def _write(self, message: Json) -> None:
        os.write(self._out, json.dumps(message).encode() + b"\0")

    def _read(self) -> Json:
        while b"\0" not in self._buffer:
            data = os.read(self._in, 1 << 20)
            if not data:
                raise RuntimeError("Chromium ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        read: Json = json.loads(message)
        return read

    def call(self, method: str, **parameters: Any) -> Json:
        """One command and its answer; what the page says meanwhile is kept."""
        self._number += 1
        message: Json = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._write(message)
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: Json = answer["result"]
                return result
            self._note(answer)

    def _note(self, event: Json) -> None:
        name, parameters = event.get("method"), event.get("params", {})
        if name == "Runtime.exceptionThrown":
            self.said.append(parameters["exceptionDetails"].get("exception", {}).get("description", str(parameters)))
        elif name == "Runtime.consoleAPICalled":
            self.said.append(" ".join(str(item.get("value")) for item in parameters["args"]))
        elif name == "Log.entryAdded":
            self.said.append(parameters["entry"]["text"])
        elif name == "Network.requestWillBeSent":
            self.asked.append(parameters["request"]["url"])

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, page: Path | str, timeout_s: float = 20.0) -> None:
        """Load a page of ours and wait until it is drawn."""
        url = page if isinstance(page, str) else page.absolute().as_uri()
        self.call("Page.navigate", url=url)
        self.wait_for(lambda: self.run("document.documentElement?.dataset.ready || ''"), timeout_s)

    def wait_for(self, condition: Callable[[], object], timeout_s: float = 10.0) -> None:
        """Wait until something is true."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not in time; the page said: {self.said}"
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """Press one key on whatever has the focus."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        code = {
            "Enter": 13,
            "Tab": 9,
            "Escape": 27,
            "ArrowLeft": 37,
            "ArrowUp": 38,
            "ArrowRight": 39,
            "ArrowDown": 40,
        }.get(key, 0)
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)
        self.settle()

    def move(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def settle(self) -> None:
        """Wait until two frames have been drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        """Give the page another size."""
        scale = 2 if phone else 1
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )

    def scheme(self, name: str) -> None:
        """`light` or `dark`, as the system would ask for."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])
        self.settle()

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """A picture of the page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 12000), "scale": 1}
        extra: Json = {"clip": clip, "captureBeyondViewport": True} if whole else {}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **extra)["data"]))

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def accessible(self) -> list[tuple[str, str]]:
        """(role, name) of everything in the accessibility tree."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], str(node.get("name", {}).get("value", "")))
            for node in nodes
            if not node.get("ignored") and "role" in node
        ]

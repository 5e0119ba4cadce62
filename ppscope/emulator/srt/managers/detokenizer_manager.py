"""The detokenizer: here it only waits, and tidies up when the launcher is gone without having done so."""

# ruff: noqa: TID252 - these modules run under SGLang's own package names.
from __future__ import annotations

import shutil
import signal

from ppscope.emulator.process_title import allow_tracers, set_title

from ...torch.distributed.distributed_c10d import Link


class DetokenizerManager:
    """Waits on a pipe whose only writer is the launcher."""

    def __init__(self, launcher: Link, folder: str) -> None:
        self._launcher, self._folder = launcher, folder

    def event_loop(self) -> None:
        """Wait for the launcher's end, then remove the private folder."""
        self.recv_pyobj()
        shutil.rmtree(self._folder, ignore_errors=True)

    def recv_pyobj(self) -> None:
        """Block until the pipe closes."""
        try:
            self._launcher.recv()
        except EOFError:
            return


def run_detokenizer_process(launcher: Link, folder: str, pipe_writer: Link) -> None:
    """Be the detokenizer. It outlives the launcher for a moment, on purpose: somebody has to remove the folder."""
    # A terminal sends its interrupt to the whole group; ending is the launcher's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    allow_tracers()
    set_title("sglang::detokenizer")
    pipe_writer.send({"status": "ready"})
    DetokenizerManager(launcher, folder).event_loop()

"""A dump that ends at the very moment it is given up must not end the source with it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from ppscope.sources import stacks_dump_run
from ppscope.sources.stacks_dump_run import run_dump


def test_a_dump_that_ends_as_it_is_given_up_is_reaped_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "py-spy"
    binary.write_text("#!/bin/sh\nexit 0\n")
    binary.chmod(0o755)

    def given_up(descriptor: int, deadline_ns: int, stopping: threading.Event) -> tuple[bytes, bool]:
        time.sleep(0.3)  # it has ended by now
        return b"", False

    monkeypatch.setattr(stacks_dump_run, "_read_to_end", given_up)
    output = run_dump(str(binary), os.getpid(), 3.0, threading.Event())
    assert output.trouble is not None
    assert output.trouble.kind == "hung"

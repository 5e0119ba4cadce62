"""Samplers ask for a short slice, and for nothing else."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys

import pytest

from ppscope.sources.stacks_pyspy import spawn
from ppscope.sources.stacks_slice import ATTR, SET_ATTR, SLICE_NS

# The child that starts it has the niceness and policy given; what it starts must have them too.
STARTER = """
import os, subprocess, sys
{prepare}
from ppscope.sources.stacks_pyspy import spawn
child = spawn([sys.executable, "-c", "import os; print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0))"], subprocess.PIPE)
print(child.communicate()[0].decode().strip())
"""


def attributes(pid: int) -> tuple[int, ...]:
    number = SET_ATTR.get(platform.machine())
    if number is None:
        pytest.skip("no number of sched_getattr for this machine")
    buffer = ctypes.create_string_buffer(ATTR.size)
    if ctypes.CDLL(None).syscall(number + 1, pid, buffer, ATTR.size, 0):
        pytest.skip("this kernel does not tell")
    return tuple(ATTR.unpack(buffer.raw))


def test_a_sampler_has_a_short_slice_where_the_kernel_grants_one() -> None:
    with spawn(
        [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(30)"], subprocess.PIPE
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"up\n"
            mine, slice_ns = attributes(os.getpid()), attributes(child.pid)[5]
        finally:
            child.kill()
    version = tuple(int(part) for part in platform.release().split(".")[:2])
    if version < (6, 12):
        assert slice_ns in (0, SLICE_NS)
    else:
        assert slice_ns == SLICE_NS
    assert attributes(os.getpid()) == mine, "our own is as it was"


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [("", None), ("os.nice(7)", "nice"), ("os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))", "batch")],
)
def test_niceness_and_policy_stay(prepare: str, expected: str | None) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTER.format(prepare=prepare)], capture_output=True, text=True, check=True
    )
    nice, policy = map(int, done.stdout.split())
    base = os.getpriority(os.PRIO_PROCESS, 0)
    assert nice == (min(base + 7, 19) if expected == "nice" else base)
    assert policy == (os.SCHED_BATCH if expected == "batch" else os.sched_getscheduler(0))

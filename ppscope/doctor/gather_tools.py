"""Facts about py-spy and NVML; each is asked in a child that is ended when it does not answer."""

from __future__ import annotations

import shlex
import subprocess
import sys
import threading
from importlib import metadata
from importlib.util import find_spec

from ppscope.doctor.facts import Tools
from ppscope.doctor.parse import version
from ppscope.records import AnyRecord, GpuDevice, Server, SourceStatus
from ppscope.sources.gpu import STALLED_S, GpuSource
from ppscope.sources.stacks_pyspy import find_pyspy

_VERSION_S = 5.0
_NVML_S = STALLED_S + 1.5


def tools(*, ask_nvml: bool) -> Tools:
    """Both tools; takes as long as the slower, about five seconds at most."""
    binary = find_pyspy()
    known: list[tuple[tuple[int, ...] | None, str]] = []
    asking = threading.Thread(target=lambda: known.append(_pyspy_version(binary)), daemon=True)
    asking.start()
    state, message, remedy, devices = _nvml() if ask_nvml else (None, "", "", [])
    asking.join(_VERSION_S + 1.0)
    found, trouble = known[0] if known else (None, "it does not answer")
    return Tools(
        pyspy=binary,
        pyspy_version=found,
        pyspy_trouble=trouble,
        nvml_state=state,
        nvml_message=message,
        nvml_remedy=remedy,
        driver=next((device.driver_version for device in devices if device.driver_version), None),
        binding=_binding(),
        mig=tuple(sorted(device.index for device in devices if device.mig)),
        install=_install(),
    )


def _pyspy_version(binary: str | None) -> tuple[tuple[int, ...] | None, str]:
    if binary is None:
        return None, ""
    try:
        done = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, errors="replace", timeout=_VERSION_S, check=False,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, "it does not answer"
    except OSError as error:
        return None, error.strerror or str(error)
    return version(done.stdout), (done.stderr.strip().splitlines() or [""])[0][:200]


def _nvml() -> tuple[str | None, str, str, list[GpuDevice]]:
    """State, message and remedy as the gpu source tells them first, and the GPUs it found until then."""
    said = threading.Event()
    statuses: list[SourceStatus] = []
    devices: list[GpuDevice] = []

    def emit(record: AnyRecord) -> None:
        if isinstance(record, GpuDevice):
            devices.append(record)
        elif isinstance(record, SourceStatus):
            statuses.append(record)
            said.set()

    source = GpuSource(emit)
    source.start(Server(0, 0, 0, "node", "serving", (), 1, 1, 1))
    said.wait(_NVML_S)
    source.stop()
    if not statuses:
        return None, "", "", devices
    first = statuses[0]
    return first.state, first.message, first.remedy, devices


def _install() -> str:
    python = shlex.quote(sys.executable)
    # An environment that uv made has no pip of its own.
    return f"{python} -m pip install" if find_spec("pip") is not None else f"uv pip install --python {python}"


def _binding() -> str | None:
    try:
        return metadata.version("nvidia-ml-py")
    except metadata.PackageNotFoundError:
        return None

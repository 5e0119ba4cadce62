"""The tools on this node: py-spy against the target's Python, NVML against its driver, shared memory."""

from __future__ import annotations

from ppscope.doctor.facts import Check, Facts
from ppscope.doctor.parse import version
from ppscope.sources.stacks_pyspy import OLDEST_PYTHON, PYTHON_SINCE, USUAL_BUILD

NEWEST_PYTHON = max(PYTHON_SINCE)


def _install(facts: Facts, words: str) -> str:
    return f"{facts.tools.install} {words}"


def pyspy(facts: Facts) -> Check:
    """Whether there is a py-spy that starts."""
    tools = facts.tools
    if tools.pyspy is None:
        return Check(
            "pyspy.present", "problem", "py-spy is not installed beside ppscope nor on PATH", _install(facts, "py-spy")
        )
    if tools.pyspy_version is None:
        said = f"{tools.pyspy} does not start: {tools.pyspy_trouble or 'it says no version'}"
        return Check("pyspy.present", "problem", said, _install(facts, "--force-reinstall py-spy"))
    return Check("pyspy.present", "ok", f"py-spy {_dotted(tools.pyspy_version)}")


def python(facts: Facts) -> Check | None:
    """Whether that py-spy reads the Python the server runs on."""
    target, has = facts.target, facts.tools.pyspy_version
    if target is None:
        return None
    if target.python is None:
        return Check("pyspy.python", "unknown", "the Python version of the server cannot be told from its files")
    said = f"the server runs on Python {_dotted(target.python)}"
    if target.free_threaded:
        return Check(
            "pyspy.python", "problem", f"{said}, a free-threaded build, whose stacks py-spy cannot read",
            USUAL_BUILD,
        )  # fmt: skip
    if target.python > NEWEST_PYTHON or target.python < OLDEST_PYTHON:
        known = f"{_dotted(OLDEST_PYTHON)} to {_dotted(NEWEST_PYTHON)}"
        return Check(
            "pyspy.python",
            "problem",
            f"{said}; py-spy reads {known}",
            _install(facts, "-U py-spy") + "  # once there is one that knows it",
        )
    needed = PYTHON_SINCE.get(target.python)
    if needed is not None and has is not None and has < needed:
        return Check(
            "pyspy.python",
            "problem",
            f"{said}, which py-spy reads from {_dotted(needed)} on; here is {_dotted(has)}",
            _install(facts, "-U py-spy"),
        )
    return Check("pyspy.python", "ok", said)


def nvml(facts: Facts) -> Check:
    """How NVML answers; a node without it can still be observed."""
    tools, target = facts.tools, facts.target
    if target is not None and target.emulated:
        return Check("gpu.nvml", "info", "the server's GPUs are emulated: NVML is not asked")
    state, said, remedy = tools.nvml_state, tools.nvml_message, tools.nvml_remedy
    if remedy.startswith("pip install "):
        remedy = _install(facts, remedy.removeprefix("pip install "))
    if state is None:
        return Check("gpu.nvml", "unknown", "NVML said nothing in time", "nvidia-smi")
    if state == "ok":
        return Check("gpu.nvml", "ok", said)
    if state == "off" and target is not None and target.device not in (None, "cuda"):
        return Check("gpu.nvml", "info", f"{said}; the server runs on {target.device}")
    if state == "off" and target is None:
        return Check("gpu.nvml", "info", said, remedy)
    if state == "degraded" and not remedy:
        return Check("gpu.nvml", "info", f"{said}: drawn as –, never as 0")
    return Check("gpu.nvml", "problem", said, remedy)


def driver(facts: Facts) -> Check | None:
    """The binding against the driver: one that is older than it reads the process list wrongly (nvitop#75)."""
    tools = facts.tools
    if tools.driver is None:
        return None
    ours, theirs = version(tools.binding or ""), version(tools.driver)
    said = f"driver {tools.driver}, nvidia-ml-py {tools.binding or '–'}"
    if ours is None or theirs is None:
        return Check("gpu.driver", "unknown", said)
    # nvidia-ml-py is numbered CUDA.DRIVER.PATCH.
    if ours[1] < 535 <= theirs[0]:
        return Check(
            "gpu.driver",
            "problem",
            f"{said}: too old to read this driver's list of processes",
            _install(facts, "-U nvidia-ml-py"),
        )
    return Check("gpu.driver", "ok", said)


def mig(facts: Facts) -> Check | None:
    """GPUs cut into instances give no utilisation."""
    if not facts.tools.mig:
        return None
    which = ", ".join(map(str, facts.tools.mig))
    return Check(
        "gpu.mig",
        "info",
        f"MIG is on for GPU {which}: utilisation and power of an instance are not to be had and drawn as –",
    )


def shm(facts: Facts) -> Check:
    """Where the exact probe (`ppscope launch`) keeps its rings."""
    if facts.shm is None:
        return Check("shm", "unknown", "/dev/shm was not tried")
    if facts.shm:
        remedy = "in a container: docker run --shm-size 1g; only `ppscope launch` needs it"
        return Check("shm", "problem", f"/dev/shm: {facts.shm}", remedy)
    return Check("shm", "ok", "/dev/shm can be written to")


def _dotted(parts: tuple[int, ...]) -> str:
    return ".".join(map(str, parts))

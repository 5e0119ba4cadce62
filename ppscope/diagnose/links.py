"""How the GPUs of neighbouring stages reach each other, by NVML."""

from __future__ import annotations

from ppscope.diagnose import say
from ppscope.diagnose.evidence import Evidence, GpuEvidence

_SHOWN = 4


def links(evidence: Evidence) -> list[str]:
    """One line about the links between the stages, and one a GPU whose PCIe link runs below what it can; none where nothing is told."""
    gpus = {stage.pp: rank.gpu for stage in evidence.stages for rank in stage.ranks[:1] if rank.gpu is not None}
    hops = []
    for pp, gpu in sorted(gpus.items()):
        following = gpus.get(pp + 1)
        link = _link(gpu, following) if following is not None else None
        if following is not None and link is not None:
            hops.append(f"GPU {gpu.index} to {following.index} {link}")
    slow = [text for _, gpu in sorted(gpus.items()) if (text := _below(gpu)) is not None]
    source = say.gpu_source(evidence)
    lines = [f"links between neighbouring stages: {_some(hops)} ({source})"] if hops else []
    return [*lines, *([f"PCIe below what it can: {_some(slow)} ({source})"] if slow else [])]


def _link(gpu: GpuEvidence, other: GpuEvidence) -> str | None:
    """`NVLINK`, or the ancestor that the two have in common; None where NVML does not say."""
    told = dict(gpu.device.p2p) if gpu.device is not None else {}
    link = told.get(other.index)
    return None if link in (None, "NS") else link


def _below(gpu: GpuEvidence) -> str | None:
    device = gpu.device
    if device is None or None in (gpu.pcie_gen, gpu.pcie_width, device.pcie_gen_max, device.pcie_width_max):
        return None
    now, most = (gpu.pcie_gen, gpu.pcie_width), (device.pcie_gen_max, device.pcie_width_max)
    if now == most:
        return None
    return f"GPU {gpu.index} gen {now[0]} ×{now[1]} of gen {most[0]} ×{most[1]}"


def _some(texts: list[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more

"""Which variables of a process's environment are looked at: settings of CUDA, SGLang and its libraries, our own, never the rest."""

from __future__ import annotations

from collections.abc import Mapping

from ppscope.target.redact import redact_mapping

_NAMES = frozenset(
    {
        "CUDA_DEVICE_ORDER",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_MODULE_LOADING",
        "CUDA_VISIBLE_DEVICES",
        "GLOO_SOCKET_IFNAME",
        "HF_HOME",
        "HF_HUB_CACHE",
        "HIP_VISIBLE_DEVICES",
        "HUGGINGFACE_HUB_CACHE",
        "NVIDIA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
        "PPSCOPE_EMULATED_GPUS",
        "PPSCOPE_PROBE",
        "ROCR_VISIBLE_DEVICES",
    }
)
_PREFIXES = ("FLASHINFER_", "NCCL_", "PYTHON", "PYTORCH_", "SGLANG_", "SGL_", "TORCH", "TRITON_")
_RANK_ENV = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "SGLANG_ONE_VISIBLE_DEVICE_PER_PROCESS")


def kept_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The launcher's known variables, with secrets removed."""
    known = {name: value for name, value in environ.items() if name in _NAMES or name.startswith(_PREFIXES)}
    return {name: str(value) for name, value in redact_mapping(known).items()}


def rank_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a scheduler's own environment says about its GPU; setproctitle overwrites its front, so parts may be missing."""
    return {name: environ[name] for name in _RANK_ENV if name in environ}

"""Rank → GPU, by order of trust: NVML's process table, then gpu_id from a stack dump, then title and launch arguments.

A pure function over what was read elsewhere. A CUDA ordinal is NVML's index only under CUDA_DEVICE_ORDER=PCI_BUS_ID (CUDA's
own default sorts by speed), so otherwise the index stays None unless a UUID or a single GPU says which one it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ppscope.records import GpuDevice, GpuRef, Rank, RankKey, Server
from ppscope.target.arguments import LaunchArguments


class Placement(NamedTuple):
    """The settings that place ranks on GPUs; sizes are those of the whole server, `node_rank` is this node's."""

    pp_size: int = 1
    tp_size: int = 1
    dp_size: int = 1
    nnodes: int = 1
    node_rank: int = 0
    base_gpu_id: int = 0
    gpu_id_step: int = 1
    dp_attention: bool = False

    @classmethod
    def of(cls, arguments: LaunchArguments, pp_size: int, tp_size: int, dp_size: int, dp_attention: bool) -> Placement:
        """Arguments as given, with SGLang's defaults, for sizes that are known better from titles."""
        return cls(
            pp_size=max(pp_size, 1),
            tp_size=max(tp_size, 1),
            dp_size=max(dp_size, 1),
            nnodes=max(arguments.nnodes or 1, 1),
            node_rank=arguments.node_rank or 0,
            base_gpu_id=arguments.base_gpu_id or 0,
            gpu_id_step=arguments.gpu_id_step or 1,
            dp_attention=dp_attention,
        )

    @property
    def pp_per_node(self) -> int:
        """Pipeline ranks on one node."""
        return max(self.pp_size // self.nnodes, 1)

    @property
    def tp_per_node(self) -> int:
        """Tensor ranks of one pipeline rank on one node."""
        return max(self.tp_size // max(self.nnodes // self.pp_size, 1), 1)

    @property
    def ranks_on_node(self) -> int:
        """Schedulers that this node runs once it is up."""
        replicas = 1 if self.dp_attention else self.dp_size
        return self.pp_per_node * self.tp_per_node * replicas


def gpu_id(key: RankKey, place: Placement) -> int:
    """The gpu_id SGLang gives a rank: an index into CUDA_VISIBLE_DEVICES.

    0.5.6 to 0.5.23 entrypoints/engine.py (0.5.23: 935-938): the step multiplies the TP term only. Plain DP replicas follow each other
    (managers/data_parallel_controller.py, running base_gpu_id).
    """
    replica = 0 if place.dp_attention else key.dp * place.tp_size * place.pp_size * place.gpu_id_step
    pp_term = (key.pp % place.pp_per_node) * place.tp_per_node
    return place.base_gpu_id + replica + pp_term + (key.tp % place.tp_per_node) * place.gpu_id_step


def visible_devices(value: str | None) -> tuple[str, ...] | None:
    """Entries of CUDA_VISIBLE_DEVICES that CUDA honours: it stops at the first invalid one. None when the variable is not set."""
    if value is None:
        return None
    entries: list[str] = []
    for entry in (item.strip() for item in value.split(",")):
        if not ((entry.isascii() and entry.isdigit()) or entry.startswith(("GPU-", "MIG-"))) or entry in entries:
            break
        entries.append(entry)
    return tuple(entries)


def map_gpus(
    ranks: Sequence[Rank],
    place: Placement,
    env: Mapping[str, str],
    *,
    device: str | None = None,
    devices: Sequence[GpuDevice] = (),
    pids: Mapping[int, Collection[int] | None] | None = None,
    foreign_pids: bool = False,
    dumps: Mapping[RankKey, int] | None = None,
    rank_env: Mapping[RankKey, Mapping[str, str]] | None = None,
) -> dict[RankKey, GpuRef]:
    """The GPU of every rank for which one is known.

    `env` is the launcher's environment, `rank_env` a scheduler's own where it could be read (it shows what the launcher changed
    before the spawn). `devices` and `pids` (by NVML index) are NVML's; `foreign_pids` says that NVML names pids that do not
    exist here, so that it speaks of another pid namespace and a match may be chance. `dumps` holds gpu_id as
    `run_scheduler_process` received it. Where nothing says that GPUs are used only NVML counts, on a CPU server nothing.
    """
    out: dict[RankKey, GpuRef] = {}
    emulated = "PPSCOPE_EMULATED_GPUS" in env or any(item.emulated for item in devices)
    expected: dict[RankKey, GpuRef] = {}
    for rank in ranks:
        own = {**env, **(rank_env or {}).get(rank.key, {})}
        dumped = (dumps or {}).get(rank.key)
        ordinal = gpu_id(rank.key, place) if dumped is None else dumped
        if emulated:
            known = {item.index: item.uuid for item in devices if item.emulated}
            out[rank.key] = GpuRef(ordinal, known.get(ordinal), ordinal, "emulated")
        elif device not in (None, "cpu"):
            expected[rank.key] = _by_ordinal(
                ordinal, own, devices, "title_formula" if dumped is None else "dump_locals"
            )
    if emulated:
        return out
    out.update(expected)
    if device != "cpu" and pids:
        out.update(_by_pid(ranks, devices, pids, expected, foreign_pids))
    return out


def _by_ordinal(ordinal: int, env: Mapping[str, str], devices: Sequence[GpuDevice], source: str) -> GpuRef:
    visible = visible_devices(env.get("CUDA_VISIBLE_DEVICES"))
    entry: str | None = str(ordinal)
    if visible is not None:
        # SGLANG_ONE_VISIBLE_DEVICE_PER_PROCESS: the process sees one device, whatever its number in the launcher's list
        alone = len(visible) == 1 and env.get("SGLANG_ONE_VISIBLE_DEVICE_PER_PROCESS", "").lower() in (
            "1",
            "true",
            "yes",
        )
        entry = visible[0] if alone else visible[ordinal] if 0 <= ordinal < len(visible) else None
    if entry is None:
        return GpuRef(None, None, ordinal, source)
    if entry.isdigit():
        index = int(entry) if env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" else None
        if len(devices) == 1:
            index = devices[0].index
        uuid = next((item.uuid for item in devices if item.index == index), None)
        return GpuRef(index, uuid, ordinal, source)
    # MIG-GPU-<uuid>/gi/ci names its GPU; the newer MIG-<uuid> does not
    wanted = entry.removeprefix("MIG-").split("/")[0] if entry.startswith("MIG-GPU-") else entry
    fitting = [item for item in devices if item.uuid.startswith(wanted)]
    if len(fitting) == 1:
        uuid = entry if entry.startswith("MIG-") else fitting[0].uuid
        return GpuRef(fitting[0].index, uuid, ordinal, source)
    return GpuRef(devices[0].index if len(devices) == 1 else None, entry, ordinal, source)


def _by_pid(
    ranks: Sequence[Rank],
    devices: Sequence[GpuDevice],
    pids: Mapping[int, Collection[int] | None],
    expected: Mapping[RankKey, GpuRef],
    foreign_pids: bool,
) -> dict[RankKey, GpuRef]:
    """Ranks that NVML lists. A number alone proves nothing across pid namespaces: there every rank must be listed, on GPUs of its own."""
    uuids = {item.index: item.uuid for item in devices}
    ours = {rank.key: _listed(rank.pid, pids) for rank in ranks}
    if not foreign_pids:
        return _choose(ranks, ours, uuids, expected)
    for listed in (ours, {rank.key: _listed(rank.ns_pid, pids) for rank in ranks}):
        chosen = _choose(ranks, listed, uuids, expected)
        agreed = {key: ref for key, ref in chosen.items() if _same(ref, expected.get(key))}
        whole = len(ranks) > 1 and len({ref.index for ref in chosen.values()}) == len(ranks)
        contradicted = any(not _same(ref, expected.get(key), unknown=True) for key, ref in chosen.items())
        if whole and not contradicted:
            return chosen
        if agreed:
            return agreed
    return {}


def _listed(pid: int | None, pids: Mapping[int, Collection[int] | None]) -> list[int]:
    return [] if pid is None else [index for index, listed in sorted(pids.items()) if listed and pid in listed]


def _choose(
    ranks: Sequence[Rank],
    listed: Mapping[RankKey, Sequence[int]],
    uuids: Mapping[int, str],
    expected: Mapping[RankKey, GpuRef],
) -> dict[RankKey, GpuRef]:
    """One GPU a rank. One with contexts on several (peer copies, a stray context on GPU 0) takes the expected, or the one left."""
    chosen: dict[RankKey, int] = {key: found[0] for key, found in listed.items() if len(found) == 1}
    for rank in ranks:
        found = listed[rank.key]
        if len(found) < 2:
            continue
        wanted = expected.get(rank.key)
        left = [index for index in found if index not in chosen.values()]
        if wanted is not None and wanted.index is not None and wanted.index in found:
            chosen[rank.key] = wanted.index
        elif len(left) == 1:
            chosen[rank.key] = left[0]
    refs = {}
    for key, index in chosen.items():
        known = expected.get(key)
        refs[key] = GpuRef(index, uuids.get(index), known.cuda_ordinal if known else None, "nvml_pid")
    return refs


def _same(ref: GpuRef, other: GpuRef | None, unknown: bool = False) -> bool:
    if other is None or (other.index is None and other.uuid is None):
        return unknown
    return ref.uuid == other.uuid if other.uuid is not None and ref.uuid is not None else ref.index == other.index


def with_gpus(server: Server, gpus: Mapping[RankKey, GpuRef]) -> Server:
    """The server with these GPUs at its ranks; ranks that are not named keep what they have."""
    ranks = tuple(msgspec.structs.replace(rank, gpu=gpus.get(rank.key, rank.gpu)) for rank in server.ranks)
    return msgspec.structs.replace(server, ranks=ranks)

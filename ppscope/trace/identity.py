"""Which rank of which run a trace file is, from its name, its process titles and what torch.distributed wrote into it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from ppscope.trace.reader import RankTrace

# SGLang: `{prefix-}{profile_id}-TP-0[-DP-0][-PP-0][-EP-0][-DECODE|-EXTEND].trace.json.gz`; the PP part only when there are stages.
_SGLANG_FILE = re.compile(
    r"^(?P<run>.*?)-TP-(?P<tp>\d{1,6})(?P<parts>(?:-(?:DP|PP|EP|CP)-\d{1,6})*)(?P<phase>-EXTEND|-DECODE)?\.trace\.json"
)
_PART = re.compile(r"-(DP|PP|EP|CP)-(\d{1,6})")
_TITLE_PART = re.compile(r"[_ ](PP|TP|DP|EP)(\d{1,6})(?!\d)")
_DIGITS = re.compile(r"\d+")


class Identity(msgspec.Struct, frozen=True):
    """`run` groups the files of one profile. Each other field is None when nothing in the file tells it.

    `rank` and `world_size` are torch.distributed's; `stage`, `tp` and `dp` SGLang's pipeline, tensor and data ranks.
    """

    run: str
    rank: int | None
    world_size: int | None
    stage: int | None
    tp: int | None
    dp: int | None
    host: str | None
    title: str | None
    device: str | None


def identify(trace: RankTrace) -> Identity:
    """Works out the identity of one file."""
    distributed = trace.metadata.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    rank, world_size = _number(distributed.get("rank")), _number(distributed.get("world_size"))
    places: dict[str, int] = {}
    title = _title(trace)
    if title is not None:
        places |= {key: int(value) for key, value in _TITLE_PART.findall(title)}
    if "PP" not in places and (stage := _stage_of_group(distributed, rank)) is not None:
        places["PP"] = stage
    name = trace.path.name
    match = _SGLANG_FILE.match(name)
    if match:
        places |= {"TP": int(match["tp"])} | {key: int(value) for key, value in _PART.findall(match["parts"])}
        run = f"{match['run']}{match['phase'] or ''}"
        # The name has a PP part only where there are several stages.
        places.setdefault("PP", 0)
    else:
        run = _DIGITS.sub("#", name) + f" of {world_size}" if world_size else name
    host = trace.metadata.get("host_name")
    return Identity(
        run=f"{trace.path.parent}/{run}",
        rank=rank,
        world_size=world_size,
        stage=places.get("PP"),
        tp=places.get("TP"),
        dp=places.get("DP"),
        host=host if isinstance(host, str) else None,
        title=title,
        device=_device(trace),
    )


def run_name(identity: Identity) -> str:
    """The run's name without its folder, and once where a profile was named by its prefix and again by its id."""
    name = Path(identity.run).name
    first, second = name[: len(name) // 2], name[len(name) // 2 + 1 :]
    return first if first and name == f"{first}-{second}" and first == second else name


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _title(trace: RankTrace) -> str | None:
    spans = {trace.threads[thread][0] for thread in trace.spans.thread}
    for pid, title in trace.titles.items():
        if trace.labels.get(pid) == "CPU" or pid in spans:
            return title
    return next(iter(trace.titles.values()), None)


def _stage_of_group(distributed: dict[str, object], rank: int | None) -> int | None:
    groups = distributed.get("pg_config")
    if rank is None or not isinstance(groups, list):
        return None
    for group in groups:
        if not isinstance(group, dict) or str(group.get("pg_desc")).split(":")[0] != "pp":
            continue
        ranks = group.get("ranks")
        if isinstance(ranks, list) and len(ranks) > 1 and rank in ranks:
            return ranks.index(rank)
    return None


def _device(trace: RankTrace) -> str | None:
    devices = trace.metadata.get("deviceProperties")
    if not isinstance(devices, list) or not devices:
        return None
    named = [properties for properties in devices if isinstance(properties, dict) and properties.get("name")]
    used = {device for device, _ in trace.lanes}
    for properties in named:
        if _number(properties.get("id")) in used:
            return str(properties["name"])
    # ROCm numbers its devices differently in the events.
    names = {str(properties["name"]) for properties in named}
    return names.pop() if used and len(names) == 1 else None

"""Feeds each reader of foreign input nearly real input for a while, and prints what came of it as a table.

python -m tests.fuzz                        every target, a minute each
python -m tests.fuzz --seconds 5 metrics    those whose name has the word
python -m tests.fuzz --guided               by coverage, where atheris is installed
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import FrameType

from tests.fuzz.mutate import Mutator
from tests.fuzz.targets import SCRATCH, TARGETS, Target, memory, scratch

HANG_S = 10.0
GUIDED = "| target | inputs | covered | kept as new | peak memory |\n|---|---|---|---|---|"
HEAD = "| target | inputs | crashes | hangs | slowest input | peak memory |\n|---|---|---|---|---|---|"


class Hang(BaseException):
    """An input took too long."""


def _too_long(_number: int, _frame: FrameType | None) -> None:
    raise Hang


def peak_mib() -> float:
    """The most this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fuzz(target: Target, seconds: float, number: int, keep: Path) -> dict[str, object]:
    """Run one target here; what was seen."""
    signal.signal(signal.SIGALRM, _too_long)
    seeds = target.seeds()
    for seed in seeds:
        target.run(seed)
    before = peak_mib()
    mutator, count, hangs, slowest_s, slowest_bytes = Mutator(seeds, number), 0, 0, 0.0, 0
    crashes: dict[str, str] = {}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        data = mutator.next()
        signal.setitimer(signal.ITIMER_REAL, HANG_S)
        started = time.perf_counter()
        try:
            target.run(data)
        except Hang:
            hangs += 1
            _save(keep, f"{target.name}-hang", data)
        except Exception as error:  # noqa: BLE001  every kind is a find
            where = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}"
            if kind not in crashes:
                crashes[kind] = str(_save(keep, f"{target.name}-{len(crashes)}", data))
        took_s = time.perf_counter() - started
        signal.setitimer(signal.ITIMER_REAL, 0)
        count += 1
        if took_s > slowest_s:
            slowest_s, slowest_bytes = took_s, len(data)
    shutil.rmtree(scratch("x").parent, ignore_errors=True)
    return {
        "name": target.name, "inputs": count, "crashes": crashes, "hangs": hangs, "slowest_ms": slowest_s * 1e3,
        "slowest_bytes": slowest_bytes, "before_mib": before, "peak_mib": peak_mib(),
    }  # fmt: skip


def _save(keep: Path, name: str, data: bytes) -> Path:
    path = keep / re.sub(r"\W+", "-", name)
    path.write_bytes(data)
    return path


def row(seen: dict[str, object]) -> str:
    """A line of the table."""
    crashes = seen["crashes"]
    assert isinstance(crashes, dict)
    return (
        f"| {seen['name']} | {seen['inputs']:,} | {len(crashes)} | {seen['hangs']} | {seen['slowest_ms']:.0f} ms,"
        f" {seen['slowest_bytes']:,} bytes | {seen['before_mib']:.0f} → {seen['peak_mib']:.0f} MiB |"
    )


def guided(target: Target, seconds: float, number: int, keep: Path) -> int:
    """Run one target under atheris, which ends the process; its own report is on stderr."""
    atheris = importlib.import_module("atheris")
    corpus = scratch("corpus")
    corpus.mkdir()
    for index, seed in enumerate(target.seeds()):
        (corpus / str(index)).write_bytes(seed)
    for module in [module for name, module in sys.modules.items() if name.startswith("ppscope.")]:
        own = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
        inside = [value for kind in own if isinstance(kind, type) for value in vars(kind).values()]
        for function in filter(inspect.isfunction, [*own, *inside]):
            atheris.instrument_func(function)
    options = [f"-max_total_time={int(seconds)}", f"-timeout={int(HANG_S)}", "-max_len=262144", "-rss_limit_mb=2048"]
    options += [f"-seed={number}", f"-artifact_prefix={keep}/"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], target.run)
    atheris.Fuzz()
    return 0


def guided_row(name: str, said: str) -> str | None:
    """A line of the table out of what libFuzzer says; None when it did not come to its end."""
    done = re.search(r"Done (\d+) runs", said)
    states = re.findall(r"cov: (\d+) ft: \d+ corp: (\d+)/.* rss: (\d+)Mb", said)
    if done is None or not states:
        return None
    covered, kept, _ = states[-1]
    return f"| {name} | {int(done[1]):,} | {covered} | {kept} | {max(int(state[2]) for state in states)} MB |"


def main() -> int:
    """Each target in a process of its own, so that its memory is its own; status 1 when anything was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", default=[""], help="run the targets whose name has one of these")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--guided", action="store_true")
    parser.add_argument("--here", metavar="NAME", help="run this one target in this process")
    parser.add_argument("--keep", type=Path, default=None, help="where inputs that did harm are kept")
    options = parser.parse_args()
    number = random.randrange(1 << 32) if options.seed is None else options.seed
    keep = options.keep or Path(tempfile.mkdtemp(prefix="ppscope-fuzz-"))
    if options.here is not None:
        target = next(target for target in TARGETS if target.name == options.here)
        if options.guided:
            return guided(target, options.seconds, number, keep)
        print(json.dumps(fuzz(target, options.seconds, number, keep)))
        return 0
    found = False
    print(f"seed {number}, {options.seconds:g} s a target\n{GUIDED if options.guided else HEAD}", flush=True)
    for target in TARGETS:
        if not any(word in target.name for word in options.words):
            continue
        command = [sys.executable, "-m", "tests.fuzz", "--here", target.name, "--seconds", str(options.seconds)]
        command += ["--seed", str(number), "--keep", str(keep), *(["--guided"] if options.guided else [])]
        with tempfile.TemporaryDirectory(prefix="ppscope-fuzz-", dir=memory()) as folder:
            environment = {**os.environ, SCRATCH: folder}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if options.guided:
            print(guided_row(target.name, done.stderr) or done.stderr[-2000:], flush=True)
            found = found or done.returncode != 0
        elif done.returncode:
            found = True
            print(f"| {target.name} | it ended with {done.returncode} | | | | |\n{done.stderr[-2000:]}", flush=True)
        else:
            seen = json.loads(done.stdout)
            found = found or bool(seen["crashes"] or seen["hangs"])
            print(row(seen), flush=True)
            for kind, path in seen["crashes"].items():
                print(f"  {kind}: {path}", flush=True)
    return int(found)


if __name__ == "__main__":
    sys.exit(main())

"""Speed and memory of the trace reader beside stdlib json, orjson and HolisticTraceAnalysis, on an enlarged real trace.

`python -P tests/bench/trace.py [--rounds 3] [--megabytes 500] [--hta] [--source FILE.json.gz]`, in an environment with msgspec and isal,
and orjson and HolisticTraceAnalysis if they are to be measured. Every reading is a process of its own; readers take turns, so that a busy
machine is busy for all. Speeds are megabytes of JSON text a second: of wall time, and of CPU time, which a busy machine changes less.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # as a script, for a reader in another environment, this file has no package

from tests.bench.table import Measured, Row, Skip  # noqa: E402

SOURCE = ROOT.parent / "shared/traces/tracelens/inference__xdit_flux.1_aiter_sage__profile_trace_rank_0.json.gz"
CATEGORIES = ("kernel", "Kernel")


def enlarge(source: Path, target: Path, megabytes: int) -> int:
    """Repeats the events of a trace, later and with correlations of their own, until the text is that long; returns its bytes."""
    text = gzip.decompress(source.read_bytes())
    start = text.index(b"[", text.index(b'"traceEvents"')) + 1
    # The list of events ends at the last bracket on a line of its own.
    end = max(text.rfind(b"\n  ]"), text.rfind(b"\n    ]")) if b"\n" in text[start : start + 200] else text.rindex(b"]")
    events = text[start:end].strip().rstrip(b",")
    written = 0
    with gzip.open(target, "wb", compresslevel=6) as file:
        written += file.write(text[:start])
        copy = 0
        while written < megabytes * 1_000_000:
            written += file.write((b",\n  " if copy else b"\n  ") + shifted(events, copy))
            copy += 1
        written += file.write(text[end:])
    return written


def shifted(events: bytes, copy: int) -> bytes:
    """The events a minute later per copy, their correlations out of each other's way."""
    if copy == 0:
        return events
    later, apart = copy * 60_000_000, copy * 100_000_000
    events = re.sub(rb'("ts": )(\d+)', lambda match: b"%b%d" % (match[1], int(match[2]) + later), events)
    return re.sub(rb'("correlation": )(\d+)', lambda match: b"%b%d" % (match[1], int(match[2]) + apart), events)


def read_ppscope(path: Path) -> int:
    from ppscope.trace.reader import read_trace

    return list(read_trace(path).gpu.kind).count(0)


def analyse_ppscope(path: Path) -> int:
    from ppscope.trace.analyse import analyse_file

    return analyse_file(path).kernels.total


def module(name: str) -> Any:
    """A rival, imported where it is measured: none of them need be installed."""
    return importlib.import_module(name)


def read_json(path: Path) -> int:
    with gzip.open(path, "rb") as file:
        return sum(event.get("cat") in CATEGORIES for event in json.load(file)["traceEvents"])


def read_orjson(path: Path) -> int:
    loads = module("orjson").loads
    return sum(event.get("cat") in CATEGORIES for event in loads(gzip.decompress(path.read_bytes()))["traceEvents"])


def read_hta(path: Path) -> int:
    analysis = module("hta.trace_analysis").TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent))
    table = analysis.t.get_trace(0)
    symbols = analysis.t.symbol_table.get_sym_table()
    return sum(str(symbols[number]) in CATEGORIES for number in table["cat"])


def analyse_both(path: Path, parallel: bool) -> int:
    from ppscope.trace.analyse import analyse_file
    from ppscope.trace.batch import analyse_files

    files = [path, path.with_name("other_" + path.name)]
    if not parallel:
        return sum(analysis.kernels.total for analysis in map(analyse_file, files))
    return sum(analysis.kernels.total for analysis in analyse_files(files)[0])


READERS: dict[str, Callable[[Path], int]] = {
    "ppscope, columns built": read_ppscope,
    "ppscope, columns and analysis": analyse_ppscope,
    "stdlib json": read_json,
    "orjson": read_orjson,
    "HolisticTraceAnalysis": read_hta,
    "ppscope, two files, one process": lambda path: analyse_both(path, parallel=False),
    "ppscope, two files, a process each": lambda path: analyse_both(path, parallel=True),
}


def peak_mib() -> float:
    """The largest resident size of this process; getrusage would tell the parent's."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024


def measure_here(name: str, path: Path) -> None:
    """Reads once and prints what it took, as JSON."""
    start, cpu = time.perf_counter(), time.process_time()
    kernels = READERS[name](path)
    took = {"wall_s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu, "kernels": kernels}
    took["peak_mib"] = peak_mib()
    print(json.dumps(took))


def measure(name: str, path: Path, python: str = sys.executable) -> dict[str, Any] | None:
    """Reads once in a process of its own; None where the reader is not installed or fails."""
    command = [python, "-P", __file__, "--one", name, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=None, cwd=ROOT)
    if done.returncode:
        print(f"  {name}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}", file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def reading(megabytes: int, rounds: int, python: str) -> Measured:
    """Speed and memory for the table; the peers run with `python`, which may have them where this one has not."""
    if not SOURCE.exists():
        raise Skip(f"the public traces are not here ({SOURCE.parent})")
    ours, peers = "ppscope, columns built", {"stdlib json": rounds, "orjson": rounds, "HolisticTraceAnalysis": 1}
    notes = [
        f"{SOURCE.name}, its events repeated to {megabytes} MB of JSON; one core, by CPU time; medians of {rounds}."
    ]
    with tempfile.TemporaryDirectory(prefix="ppscope-bench-") as folder:
        path = Path(folder) / "large-TP-0-PP-0.trace.json.gz"
        size = enlarge(SOURCE, path, megabytes) / 1e6
        found = {
            name: [
                run for _ in range(count) if (run := measure(name, path, python if name in peers else sys.executable))
            ]
            for name, count in {ours: rounds, "ppscope, columns and analysis": rounds, **peers}.items()
        }
    speed = {name: f"{size / median(run['cpu_s'] for run in runs):.0f}" for name, runs in found.items() if runs}
    memory = {name: f"{max(run['peak_mib'] for run in runs):.0f}" for name, runs in found.items() if runs}
    notes += [f"{name} is not installed where the peers run." for name in peers if name not in speed]
    rows = [
        Row("torch trace, columns built, MB/s of JSON", speed[ours], "200", {n: speed[n] for n in peers if n in speed}),
        Row("torch trace, the same with the analysis, MB/s", speed["ppscope, columns and analysis"]),
        Row("torch trace, peak memory, MiB", memory[ours], "100", {n: memory[n] for n in peers if n in memory}),
    ]
    return Measured(rows, notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--hta", action="store_true", help="measure HolisticTraceAnalysis too, once: it takes a minute")
    parser.add_argument("--source", type=Path, default=SOURCE)
    parser.add_argument("--one", nargs=2, metavar=("READER", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure_here(options.one[0], Path(options.one[1]))
        return
    if not options.source.exists():
        sys.exit(f"{options.source} is not there; name a real trace with --source")
    with tempfile.TemporaryDirectory(prefix="ppscope-bench-") as folder:
        path = Path(folder) / "large-TP-0-PP-0.trace.json.gz"
        megabytes = enlarge(options.source, path, options.megabytes) / 1e6
        path.with_name("other_" + path.name).hardlink_to(path)
        print(
            f"{options.source.name} enlarged to {megabytes:.0f} MB of JSON, {path.stat().st_size / 1e6:.0f} MB packed"
        )
        runs: dict[str, list[dict[str, Any]]] = {}
        for turn in range(options.rounds):
            for name in READERS:
                if name == "HolisticTraceAnalysis" and (turn or not options.hta):
                    continue
                if (found := measure(name, path)) is not None:
                    runs.setdefault(name, []).append(found)
    show(runs, megabytes)


def show(runs: dict[str, list[dict[str, Any]]], megabytes: float) -> None:
    """Prints medians, and the time per megabyte of each reader in units of the first's in the same round."""
    print(f"{'':36} {'MB/s':>6} {'by CPU':>7} {'MiB':>6} {'kernels':>8} {'time ÷ first':>13} {'CPU ÷ first':>12}")
    first = next(iter(runs.values()))
    for name, found in runs.items():
        size = megabytes * (2 if "two files" in name else 1)
        # The CPU time and memory of children are not the parent's.
        own = "a process each" not in name
        cells = [f"{size / median(run['wall_s'] for run in found):6.0f}"]
        cells.append(f"{size / median(run['cpu_s'] for run in found):7.0f}" if own else f"{'–':>7}")
        cells.append(f"{max(run['peak_mib'] for run in found):6.0f}" if own else f"{'–':>6}")
        cells.append(f"{found[0]['kernels']:8}")
        for key, width in (("wall_s", 13), ("cpu_s", 12)):
            ratio = median(run[key] / base[key] for run, base in zip(found, first, strict=False)) * megabytes / size
            cells.append(f"{ratio:{width}.2f}" if own or key == "wall_s" else f"{'–':>{width}}")
        print(f"{name:36} {' '.join(cells)}")


if __name__ == "__main__":
    main()

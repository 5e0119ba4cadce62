"""Runs every check and writes one JSON object: what was expected, what was seen, and what could not be tried.

`python -m tests.gpu.checks [--dry] OUT`; exit code 1 when a check does not hold.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ppscope.trace.analyse import RankAnalysis, analyse_file
from ppscope.trace.report import make_report
from tests.gpu.workload import Truth, make_up, record

SMI_FIELDS = ("index", "uuid", "name", "power.draw", "memory.used", "memory.total", "temperature.gpu", "clocks.sm")


class Results:
    """Checks by name; nothing that happens in one keeps the others from running."""

    def __init__(self) -> None:
        self.checks: list[dict[str, Any]] = []
        self.skipped: dict[str, str] = {}
        self.measured: dict[str, Any] = {}

    def equal(self, name: str, expected: object, seen: object) -> None:
        """Holds when both are the same."""
        self.checks.append({"name": name, "expected": expected, "seen": seen, "holds": expected == seen})

    def near(self, name: str, expected: float | None, seen: float | None, tolerance: float) -> None:
        """Holds within a tolerance; a figure that neither side has is no check."""
        if expected is None and seen is None:
            self.skipped[name] = "neither side has it"
            return
        holds = expected is not None and seen is not None and abs(expected - seen) <= tolerance
        self.checks.append({"name": name, "expected": expected, "seen": seen, "tolerance": tolerance, "holds": holds})

    def part(self, name: str, run: Callable[[], None]) -> None:
        """Run a part; one that cannot run is skipped with its reason, one that fails is a check that does not hold."""
        began = time.monotonic()
        try:
            run()
        except (ImportError, FileNotFoundError) as error:
            self.skipped[name] = f"{type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001  the other parts count all the same
            self.checks.append({"name": name, "error": f"{type(error).__name__}: {error}"[:500], "holds": False})
        self.measured[f"{name}_s"] = round(time.monotonic() - began, 2)


def trace_checks(results: Results, dry: bool) -> None:
    """Replay against eager: every count is known before."""
    truth = Truth()
    with tempfile.TemporaryDirectory() as folder:
        path, measured = (make_up if dry else record)(Path(folder), truth)
        results.measured |= measured
        analysis = analyse_file(path)
        _count(results, truth, analysis)
        _node_ids(results, truth, json.loads(path.read_bytes()))


def _count(results: Results, truth: Truth, analysis: RankAnalysis) -> None:
    steps = truth.replayed_steps + truth.eager_steps
    replayed = truth.replayed_steps * truth.kernels
    eager = steps * truth.baseline + truth.eager_steps * truth.kernels + truth.leaks
    results.equal("graph launches", truth.replayed_steps, analysis.launches.graph)
    results.equal("kernels replayed", replayed, analysis.kernels.replayed)
    results.equal("kernels eager", eager, analysis.kernels.eager)
    results.equal("kernels of unknown origin", 0, analysis.kernels.unknown)
    results.equal("events lost", 0, analysis.dropped_events)
    verdicts = [step.verdict for step in analysis.steps]
    results.equal("steps", steps, len(verdicts))
    results.equal("steps replayed", truth.replayed_steps - truth.leaks, verdicts.count("replayed"))
    results.equal("steps with a leak", truth.leaks, verdicts.count("leak"))
    results.equal("steps eager", truth.eager_steps, verdicts.count("eager"))
    found = {finding.id for finding in make_report([analysis]).findings}
    results.equal("findings", ["graphs.eager_decode", "graphs.eager_leak"], sorted(found))


def _node_ids(results: Results, truth: Truth, trace: dict[str, Any]) -> None:
    """`graph node id` is there for replayed kernels and zero or absent for the rest."""
    events = [event for event in trace["traceEvents"] if isinstance(event, dict)]
    graphs = {e["args"]["correlation"] for e in events if e.get("name") == "cudaGraphLaunch"}
    kernels = [e["args"] for e in events if e.get("cat") == "kernel"]
    inside = [args for args in kernels if args.get("correlation") in graphs]
    outside = [args for args in kernels if args.get("correlation") not in graphs]
    named = sum(bool(args.get("graph node id")) for args in inside)
    results.equal("replayed kernels with a graph node id", truth.replayed_steps * truth.kernels, named)
    results.equal("eager kernels with a graph node id", 0, sum(bool(args.get("graph node id")) for args in outside))


def timer_checks(results: Results) -> None:
    """The probe's own timing of forwards against CUDA's."""
    import torch

    from ppscope.probe.gpu_timing import Facts, GpuTimer

    seen: list[tuple[int, int]] = []

    def emit(start_ns: int, end_ns: int, facts: Facts) -> None:
        seen.append((start_ns, end_ns))

    timer, why = GpuTimer.if_possible(emit)
    if timer is None:
        raise ImportError(why)
    x = torch.ones(4096, 4096, device="cuda")
    (x @ x).sum().item()
    began_ns = time.monotonic_ns()
    for _ in range(20):
        ticket = timer.before()
        y = x @ x
        if ticket is not None:
            timer.after(ticket, (0, 0, 0, 0, 0, 0))
        torch.cuda.synchronize()
        timer.poll()
    ended_ns = time.monotonic_ns()
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(20):
        y = x @ x
    last.record()
    torch.cuda.synchronize()
    del y
    mean_us = first.elapsed_time(last) / 20 * 1000
    results.equal("forwards timed on the GPU", 20, len(seen))
    timed_us = sum(end - start for start, end in seen) / max(len(seen), 1) / 1000
    results.near("mean forward by the probe, us", round(mean_us, 1), round(timed_us, 1), max(mean_us * 0.3, 20))
    slack_ns = max(timer.error_ns, 0) + 1_000_000
    inside = all(began_ns - slack_ns <= start <= end <= ended_ns + slack_ns for start, end in seen)
    results.equal("GPU times lie within the host's", True, inside)
    results.measured["gpu_timer_error_us"] = timer.error_ns / 1000


def nvml_checks(results: Results) -> None:
    """ppscope's NVML reader against nvidia-smi, which reads the same a moment later."""
    from ppscope.sources.gpu_nvml import NvmlReader

    reader = NvmlReader()
    reader.open()
    devices = {device.index: device for device in reader.devices(time.monotonic_ns())}
    samples = {sample.index: sample for sample in reader.sample(time.monotonic_ns())}
    command = ["nvidia-smi", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    rows = list(csv.reader(text.splitlines(), skipinitialspace=True))
    results.equal("GPUs", len(rows), len(devices))
    for index, uuid, name, power_w, used_mib, total_mib, degrees, clock_mhz in rows:
        device, sample = devices[int(index)], samples[int(index)]
        results.equal(f"gpu {index} uuid", uuid, device.uuid)
        results.equal(f"gpu {index} name", name, device.name)
        total, used = device.memory_total_bytes, sample.memory_used_bytes
        results.near(f"gpu {index} memory total, MiB", _number(total_mib), None if total is None else total / 2**20, 2)
        results.near(f"gpu {index} memory used, MiB", _number(used_mib), None if used is None else used / 2**20, 700)
        results.near(f"gpu {index} power, W", _number(power_w), sample.power_w, 60)
        results.near(f"gpu {index} temperature, C", _number(degrees), sample.temperature_c, 6)
        results.near(f"gpu {index} SM clock, MHz", _number(clock_mhz), sample.sm_clock_mhz, 600)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def main(arguments: list[str]) -> int:
    """Run all parts and write the result."""
    dry = arguments[:1] == ["--dry"]
    out = Path(arguments[-1])
    results = Results()
    results.part("trace", lambda: trace_checks(results, dry))
    if dry:
        results.skipped |= {"timer": "dry run", "nvml": "dry run"}
    else:
        results.part("timer", lambda: timer_checks(results))
        results.part("nvml", lambda: nvml_checks(results))
    failed = [check for check in results.checks if not check["holds"]]
    result = {
        "schema": "ppscope.gpu-checks/1",
        "dry": dry,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "measured": results.measured,
        "skipped": results.skipped,
        "checks": results.checks,
    }
    out.write_text(json.dumps(result, indent=1) + "\n")
    for check in failed:
        print(f"does not hold: {json.dumps(check)}")
    for name, why in results.skipped.items():
        print(f"skipped: {name}: {why}")
    print(f"{len(results.checks) - len(failed)} of {len(results.checks)} checks hold; written to {out}")
    return 1 if failed or not results.checks else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Analyses many files, one process per file."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import msgspec

from ppscope.trace.analyse import RankAnalysis, analyse_file
from ppscope.trace.source import TraceError

# A process costs some 0.15 s to start, which is 30 MB of JSON.
PARALLEL_BYTES = 4 << 20

Report = Callable[[str, int, int], None]


class TraceFiles(msgspec.Struct):
    """Files to read; those in `found` came out of folders, where other files may lie too."""

    named: list[Path]
    found: list[Path]

    @property
    def every(self) -> list[Path]:
        """All of them, each once."""
        return list(dict.fromkeys(self.named + self.found))


def find_files(paths: list[str]) -> TraceFiles:
    """Expands folders into the trace files in them; raises TraceError for a path that is not there or a folder without any.

    Folders below a folder are looked into only when it holds none itself. What SGLang merged from the files of the single ranks
    is left out.
    """
    files = TraceFiles([], [])
    for given in paths:
        path = Path(given)
        if path.is_dir():
            inside = _inside(path.iterdir()) or _inside(path.rglob("*"))
            if not inside:
                raise TraceError(f"{path}: no *.json or *.json.gz trace files in this folder")
            files.found += [file for file in inside if not file.name.startswith("merged-")] or inside
        elif path.exists():
            files.named.append(path)
        else:
            raise TraceError(f"{path}: No such file or directory")
    return files


def _inside(candidates: Iterable[Path]) -> list[Path]:
    return sorted(file for file in candidates if file.name.endswith((".json", ".json.gz")) and file.is_file())


def analyse_files(files: list[Path], report: Report | None = None) -> tuple[list[RankAnalysis], dict[Path, str]]:
    """Analyses files; returns the analyses in the order given, and a line for every file that could not be read.

    `report` is called with (file name, bytes read, bytes in the file); only with several processes does it hear of whole files alone.
    """
    total_bytes = sum(file.stat().st_size for file in files if file.exists())
    workers = min(len(files), os.cpu_count() or 1)
    if workers < 2 or total_bytes < PARALLEL_BYTES:
        return _one_by_one(files, report)
    found: dict[Path, RankAnalysis] = {}
    errors: dict[Path, str] = {}
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            # The largest file first: it decides when all are done.
            ordered = sorted(files, key=lambda file: -file.stat().st_size)
            pending = {pool.submit(analyse_file, file): file for file in ordered}
            for future in as_completed(pending):
                file = pending[future]
                try:
                    found[file] = future.result()
                except TraceError as error:
                    errors[file] = str(error)
                if report is not None:
                    size_bytes = file.stat().st_size
                    report(file.name, size_bytes, size_bytes)
    except BrokenExecutor:
        # A child was killed, most likely for memory: what is left goes one at a time.
        rest, more = _one_by_one([file for file in files if file not in found and file not in errors], report)
        found |= {Path(analysis.path): analysis for analysis in rest}
        errors |= more
    return [found[file] for file in files if file in found], errors


def _one_by_one(files: list[Path], report: Report | None) -> tuple[list[RankAnalysis], dict[Path, str]]:
    found: list[RankAnalysis] = []
    errors: dict[Path, str] = {}
    for file in files:
        try:
            found.append(analyse_file(file, None if report is None else partial(report, file.name)))
        except TraceError as error:
            errors[file] = str(error)
    return found, errors

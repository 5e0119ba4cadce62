"""Analyses many files, one process per file."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec

from ppscope.signals import killer
from ppscope.trace.analyse import RankAnalysis, analyse_file
from ppscope.trace.source import TraceError

PARALLEL_BYTES = 4 << 20
"""Below this much to read, processes take longer to start than to work."""
_TELL_S = 0.2

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
    """Expands folders into the trace files in them; raises TraceError for a path that cannot be read or a folder without any.

    Folders below a folder are looked into only when it holds none itself. What SGLang merged from the files of the single ranks
    is left out.
    """
    files = TraceFiles([], [])
    for given in paths:
        try:
            _find(Path(given), files)
        except OSError as error:
            raise TraceError(f"{error.filename or given}: {error.strerror or error}") from None
    return files


def _find(path: Path, files: TraceFiles) -> None:
    if path.is_dir():
        inside = _inside(path.iterdir()) or _inside(path.rglob("*"))
        if not inside:
            raise TraceError(f"{path}: no *.json or *.json.gz trace files in this folder")
        files.found += [file for file in inside if not file.name.startswith("merged-")] or inside
    elif path.is_file():
        files.named.append(path)
    else:
        path.stat()
        # A pipe would wait for a writer, a device may never end; a trace is read twice besides.
        raise TraceError(f"{path}: not a regular file")


def _inside(candidates: Iterable[Path]) -> list[Path]:
    return sorted(file for file in candidates if file.name.endswith((".json", ".json.gz")) and file.is_file())


def analyse_files(
    files: list[Path], report: Report | None = None, workers: int | None = None
) -> tuple[list[RankAnalysis], dict[Path, str]]:
    """Analyses files; returns the analyses in the order given, and a line for every file that could not be read.

    `report` is called with (file name, bytes read, bytes in the file). `workers` bounds the processes; None is one per core that this
    process may use, and 1 reads here.
    """
    if workers is None:
        workers = len(os.sched_getaffinity(0))
    if min(len(files), workers) < 2 or sum(_size_bytes(file) for file in files) < PARALLEL_BYTES:
        return _one_by_one(files, report)
    found, errors = _Pool(workers, report).run(files)
    return [found[file] for file in files if file in found], errors


def _size_bytes(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _one_by_one(files: list[Path], report: Report | None) -> tuple[list[RankAnalysis], dict[Path, str]]:
    found: list[RankAnalysis] = []
    errors: dict[Path, str] = {}
    for file in files:
        try:
            found.append(analyse_file(file, None if report is None else partial(report, file.name)))
        except TraceError as error:
            errors[file] = str(error)
    return found, errors


def _work(file: Path, pipe: Connection) -> None:
    """Runs in a process of its own: sends (bytes read, bytes in the file) now and then, and the analysis or an error line at the end."""
    # Ctrl-C reaches the whole foreground group; the parent ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    next_s = 0.0

    def tell(done_bytes: int, size_bytes: int) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + _TELL_S
            pipe.send((done_bytes, size_bytes))

    try:
        pipe.send(analyse_file(file, tell))
    except TraceError as error:
        pipe.send(str(error))
    except BrokenPipeError:
        return


class _Pool:
    """Keeps a few processes busy, each with one file, and leaves none behind, however it ends."""

    def __init__(self, workers: int, report: Report | None) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._workers = workers
        self._report = report
        self._running: dict[Connection, tuple[BaseProcess, Path]] = {}
        self._found: dict[Path, RankAnalysis] = {}
        self._errors: dict[Path, str] = {}

    def run(self, files: list[Path]) -> tuple[dict[Path, RankAnalysis], dict[Path, str]]:
        # The largest file goes first: it decides when all are done.
        waiting = sorted(files, key=_size_bytes)
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self._workers:
                    self._start(waiting.pop())
                for pipe in wait(list(self._running)) if self._running else ():
                    if isinstance(pipe, Connection):
                        self._hear(pipe)
        finally:
            for process, _ in self._running.values():
                process.terminate()
                process.join()
        return self._found, self._errors

    def _start(self, file: Path) -> None:
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_work, args=(file, theirs), daemon=True)
        try:
            process.start()
        except OSError:
            ours.close()
            self._read_here(file)
        else:
            self._running[ours] = (process, file)
        finally:
            theirs.close()

    def _read_here(self, file: Path) -> None:
        """Where no process starts, for lack of memory or by a limit, the file is read all the same."""
        found, errors = _one_by_one([file], self._report)
        if found:
            self._found[file] = found[0]
        self._errors.update(errors)

    def _hear(self, pipe: Connection) -> None:
        process, file = self._running[pipe]
        try:
            message = pipe.recv()
        except EOFError:
            del self._running[pipe]
            process.join()
            if file not in self._found and file not in self._errors:
                self._errors[file] = _ended(file, process.exitcode)
            return
        if isinstance(message, RankAnalysis):
            self._found[file] = message
        elif isinstance(message, str):
            self._errors[file] = message
        elif self._report is not None:
            self._report(file.name, *message)


def _ended(file: Path, exit_code: int | None) -> str:
    if killed_by := killer(exit_code):
        return f"{file}: the process that read it was killed by {killed_by}"
    return (
        f"{file}: the process that read it failed (its error is above); this is a mistake in ppscope, please report it"
    )

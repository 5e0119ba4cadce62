"""The command `ppscope trace`, without the command line."""

from __future__ import annotations

import json
import sys
import time

from ppscope import stdout
from ppscope.complain import complain
from ppscope.trace.batch import analyse_files, find_files
from ppscope.trace.report import TraceReport, make_report, to_json
from ppscope.trace.source import TraceError
from ppscope.trace.text import render

DONE, FOUND, USAGE, UNREADABLE = 0, 1, 2, 3
_PROGRESS_AFTER_S = 1.0


class _Progress:
    """A line on the terminal that says how far a long reading is; silent for short ones and when nobody looks."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + _PROGRESS_AFTER_S
        self._shown = False

    def __call__(self, name: str, done_bytes: int, size_bytes: int) -> None:
        if time.monotonic() < self._next_s or not sys.stderr.isatty():
            return
        self._next_s = time.monotonic() + 0.2
        self._shown = True
        print(
            f"\r\x1b[Kreading {name[-50:]!a} {done_bytes * 100 // max(size_bytes, 1)} %",
            end="",
            file=sys.stderr,
            flush=True,
        )

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def run(paths: list[str], as_json: bool) -> int:
    """Analyses trace files and folders, prints the result to stdout, and returns the exit code.

    0: done, nothing found; 1: findings above `info`; 2: usage; 3: a path that is not there, a named file that is no
    readable trace, or not one trace in a folder. The result of the files that can be read is printed all the same.
    """
    report, code = read(paths)
    if report is not None:
        show(report, as_json)
    return code


def read(paths: list[str]) -> tuple[TraceReport | None, int]:
    """Analyses trace files and folders, says on stderr what could not be read; the report, None without any, and the exit code."""
    if not paths:
        complain("name at least one trace file or folder")
        return None, USAGE
    progress = _Progress()
    try:
        files = find_files(paths)
        analyses, errors = analyse_files(files.every, progress)
    except TraceError as error:
        complain(str(error).replace("\n", "?"))
        return None, UNREADABLE
    finally:
        progress.clear()
    for line in errors.values():
        complain(line.replace("\n", "?"))  # a file's name may hold a line break, too
    if not analyses:
        return None, UNREADABLE
    report = make_report(analyses)
    if any(file in errors for file in files.named):
        return report, UNREADABLE
    return report, FOUND if report.alarms else DONE


def show(report: TraceReport, as_json: bool) -> None:
    """Prints a report to stdout."""
    if as_json:
        stdout.write_text(json.dumps(to_json(report), indent=2) + "\n")
    else:
        stdout.write_text(render(report))

"""Everything that comes from outside, each with real seeds and the code that reads it; only the refusals it promises are caught."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ppscope.collect.stream import MAGIC, FrameReader, StreamError, encode
from ppscope.records import AnyCommand, AnyRecord, Settings
from ppscope.session import Session
from ppscope.snapshot.document import build
from ppscope.snapshot.read import UnreadableFile, read_file
from ppscope.snapshot.write import page
from ppscope.sources.gpu_emulated import UnreadableFile as NoGpus
from ppscope.sources.gpu_emulated import parse as parse_gpus
from ppscope.sources.proc_stat import parse_schedstat, parse_stat, parse_thread
from ppscope.sources.rules import NotSglang, read_rules
from ppscope.sources.server_load import LoadMeter, from_loads, from_server_info
from ppscope.sources.server_log_lines import parse_line
from ppscope.sources.server_metrics import MetricsReader, to_metrics
from ppscope.sources.stacks_chrometrace import ChrometraceError, parse_window
from ppscope.sources.stacks_dump_parse import DumpError, parse_dump
from ppscope.target.arguments import parse_arguments
from ppscope.target.config_file import ConfigProblem, words_of
from ppscope.target.redact import redact_argv
from ppscope.target.server_info import requested_settings, resolved_settings
from ppscope.target.titles import parse_title
from ppscope.trace.analyse import analyse_file
from ppscope.trace.report import make_report, to_json
from ppscope.trace.source import TraceError
from ppscope.trace.text import render
from tests.fed_stream import FedStream
from tests.kineto import Pipeline
from tests.recordings import recording
from tests.shared import ROOT
from tests.unit import test_rules_reader as source_tests
from tests.unit import test_stacks_chrometrace as window_tests
from tests.unit import test_stacks_dumps as dump_tests

DATA = ROOT / "tests" / "unit" / "data" / "server"
SECOND = 1_000_000_000
SCRATCH = "PPSCOPE_FUZZ_SCRATCH"
"""Names the folder that whoever started this process takes away afterwards: atheris ends a process without a word."""


@dataclass(frozen=True)
class Target:
    """`run` takes any bytes and returns; whatever it raises is a fault."""

    name: str
    seeds: Callable[[], list[bytes]]
    run: Callable[[bytes], None]


def memory() -> str:
    """A folder that is in memory where there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()


def scratch(name: str) -> Path:
    """A file of this process in memory, so that the disk is left alone."""
    base = os.environ.get(SCRATCH) or memory()
    folder = Path(base, f"ppscope-fuzz-{os.getpid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / name


def _one_line(error: Exception) -> None:
    """A refusal is shown to the user as it is."""
    if "\n" in str(error):
        raise AssertionError(f"more than one line: {error}")


def _data(prefix: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(DATA.glob(prefix))]


def _stream_seeds() -> list[bytes]:
    return [MAGIC + b"".join(map(encode, recording(2, stages))) for stages in (1, 2, 4)]


def _stream(data: bytes) -> None:
    for kind, magic in ((AnyRecord, True), (AnyCommand, False)):
        reader: FrameReader[object] = FrameReader(kind, magic=magic)
        try:
            for start in range(0, len(data), 1000):
                for record in reader.feed(data[start : start + 1000]):
                    msgspec.msgpack.encode(record)
        except StreamError:
            continue


def _draw(records: list[AnyRecord]) -> None:
    """Ask a session of these records for everything that the screen asks for."""
    session = Session(FedStream(*records))
    session.poll()
    screen = session.screen()
    oldest, newest = session.extent()
    assert oldest <= newest
    for rank in [row.key for stage in screen.stages for row in stage.ranks][:8]:
        session.lanes(newest - 10 * SECOND, newest, 40, [rank])
        list(session.spans(rank, newest - SECOND, newest))
        session.stacks(rank, 10.0)
    msgspec.msgpack.encode(screen)


def _file(data: bytes, name: str) -> None:
    path = scratch(name)
    path.write_bytes(data)
    try:
        records = read_file(path).records
    except UnreadableFile as error:
        _one_line(error)
        return
    _draw(records)


def _page_seeds() -> list[bytes]:
    return [page(build(recording(2, stages))) for stages in (1, 2)]


def _trace_seeds() -> list[bytes]:
    pipeline = Pipeline([1_000_000, 2_000_000], leaks=[(1, 3, "stray")]).build()
    return [trace.text(layout)[:200_000] for trace in pipeline.traces for layout in ("kineto", "line")]


def _trace(data: bytes) -> None:
    path = scratch("1795989460.25-TP-0-PP-0.trace.json")
    path.write_bytes(data)
    try:
        report = make_report([analyse_file(path)])
    except TraceError as error:
        _one_line(error)
        return
    json.dumps(to_json(report), allow_nan=False)
    render(report)


def _window_seeds() -> list[bytes]:
    event, thread = window_tests.event, window_tests.thread_frame
    frames = [thread(42, "MainThread"), window_tests.ROOT, window_tests.A, window_tests.B]
    events = [event("B", 100 + 20 * n, frame) for n in range(9) for frame in frames]
    events += [event("E", 900 + 20 * n, frame) for n in range(9) for frame in reversed(frames)]
    return [window_tests.trace(*events), window_tests.trace(*sorted(events, key=lambda one: int(one["ts"])))]


def _window(data: bytes) -> None:
    try:
        window = parse_window(data)
    except ChrometraceError as error:
        _one_line(error)
        return
    for thread in window.threads:
        window_tests.assert_spans(thread, window.first_us or 0, window.last_us or 0)


def _dump_seeds() -> list[bytes]:
    inner = dump_tests.frame("_pp_launch_batch", prompt="x")
    return [
        dump_tests.loop(inner, mb_id="1", next_mb_id="2", cur_batch="<ScheduleBatch at 0x1>"),
        dump_tests.loop(mbs="[None, <ScheduleBatch at 0x1>]"),
    ]


def _dump(data: bytes) -> None:
    try:
        parse_dump(data, {42})
    except DumpError as error:
        _one_line(error)


def _decoded(data: bytes) -> object:
    # As the HTTP client does: what is no JSON never gets further.
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _server_info(data: bytes) -> None:
    answer = _decoded(data)
    encode(Settings(1, "resolved", resolved_settings(answer)))
    if isinstance(answer, dict):
        from_server_info(answer.get("internal_states"), 1)


def _loads(data: bytes) -> None:
    answer = _decoded(data)
    for stages in (1, 4):
        load = from_loads(answer, 1, stages)
        if load is not None:
            encode(load)


def _metrics(data: bytes) -> None:
    meter = LoadMeter()
    for at_ns in (SECOND, 2 * SECOND):
        reader = MetricsReader()
        for start in range(0, len(data), 4096):
            reader.feed(data[start : start + 4096])
        metrics = to_metrics(reader.finish(), at_ns)
        for metric in metrics:
            encode(metric)
        for load in meter.update(metrics, at_ns, 2):
            encode(load)


def _log(data: bytes) -> None:
    for line in data.split(b"\n"):
        found = parse_line(line, 7, 0)
        if found is not None:
            encode(found)


def _config(data: bytes) -> None:
    try:
        words = words_of(data)
    except ConfigProblem as error:
        _one_line(error)
        return
    parse_arguments(words)


CONFIG = b"""model-path: /models/Kimi-K2
pp-size: 8
disable-cuda-graph: true
cuda-graph-bs: [1, 2, 4, 8]
json-model-override-args: {num_layers: 4}
api-key: "secret"
"""


def _words(data: bytes) -> None:
    words = [word.decode("utf-8", "surrogateescape") for word in data.split(b"\0")]
    arguments = parse_arguments(words)
    redact_argv(words)
    json.dumps(requested_settings(words), default=str)
    assert arguments is not None
    parse_title(" ".join(words))


COMMAND_LINE = (
    b"python\0-m\0sglang.launch_server\0--model-path\0/m\0--pp-size\0"
    + b"8\0--api-key\0secret\0--host\0::\0--port=30000\0"
)
TITLE = b"sglang::scheduler_DP0_PP3_TP1_EP2"


def _proc(data: bytes) -> None:
    for line in data.split(b"\n"):
        parse_stat(line)
        parse_thread(line)
        parse_schedstat(line)


def _gpus(data: bytes) -> None:
    try:
        parse_gpus(data)
    except NoGpus as error:
        _one_line(error)


GPU_SEEDS = [
    json.dumps({"gpus": [{"index": 0, "uuid": "GPU-1", "name": "x", "power_w": 86.5, "util_percent": 3}]}).encode(),
    b"{}",
]


def _rules(data: bytes) -> None:
    folder = scratch("package") / "sglang"
    (folder / "srt").mkdir(parents=True, exist_ok=True)
    (folder / "srt" / "server_args.py").write_bytes(data)
    try:
        msgspec.msgpack.encode(read_rules(folder))
    except NotSglang as error:
        _one_line(error)


TARGETS = (
    Target("stream framing", _stream_seeds, _stream),
    Target("recording, drawn", _stream_seeds, lambda data: _file(data, "run.pps")),
    Target("snapshot page, drawn", _page_seeds, lambda data: _file(data, "page.html")),
    Target("torch trace", _trace_seeds, _trace),
    Target("py-spy record", _window_seeds, _window),
    Target("py-spy dump", _dump_seeds, _dump),
    Target("/server_info", lambda: _data("server_info-*.json"), _server_info),
    Target("/v1/loads, /get_load", lambda: _data("*load*.json"), _loads),
    Target("/metrics", lambda: _data("metrics-*.txt"), _metrics),
    Target("log lines", lambda: _data("log-*.txt"), _log),
    Target("config file", lambda: [CONFIG], _config),
    Target("command lines and titles", lambda: [COMMAND_LINE, TITLE], _words),
    Target("/proc stat lines", lambda: [Path("/proc/self/stat").read_bytes(), b"123 456 7\n"], _proc),
    Target("emulated GPUs", lambda: GPU_SEEDS, _gpus),
    Target("SGLang source", lambda: [source_tests.SEED.encode(), source_tests.HOOK_SEED.encode()], _rules),
)

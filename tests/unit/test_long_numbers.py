"""Numbers of any length in foreign text: Python reads no integer of more than 4300 digits, and no stream holds one of more than 64 bits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ppscope.diagnose.say import version as said_version
from ppscope.doctor.parse import version as tool_version
from ppscope.records import Server
from ppscope.session.settings import version_of
from ppscope.sources.burst_files import rank_of
from ppscope.sources.burst_plan import parse_version
from ppscope.sources.rules import read_rules
from ppscope.sources.rules_model import RuleBook
from ppscope.sources.server_keys import Keys
from ppscope.sources.server_log_lines import parse_line as parse_log_line
from ppscope.sources.server_worker import Desk
from ppscope.target.python_build import python_of
from ppscope.target.server_info import requested_settings, resolved_settings
from ppscope.target.titles import parse_title
from ppscope.trace.analyse import analyse_file
from ppscope.trace.source_lines import parse_line as parse_source_line
from ppscope.trace.step_names import parse_step
from tests.kineto import Trace
from tests.unit import findings_tools

BARE = Server(1, 0, 0, "", "", (), pp_size=2, tp_size=1, dp_size=1)


def desk_version(text: str) -> object:
    desk = Desk(lambda _: None, BARE, Keys({}), threading.Event())
    desk.version = text
    return desk.version_at_least(0, 5, 9)


READERS: dict[str, Callable[[str], object]] = {
    "sglang step": lambda n: parse_step(f"step[DECODE bs={n}]"),
    "vllm step": lambda n: parse_step(f"execute_{n}_context_{n}({n})_generation_{n}({n})"),
    "source line": lambda n: parse_source_line(f"a.py({n}): f"),
    "title": lambda n: parse_title(f"sglang::scheduler_PP{n}_TP{n}"),
    "worker title": lambda n: parse_title(f"sglang::tokenizer_worker:{n}"),
    "log line": lambda n: parse_log_line(
        f"[2026-01-29 13:12:36 PP{n}] Decode batch, #running-req: {n}, #queue-req: {n}".encode(), 7, 0
    ),
    "version of a session": lambda n: version_of(msgspec.structs.replace(BARE, version=f"0.5.{n}")),
    "version of findings": lambda n: said_version(
        findings_tools.evidence(server=findings_tools.server(version=f"{n}.{n}.{n}"))
    ),
    "version of a burst": lambda n: parse_version(f"{n}.5.{n}"),
    "version of a server": lambda n: desk_version(f"0.{n}.{n}"),
    "version of a tool": lambda n: tool_version(f"py-spy {n}.{n}"),
    "python of a path": lambda n: python_of([f"/usr/bin/python3.{n}"]),
    "requested": lambda n: requested_settings(["--max-running-requests", n, f"--x={n}", "--list", "[" + n + "]"]),
    "resolved": lambda n: resolved_settings({"a": n, "b": [n]}),
    "name of a trace": lambda n: rank_of(f"x-TP-{n}-PP-{n}.trace.json.gz", "x"),
}


@pytest.mark.parametrize("digits", [9, 10, 20, 4301])
@pytest.mark.parametrize("name", READERS)
def test_a_number_of_any_length_is_read_or_left(name: str, digits: int) -> None:
    msgspec.msgpack.encode(READERS[name]("9" * digits))


@pytest.mark.parametrize("digits", [10, 4301])
def test_a_trace_whose_numbers_are_too_long_is_read(digits: int, tmp_path: Path) -> None:
    number = "9" * digits
    trace = Trace(rank=1, world_size=2, title=f"sglang::scheduler_PP{number}_TP1")
    trace.span(f"step[DECODE bs={number}]", 1000, 500_000)
    for index in range(12):
        trace.eager(f"kernel{index}", 2000 + index * 3000, 9000 + index * 4000, 3000 + index)
    analysis = analyse_file(trace.write(tmp_path / "trace.json"))
    assert analysis.identity.stage is None
    assert analysis.identity.tp == 1


@pytest.mark.parametrize("hostile", [[0], {"a": 1}, None, 10**30, "0", True, 1.5])
def test_metadata_of_the_wrong_type_names_no_device(hostile: object, tmp_path: Path) -> None:
    trace = Trace(rank=1, world_size=2)
    trace.span("step[DECODE bs=4]", 1000, 500_000)
    path = trace.write(tmp_path / "trace.json")
    text = msgspec.json.decode(path.read_bytes())
    for key in ("deviceProperties", "distributedInfo"):
        for value in (hostile, [hostile], [{"id": hostile, "name": hostile, "pg_config": hostile}], {"rank": hostile}):
            path.write_bytes(msgspec.json.encode({**text, key: value}))
            analyse_file(path)


@pytest.mark.parametrize(
    "value", ["10**40", str(2**63), str(-(2**63) - 1), str(2**64), r'"\ud800"', "1e400", "-5", '"é"']
)
def test_a_value_in_sglangs_source_that_no_stream_holds_is_left_out(tmp_path: Path, value: str) -> None:
    text = f"class ServerArgs:\n    disable_cuda_graph: bool = False\n    pp_size: int = {value}\n\n    def __post_init__(self):\n"
    text += f"        if self.pp_size == {value}:\n            self.disable_cuda_graph = True\n"
    folder = tmp_path / "sglang"
    (folder / "srt").mkdir(parents=True)
    (folder / "srt" / "server_args.py").write_text(text, encoding="utf-8")
    book = read_rules(folder)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(book), type=RuleBook) == book
    assert ("pp_size" in book.defaults) == (value in ("1e400", "-5", '"é"'))
    assert len([rule for rule in book.rules if rule.kind != "flag"]) == 1

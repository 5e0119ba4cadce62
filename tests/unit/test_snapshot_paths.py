"""What --redact-paths leaves: no path, wherever in a text it stands, no home folder, no user."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ppscope.records import AnyRecord, FrameDef, Note, Server, Settings
from ppscope.snapshot.document import build
from ppscope.snapshot.paths import short, shorten_paths, shorten_text
from tests.recordings import START_NS, recording

HOMES = (
    "/home",
    "/Users",
    "/export/home",
    "/var/home",
    "/mnt/nfs/users",
    "//home",
    "/proc/77/root/home",
    "/data//home",
)
BEFORE = (
    "", " ", ":", "=", ",", ";", "\t", "\n", '"', "'", "`", "(", "[", "{", "<", "|", "@", "&", "--flag=", "PATH=", "-I", "-L", "x:",
    "file://", "ipc://", "host:", "file:", "/opt/x:", "/opt/x:/usr/y:", "http://host:1/a ", "12:", "é", "a=b:", "…", "-",
)  # fmt: skip
AFTER = ("", " ", ":", "/", ":/opt/y", "\n", '"', "'", ")", "]", "}", ",", ";", ">", "//", ": error", ":12")
TAILS = (
    "", "/proj", "/proj/", "/a/b.py", "/.cache/x", "/a-b_c+d@e", "/模型/x", "/x~", "/a#b/c", "//x", "/$x/y", "/lib/python3.12/x.py",
    "/env/lib/python3.12/site-packages/torch/cuda/streams.py", "/src/sglang/python/sglang/srt/x.py",
)  # fmt: skip
USER = "zqalice"

path = st.builds(lambda home, tail: f"{home}/{USER}{tail}", st.sampled_from(HOMES), st.sampled_from(TAILS))
tilde = st.builds(lambda tail: f"~{USER}{tail or '/'}", st.sampled_from(TAILS))
piece = st.builds(
    lambda before, path, after: before + path + after,
    st.sampled_from(BEFORE),
    path,
    st.sampled_from(AFTER),
)


@settings(max_examples=400)
@given(st.lists(piece, min_size=1, max_size=4))
@example(["PYTHONPATH=/opt/x:", "/home/zqalice/proj"])
@example(["/home/zqalice"])
@example(["/home/zqalice/lib/python3.12/x.py,", "/opt/x:/home/zqalice"])
def test_no_home_is_left_wherever_it_stands(pieces: list[str]) -> None:
    text = "".join(pieces)
    shown = shorten_text(text)
    assert USER not in shown
    assert shorten_text(shown) == shown, "once is enough: a file may be opened from a file"


@given(st.sampled_from(("", " ", ":", "=", '"', "(", "x=/a/b:")), tilde)
def test_the_home_of_a_name_neither(before: str, path: str) -> None:
    assert USER not in shorten_text(before + path)


SECRET = st.sampled_from(
    ("/opt/zqsecret/x", "/zqsecret/y/", "/a/zqsecret/b/c.py", "/data//zqsecret/x", "/zqsecret/x:/zqsecret/y")
)


@given(st.sampled_from(("", " ", ":", "=", ",", '"', "(", "--x=", "P=/usr/a:", "host:", "file://")), SECRET)
def test_the_folders_of_a_path_are_not_left_behind_a_colon_either(before: str, path: str) -> None:
    assert "zqsecret" not in shorten_text(before + path)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("PYTHONPATH=/opt/x:/home/alice/proj", "PYTHONPATH=…/x:…/proj"),
        ("/home/alice", "…"),
        ("/home/alice/", "…"),
        ("/Users/alice/m", "…/m"),
        ("~/models/K2", "…/K2"),
        ("~alice/K2", "…/K2"),
        ("/root/x", "…/x"),
        ("-I/home/alice/src/sglang/srt/x.py", "-I…/sglang/srt/x.py"),
        ("-L/home/alice", "-L…/"),
        ("http://host:30000/v1/models", "http://host:30000/v1/models"),
        ("tcp://10.0.0.1:2000", "tcp://10.0.0.1:2000"),
        ("nccl://[::1]:5", "nccl://[::1]:5"),
        ("ipc:///tmp/zmq", "ipc://…/zmq"),
        ("/dev/shm/x", "/dev/shm/x"),
        ("/proc/7/status", "/proc/7/status"),
        ("12:30:01 a/b 3/4 org/Model-7B 12/600 W", "12:30:01 a/b 3/4 org/Model-7B 12/600 W"),
        ("≈ 3 ~5 ms ~/", "≈ 3 ~5 ms …"),
        ("./a/b ../c/d", "./a/b ../c/d"),
        ("scheduler.py:192", "scheduler.py:192"),
    ],
)
def test_what_becomes_of_a_text(text: str, shown: str) -> None:
    assert shorten_text(text) == shown


@pytest.mark.parametrize("unit", ["/", "/a", "~/", "~a", "://", "/home", "/home/", "/home/a", "a/", ":/a/", "//a"])
def test_a_long_text_takes_no_longer_than_its_length(unit: str) -> None:
    shorten_text(unit * 100_000)


def test_a_path_alone_may_hold_any_characters() -> None:
    (frame,) = shorten_paths([FrameDef(1, "f", "/home/zqalice smith/my (old) proj/x.py", 1)])
    assert isinstance(frame, FrameDef)
    assert frame.file == "…/x.py"
    assert short("/home/zqalice smith") == "…"


def test_neither_the_user_nor_a_home_is_left_in_a_page() -> None:
    records: list[AnyRecord] = [
        msgspec.structs.replace(
            record,
            user=USER,
            launch_command=("python", "-I/home/zqalice/inc", "--model", "/home/zqalice"),
            sglang_path="/home/zqalice smith/src/sglang",
        )
        if isinstance(record, Server)
        else record
        for record in recording(2, 2)
    ]
    records += [
        Settings(START_NS, "resolved", {"lora_paths": {"/home/zqalice/lora": "file:///home/zqalice"}}),
        Note(START_NS, "info", "PYTHONPATH=/opt/x:/home/zqalice/proj is used"),
    ]
    assert USER in json.dumps(build(records), default=str)
    shortened = shorten_paths(records)
    assert USER not in json.dumps(build(shortened), default=str)
    assert all(USER.encode() not in msgspec.msgpack.encode(record) for record in shortened)

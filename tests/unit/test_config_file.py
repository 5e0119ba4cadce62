"""`--config FILE`: read as the launcher sees it, merged as SGLang does, and never guessed when it cannot be read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.diagnose.findings import judge
from ppscope.diagnose.graph_rules import answers
from ppscope.diagnose.graph_world import World
from ppscope.target.config_file import ConfigProblem, config_words, words_of
from ppscope.target.procfs import Proc
from ppscope.target.redact import MARKER
from ppscope.target.server_info import CONFIG_PROBLEM, requested_settings
from ppscope.views import GraphState
from tests.unit.findings_tools import evidence
from tests.unit.test_findings_catalogue import BY_RULE
from tests.unit.test_rules_evaluate import FLAG, book, rule

ARGV = ("python", "-m", "sglang.launch_server", "--config", "serve.yaml", "--pp-size", "8")


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[int]:
    """A process whose working folder is the test's."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], cwd=tmp_path, stdin=subprocess.PIPE)
    try:
        yield process.pid
    finally:
        process.communicate(b"\n")


def test_the_file_is_found_from_the_launchers_folder_and_the_command_line_wins(launcher: int, tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text(
        "pp-size: 4\ndisable-cuda-graph: true\nenable_metrics: false\ncuda-graph-bs: [1, 2, 4]\n"
        "api-key: hunter2hunter2\nmodel-path: org/model  # a comment\ncuda-graph-config: {decode: {backend: disabled}}\n"
    )
    found = requested_settings(ARGV, config=config_words(Proc(), launcher, ARGV))
    assert found == {
        "config": "serve.yaml",
        "pp_size": 8,
        "disable_cuda_graph": True,
        "enable_metrics": False,
        "cuda_graph_bs": [1, 2, 4],
        "api_key": MARKER,
        "model_path": "org/model",
        "cuda_graph_config": {"decode": {"backend": "disabled"}},
    }


def test_no_file_no_words(launcher: int) -> None:
    assert config_words(Proc(), launcher, ("python", "-m", "sglang.launch_server", "--pp-size", "8")) == ()


@pytest.mark.parametrize("kind", ["missing", "pipe", "folder", "large", "list", "text", "broken", "forbidden"])
def test_what_cannot_be_read_is_a_problem_and_never_waits(launcher: int, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "serve.yaml"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "forbidden":
        if os.geteuid() == 0:
            pytest.skip("root may read everything")
        file.write_text("a: 1")
        file.chmod(0)
    elif kind != "missing":
        file.write_text({"large": "a: 1\n" * 100_000, "list": "- a\n", "text": "words", "broken": "{"}[kind])
    with pytest.raises(ConfigProblem):
        config_words(Proc(), launcher, ARGV)


@given(st.binary(max_size=200) | st.text(alphabet="ab:-[]{}&*!'\"# \n1.", max_size=80).map(str.encode))
def test_any_file_is_words_or_a_problem(raw: bytes) -> None:
    try:
        words = words_of(raw)
    except ConfigProblem:
        return
    requested_settings(ARGV, config=words)


def test_an_unread_file_leaves_open_what_the_command_line_does_not_say() -> None:
    rules = book(rule(FLAG, kind="flag"))
    unread = World(rules, requested={"config": "x.yaml", CONFIG_PROBLEM: "it cannot be read"}, device="cuda")
    (decode, _) = answers(unread)
    assert decode.state != "on"
    assert [item.undecided for item in decode.undecided] == [("--config",)]
    (decode, _) = answers(World(rules, requested={"config": "x.yaml"}, device="cuda"))
    assert decode.undecided == ()
    said = {"config": "x.yaml", CONFIG_PROBLEM: "it cannot be read", "disable_cuda_graph": True}
    (decode, _) = answers(World(rules, requested=said, device="cuda"))
    assert decode.state == "off"


def test_with_an_unread_file_nobody_is_blamed_and_a_rule_is_told_with_what_is_not_known() -> None:
    said = {"config": "x.yaml", CONFIG_PROBLEM: "it cannot be read"}
    off = {"decode": GraphState(None, "off", "off", "log"), "replay_share": 0.0}
    assert [f.id for f in judge(evidence(**off, requested={}))] == ["graphs.disabled_by_rule"]
    assert judge(evidence(**off, requested=said)) == []
    (finding,) = judge(evidence(**off, requested=said, rule=BY_RULE))
    assert "requested not known (its --config file could not be read), resolved off" in finding.evidence


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} {{k: [{', '.join(['*' + before] * 10)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]",
        "a: {b: &b {c: *b}}",
        LAUGHS,
        "a: &a " + "x" * 200_000 + "\nb: {k: [" + "*a, " * 10_000 + "*a]}",
        "a: " + "[" * 100 + "]" * 100,
    ],
    ids=["within itself", "within itself, deeper", "a billion", "long text", "deep"],
)
def test_anchors_that_make_much_of_little_are_a_problem(text: str) -> None:
    with pytest.raises(ConfigProblem, match=r"too much|not YAML"):
        words_of(text.encode())


def test_an_anchor_that_is_used_twice_is_none() -> None:
    words = words_of(b"a: &a [1, 2]\nb: *a\nc: {d: *a}\n")
    assert words == ("--a", "1", "2", "--b", "1", "2", '--c={"d": [1, 2]}')

"""`ppscope rules` without a server: exit codes, the JSON contract, and a text that answers in one screen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.diagnose.rules_command import run, setting_name, setting_value

SOURCE = """
class ServerArgs:
    disable_cuda_graph: bool = False
    disable_piecewise_cuda_graph: bool = False
    attention_backend: str = None
    pp_size: int = 1

    def add_cli_args(parser):
        parser.add_argument("--disable-cuda-graph", action="store_true")

    def __post_init__(self):
        if self.attention_backend is None:
            self.attention_backend = pick()
        if self.attention_backend == "torch_native":
            logger.warning("Cuda graph is disabled because of using torch native attention backend")
            self.disable_cuda_graph = True
        if self.pp_size > 1:
            self.disable_piecewise_cuda_graph = True
        if self.get_model_config().is_multimodal:
            self.disable_piecewise_cuda_graph = True
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    srt = tmp_path / "sglang" / "srt"
    srt.mkdir(parents=True)
    (srt / "server_args.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "sglang-0.5.11.dist-info").mkdir()
    return str(tmp_path / "sglang")


def test_the_question_is_answered_in_one_screen(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"--disable-cuda-graph": "true", "attention-backend": "torch_native", "pp_size": "8"}
    assert run(source, asked, None, "cuda", as_json=False) == 1
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert len(lines) <= 24
    assert all(len(line) <= 80 for line in lines)
    flat = " ".join(text.split())
    assert "decode graphs: OFF because --disable-cuda-graph (and 1 more), server_args.py:9" in flat
    assert (
        "without --disable-cuda-graph: still OFF because attention_backend == 'torch_native', server_args.py:16" in flat
    )
    assert "prefill graphs: OFF because pp_size > 1, server_args.py:18" in flat
    assert "log: Cuda graph is disabled because of using torch native attention backend" in flat


def test_what_nobody_said_is_assumed_to_be_cuda_and_told(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(source, {"pp_size": "8"}, None, None, as_json=False) == 1
    text = capsys.readouterr().out
    assert "for device=cuda, which nothing said" in text.splitlines()[1]
    assert "set to decide: --set attention_backend=…" in text
    assert run(source, {"device": "cpu"}, None, None, as_json=False) == 0
    assert "nothing said" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [("pp_size", "eight", "a whole number"), ("pp-size", "2.5", "a whole number"), ("pp_size", "true", "a whole number"),
     ("--disable-cuda-graph", "yes", "true or false")],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_refused(
    source: str, capsys: pytest.CaptureFixture[str], name: str, value: str, why: str
) -> None:
    assert run(source, {name: value}, None, None, as_json=False) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert why in said.err


def test_a_folder_that_may_not_be_seen_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refuse)
    assert run("/closed", {}, None, None, as_json=False) == 3
    assert capsys.readouterr().err == "ppscope: /closed: Permission denied\n"


def test_another_backend_brings_decode_graphs_on(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"disable_cuda_graph": "true", "attention_backend": "triton"}
    assert run(source, asked, None, "cuda", as_json=False) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "without --disable-cuda-graph: ON" in text
    assert "prefill graphs: not decided: a rule may turn them off; ON if it does not" in text
    assert "? server_args.py:20 prefill: self.get_model_config().is_multimodal" in text
    assert run(source, {"attention_backend": "triton"}, None, "cuda", as_json=False) == 0


def test_json_has_the_keys_of_the_contract(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(source, {"attention_backend": "torch_native"}, None, None, as_json=True) == 1
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["schema", "sglang", "rules", "assumed"]
    assert found["assumed"] == {"device": "cuda"}
    assert found["schema"] == "ppscope.rules/1"
    assert found["sglang"] == {"version": "0.5.11", "path": source}
    keys = {"phase", "file", "line", "function", "condition", "message", "verdict", "undecided"}
    assert all(set(rule) == keys for rule in found["rules"])
    by_line = {rule["line"]: rule for rule in found["rules"]}
    assert by_line[16]["verdict"] == "fires"
    assert by_line[16]["file"] == "srt/server_args.py"
    assert by_line[18]["verdict"] == "does_not"
    assert by_line[20] | {"function": ""} == {
        "phase": "prefill", "file": "srt/server_args.py", "line": 20, "function": "",
        "condition": "self.get_model_config().is_multimodal", "message": None,
        "verdict": "unknown", "undecided": ["self.get_model_config().is_multimodal"],
    }  # fmt: skip


def test_a_server_says_off_and_nothing_explains_it(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    resolved = {"disable_cuda_graph": True, "attention_backend": "fa3", "pp_size": 1, "launch_command": "sglang serve"}
    assert run(source, {}, resolved, "cuda", as_json=False) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "decode graphs: OFF the server says so, and no rule that can be decided explains it" in text


@pytest.mark.parametrize("broken", ["nothing", "empty", "syntax"])
def test_what_is_no_sglang_is_one_line_and_exit_3(
    tmp_path: Path, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sglang"
    if broken != "nothing":
        (folder / "srt").mkdir(parents=True)
    if broken == "syntax":
        (folder / "srt" / "server_args.py").write_text("def broken(:\n", encoding="utf-8")
    assert run(str(folder), {}, None, None, as_json=True) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ppscope: ")
    assert err.count("\n") == 1


def test_a_name_this_version_does_not_have_is_said(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(source, {"atention_backend": "triton"}, None, None, as_json=True)
    out, err = capsys.readouterr()
    assert json.loads(out)["schema"] == "ppscope.rules/1"
    assert "no setting atention_backend" in err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True), ("False", False), ("none", None), ("null", None), ("8", 8), ("-1", -1), ("0.5", 0.5),
        ("triton", "triton"), ('"8"', "8"), ("[1, 2]", [1, 2]), ("(1, 2)", (1, 2)), ("'x'", "x"),
        ('{"decode": {"backend": "disabled"}}', {"decode": {"backend": "disabled"}}), ("NaN", "NaN"), ("", ""),
    ],
)  # fmt: skip
def test_values_as_typed(text: str, value: object) -> None:
    assert setting_value(text) == value
    assert type(setting_value(text)) is type(value)


@given(st.text())
def test_any_value_and_name_can_be_typed(text: str) -> None:
    setting_value(text)
    setting_name(text)

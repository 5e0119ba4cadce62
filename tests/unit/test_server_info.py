"""Requested and resolved settings: typed, capped, without secrets."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppscope.records import Fact
from ppscope.target.redact import MARKER
from ppscope.target.server_info import LIST_LIMIT, TEXT_LIMIT, requested_settings, resolved_settings

DATA = Path(__file__).parent / "data" / "server"


def requested(command: str) -> dict[str, object]:
    return requested_settings(command.split())


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -m sglang.launch_server --pp-size 8", {"pp_size": 8}),
        ("python -m sglang.launch_server --pipeline-parallel-size=4 --tp 2 --pp 8", {"pp_size": 8, "tp_size": 2}),
        ("sglang serve org/model --disable-cuda-graph", {"model_path": "org/model", "disable_cuda_graph": True}),
        (
            "x --cuda-graph-bs 1 2 4 --mem-fraction-static .85",
            {"cuda_graph_bs": [1, 2, 4], "mem_fraction_static": 0.85},
        ),
        ("x --chunked-prefill-size -1 --a", {"chunked_prefill_size": -1, "a": True}),
        (
            'x --cuda-graph-config {"decode":{"backend":"disabled"}}',
            {"cuda_graph_config": {"decode": {"backend": "disabled"}}},
        ),
        ("x --json-model-override-args {broken", {"json_model_override_args": "{broken"}),
        (
            "x --quantization fp8 --kv-cache-dtype auto -- --y",
            {"quantization": "fp8", "kv_cache_dtype": "auto", "y": True},
        ),
        ("x --revision inf --served-model-name nan", {"revision": "inf", "served_model_name": "nan"}),
        ("python serve.py", {}),
        ("", {}),
    ],
)
def test_options_become_names_with_typed_values(command: str, expected: dict[str, object]) -> None:
    assert requested(command) == expected


def test_environment_facts_are_settings_and_other_facts_are_not() -> None:
    facts = (Fact("env.SGLANG_PP_LAYER_PARTITION", "8,8", "env"), Fact("port.owned", "yes", "socket"))
    assert requested_settings(["x"], facts) == {"SGLANG_PP_LAYER_PARTITION": "8,8"}


SECRET = "sk-veryverysecretvalue"


def test_no_secret_survives_whichever_way_it_was_given() -> None:
    values = requested_settings(
        f"x --api-key {SECRET} --admin-api-key={SECRET} --ssl-keyfile-password {SECRET} --model-path http://u:{SECRET}@h/m".split(),
        (Fact("env.HF_TOKEN", SECRET, "env"),),
    )
    answer = {
        "api_key": SECRET,
        "nested": {"api_key": SECRET},
        "cuda_graph_config": {"decode": {"backend": "full", "secret": SECRET}},
        "launch_command": f"--api-key {SECRET} --model-path m",
        "internal_states": [{"admin_api_key": SECRET, "env_vars": {"HF_TOKEN": SECRET}}],
        "env_vars": {"HF_TOKEN": SECRET},
        "model_path": f"https://user:{SECRET}@host/x",
    }
    resolved = resolved_settings(answer)
    assert "verysecret" not in json.dumps([values, resolved])
    assert values["api_key"] == resolved["api_key"] == MARKER
    assert resolved["launch_command"] == ["--api-key", MARKER, "--model-path", "m"]
    assert resolved_settings({"api_key": None, "enable_metrics": False}) == {"api_key": None, "enable_metrics": False}


def test_a_secret_in_an_unquoted_launch_command_is_removed() -> None:
    """0.5.23 tells its command line as `" ".join(argv)`."""
    argv = [
        "--hicache-storage-backend-extra-config", '{"access_key": "AK", "secret_key": "SEKRIT"}', "--api-key", "my pass phrase",
        "--admin-api-key=another pass phrase", "--ssl-keyfile-password", "it's a phrase", "--pp-size", "2",
    ]  # fmt: skip
    kept = resolved_settings({"launch_command": " ".join(argv)})["launch_command"]
    assert isinstance(kept, list)
    said = " ".join(kept)
    assert not {"AK", "SEKRIT", "my", "pass", "phrase", "it's"} & set(re.findall(r"[\w']+", said))
    assert said.endswith(f"--api-key {MARKER} --admin-api-key={MARKER} --ssl-keyfile-password {MARKER} --pp-size 2")


def test_a_json_option_of_an_unquoted_launch_command_is_one_word() -> None:
    argv = [
        "x",
        "--cuda-graph-config",
        '{"decode": {"bs": [1, 2]}}',
        '--a={"b": "c --d"}',
        "--broken",
        "{",
        "[1",
        "2]",
        "{}",
    ]
    assert resolved_settings({"launch_command": "  ".join(argv)})["launch_command"] == argv


@pytest.mark.parametrize("version", ["0.5.9", "0.5.11", "0.5.23"])
def test_a_real_answer_keeps_its_scalars_and_what_differs_in_internal_states(version: str) -> None:
    answer = json.loads((DATA / f"server_info-{version}.json").read_text())
    kept = resolved_settings(answer)
    assert kept["version"] == version
    assert {k for k, v in answer.items() if not isinstance(v, dict)} <= kept.keys()
    assert ("cuda_graph_config" in kept) == (version == "0.5.23")
    states = kept["internal_states"]
    assert isinstance(states, list)
    (state,) = states
    assert state["pp_max_micro_batch_size"] == 16
    assert isinstance(state["memory_usage"], dict)
    assert "pp_size" not in state
    if version == "0.5.23":
        assert state["decode_cuda_graph_bs"] == []
        assert "hicache_object_layout" not in kept
    assert len(msgspec.msgpack.encode(kept)) < 16_000


def test_long_values_are_cut_and_deep_or_huge_ones_survive_the_wire() -> None:
    deep: object = 1
    for _ in range(50):
        deep = {"decode": deep}
    kept = resolved_settings(
        {"chat_template": "x" * 100_000, "bs": list(range(10_000)), "big": 10**400, "cuda_graph_config": deep}
    )
    assert len(str(kept["chat_template"])) == TEXT_LIMIT + 1
    assert len(kept["bs"]) == LIST_LIMIT  # type: ignore[arg-type]
    assert len(msgspec.msgpack.encode(kept)) < 10_000


PLANTED = "Zq7planted"
planted = st.builds("{}{}{}".format, st.text(max_size=6), st.just(PLANTED), st.text(max_size=6))
below_a_secret_name = st.recursive(
    planted,
    lambda inner: (
        st.lists(inner | st.integers(), min_size=1, max_size=3)
        | st.dictionaries(st.sampled_from(["user", "value", "x"]), inner, min_size=1, max_size=3)
    ),
    max_leaves=5,
)
secret_name = st.sampled_from(["access_key", "secret_key", "credentials", "tokens", "hf_token", "password", "authKeys"])
with_secrets = st.recursive(
    st.dictionaries(secret_name, below_a_secret_name, min_size=1, max_size=3),
    lambda inner: (
        st.lists(inner | st.text(max_size=4) | st.integers(), max_size=3)
        | st.dictionaries(st.sampled_from(["master", "a", "config"]), inner | inner.map(json.dumps), max_size=3)
    ),
    max_leaves=4,
)
pass_phrase = st.lists(
    st.sampled_from([PLANTED, "my", "-", "it's", '"', "{", "[1,", "a=b", "\\\\", "port:"]), min_size=1, max_size=5
).map(" ".join)


@settings(max_examples=200, deadline=None)
@given(with_secrets, pass_phrase, st.booleans(), st.sampled_from([None, 1]))
def test_no_planted_secret_survives_within_json_or_behind_an_option(
    options: object, phrase: str, ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(options, ensure_ascii=ascii_only, indent=indent)
    argv = [
        "sglang",
        "--hicache-storage-backend-extra-config",
        text,
        "--api-key",
        phrase,
        f"--config={text}",
        "--x",
        text,
    ]
    asked = requested_settings(argv, (Fact("env.SGLANG_X", text, "env"),))
    resolved = resolved_settings(
        {
            "launch_command": " ".join(argv),
            "hicache_storage_backend_extra_config": text,
            "internal_states": [{"x": text}],
        }
    )
    assert PLANTED not in repr((asked, resolved))


json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=10,
)
keys = st.sampled_from(["internal_states", "cuda_graph_config", "launch_command", "pp_size", "version", "x"])


@settings(max_examples=40, deadline=None)
@given(json_value | st.dictionaries(keys, json_value))
def test_any_answer_can_be_sent(answer: object) -> None:
    kept = resolved_settings(answer)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(kept))
    assert again.keys() == kept.keys()


@settings(deadline=None)
@given(
    st.lists(
        st.text(max_size=10) | st.sampled_from(["--pp-size", "--", "-", "--x=1", "1", "1e999", "{", "[1,"]), max_size=8
    )
)
def test_any_command_line_can_be_sent(words: list[str]) -> None:
    values = requested_settings(words)
    msgspec.msgpack.encode(values)
    assert not any(isinstance(value, float) and math.isnan(value) for value in values.values())

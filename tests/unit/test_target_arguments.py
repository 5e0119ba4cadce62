"""Command lines: what is a launcher, what is not, and what its arguments say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.target.arguments import LaunchArguments, arguments_of, parse_arguments
from ppscope.target.commands import hidden_launcher_kind, is_multiprocessing_helper, launcher_kind, parse_python
from tests.unit.fake_proc import SPAWN, TRACKER


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("python -m sglang.launch_server --model-path m", "launch_server"),
        ("/opt/venv/bin/python3.12 -u -X faulthandler -W ignore -m sglang.launch_server --model m", "launch_server"),
        ("python3 -um sglang.launch_server --model m", "launch_server"),
        ("python3 /opt/sglang/python/sglang/launch_server.py --model m", "launch_server"),
        ("/opt/venv/bin/python /opt/venv/bin/sglang serve m --pp-size 4", "serve"),
        ("python -m sglang.cli.main serve --model-path m", "serve"),
        ("/opt/venv/bin/python /opt/venv/bin/sglang version", None),
        ("python -m sglang.bench_serving --model m", None),
        ("python train.py -m sglang.launch_server", None),
        ("bash -c python -m sglang.launch_server", None),
        ("sudo python -m sglang.launch_server", None),
        ("vim launch_server.py", None),
        ("python", None),
        ("python -m", None),
        ("", None),
    ],
)
def test_only_python_that_runs_a_launcher_is_one(line: str, kind: str | None) -> None:
    assert launcher_kind(tuple(line.split())) == kind


def test_multiprocessing_children_are_told_apart() -> None:
    assert is_multiprocessing_helper(("/opt/venv/bin/python", *SPAWN))
    assert is_multiprocessing_helper(("python", "-X", "dev", *TRACKER))
    assert not is_multiprocessing_helper(("python", "-c", "print('spawn_main')"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "--model-path m --pp-size 4 --tp-size 2 --dp-size 3",
            LaunchArguments(model="m", pp_size=4, tp_size=2, dp_size=3),
        ),
        (
            "--model m --pipeline-parallel-size=4 --tensor-parallel-size=2",
            LaunchArguments(model="m", pp_size=4, tp_size=2),
        ),
        (
            "--tp 8 --dp 2 --enable-dp-attention --port=31000",
            LaunchArguments(tp_size=8, dp_size=2, port=31000, dp_attention=True),
        ),
        (
            "--pipeline 4 --tensor-par 8 --nnodes 2 --node-rank 1",
            LaunchArguments(pp_size=4, tp_size=8, nnodes=2, node_rank=1),
        ),
        (
            "serve some/model --host 0.0.0.0 --config c.yaml",
            LaunchArguments(model="some/model", host="0.0.0.0", config="c.yaml"),
        ),
        ("--pp-size 2 --pp-size 4", LaunchArguments(pp_size=4)),
        ("--pp-size nonsense --port", LaunchArguments()),
        ("--pp-max-micro-batch-size 2 --tp-unknown 3 --p 4", LaunchArguments()),
        ("--base-gpu-id 4 --gpu-id-step 2 --device cuda", LaunchArguments(base_gpu_id=4, gpu_id_step=2, device="cuda")),
        ("--attn-dp-size 4 --served-model-name k2", LaunchArguments(attn_dp_size=4, served_model_name="k2")),
    ],
)
def test_arguments_as_argparse_reads_them(words: str, expected: LaunchArguments) -> None:
    assert parse_arguments(words.split()) == expected


@given(
    st.lists(
        st.one_of(
            st.text(max_size=12), st.sampled_from(["-m", "--port", "--pp-size=", "--tp", "-c", "python", "-", "--"])
        ),
        max_size=12,
    )
)
def test_any_command_line_is_read_without_error(words: list[str]) -> None:
    for argv in (tuple(words), ("python", *words), ("sglang", "serve", *words)):
        parse_python(argv)
        launcher_kind(argv)
        hidden_launcher_kind(argv)
        is_multiprocessing_helper(argv)
        arguments = arguments_of(argv)
        assert arguments.port is None or isinstance(arguments.port, int)

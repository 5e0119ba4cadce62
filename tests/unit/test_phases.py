"""The phase table: what each release's stacks mean, and that its rows name functions that exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.target.phases import Frame, PhaseTable, PhaseTableError

TABLE = PhaseTable.load(Path("/nonexistent/phases.toml"))
SRT = "/venv/lib/python3.11/site-packages/sglang/srt/"
TORCH = "/venv/lib/python3.11/site-packages/torch/"
BOTTOM = "<module>@<string> spawn_main@multiprocessing/spawn.py run_scheduler_process@managers/scheduler.py"
PP = f"{BOTTOM} decorate_context@T/utils/_contextlib.py SchedulerPPMixin.event_loop_pp@managers/scheduler_pp_mixin.py"
PREFILL = f"{BOTTOM} event_loop_pp_disagg_prefill@managers/scheduler_pp_mixin.py"
DECODE = f"{BOTTOM} event_loop_pp_disagg_decode@managers/scheduler_pp_mixin.py"
NORMAL = f"{BOTTOM} event_loop_normal@managers/scheduler.py"
OVERLAP = f"{BOTTOM} Scheduler.event_loop_overlap@managers/scheduler.py"
RUN6 = "run_batch@managers/scheduler.py forward_batch_generation@managers/tp_worker.py"
RUN = f"_pp_launch_batch@managers/scheduler_pp_mixin.py {RUN6}"
RUN23 = (
    "SchedulerPPMixin._pp_launch_batch@managers/scheduler_pp_mixin.py scheduler_nvtx_method.<locals>.wrapper@utils/nvtx_utils.py "
    "Scheduler.run_batch@managers/scheduler.py TpModelWorker.forward_batch_generation@managers/tp_worker.py "
    "ModelRunner.forward@model_executor/model_runner.py ModelRunner._forward_raw@model_executor/model_runner.py"
)
EXCHANGE = (
    "_pp_commit_send_output_work_and_preprocess_output_tensors@managers/scheduler_pp_mixin.py "
    "_pp_send_recv_and_preprocess_output_tensors@managers/scheduler_pp_mixin.py"
)
PS = "distributed/parallel_state.py"
MIX = "managers/scheduler_pp_mixin.py"
SYNC = "Event.synchronize@T/cuda/streams.py"
PROCESS = "process_batch_result@managers/scheduler.py process_batch_result_decode@managers/scheduler_output_processor_mixin.py"
OUTPUTS = "_pp_recv_dict_from_prev_stage@managers/scheduler_pp_mixin.py"
PROXY = "_pp_recv_proxy_tensors@managers/scheduler_pp_mixin.py _pp_recv_typed_dict@managers/scheduler_pp_mixin.py"
MODEL = "forward@srt/models/llama.py _call_impl@T/nn/modules/module.py forward@layers/linear.py"
DECODE_RUNNER = "model_executor/runner/decode_cuda_graph_runner.py"

# (release, stack from the outside in, phase, whose micro-batch, only with a batch)
STACKS = [
    ("all", f"{BOTTOM} __init__@managers/scheduler.py load_model@model_executor/model_runner.py {MODEL}", "starting", "none", False),
    ("all", "<module>@<string> spawn_main@multiprocessing/spawn.py prepare@multiprocessing/spawn.py", "starting", "none", False),
    ("all", "<module>@x.py main@x.py", "other", "none", False),
    ("all", PP, "other", "none", False),
    ("0.5.9", f"{PP} self_check_during_idle@managers/scheduler_runtime_checker_mixin.py", "idle", "none", False),
    ("0.5.11", f"{PP} on_idle@managers/scheduler_runtime_checker_mixin.py maybe_sleep@managers/scheduler.py", "idle", "none", False),
    ("0.5.23", f"{NORMAL} Scheduler.on_idle@managers/scheduler.py check@x.py", "idle", "none", False),
    ("0.5.15", f"{PP} maybe_sleep@managers/scheduler_components/idle_sleeper.py poll@zmq/poll.py", "idle", "none", False),
    (
        "0.5.11",
        f"{PP} {RUN} _profile_batch_predicate@x.py stop_profile@managers/scheduler_profiler_mixin.py "
        "export_chrome_trace@T/profiler/profiler.py replay@T/cuda/graphs.py",
        "frozen", "none", False,
    ),
    ("0.5.23", f"{PP} process_input_requests@managers/scheduler.py SchedulerProfilerManager._stop_profile"
               "@managers/scheduler_components/profiler_manager.py", "frozen", "none", False),
    ("0.5.9", f"{PP} profile_and_init_predictor@{MIX} {RUN} forward_extend@model_executor/model_runner.py", "starting", "none", False),
    ("0.5.9", f"{PP} {SYNC}", "wait_gpu", "next", True),
    ("0.5.23", f"{DECODE} {SYNC}", "wait_gpu", "next", True),
    ("0.5.15", f"{OVERLAP} pop_and_process@managers/scheduler.py {PROCESS} {SYNC}", "wait_gpu", "next", True),
    ("0.5.11", f"{NORMAL} {RUN6} {SYNC}", "wait_gpu", "mb", True),
    ("0.5.6", f"{PP} {RUN6} recv_tensor_dict@{PS} recv_object@{PS}", "recv_activations", "mb", True),
    ("0.5.9", f"{PP} _pp_recv_proxy_tensors@{MIX} recv_tensor_dict@{PS} recv_object@{PS} irecv@T/distributed/distributed_c10d.py",
     "recv_activations", "mb", True),
    ("0.5.23", f"{PP} {PROXY} GroupCoordinator.recv_tensor_dict@{PS}", "recv_activations", "mb", True),
    ("0.5.6", f"{PP} recv_tensor_dict@{PS} recv_object@{PS}", "recv_outputs", "next", True),
    ("0.5.9", f"{PP} {EXCHANGE} {OUTPUTS} recv_tensor_dict@{PS}", "recv_outputs", "next", True),
    ("0.5.23", f"{PP} {EXCHANGE} _do_recv@{MIX} {OUTPUTS} _pp_recv_typed_dict@{MIX} recv_tensor_dict@{PS} recv_object@{PS}",
     "recv_outputs", "next", True),
    ("0.5.23", f"{PP} {EXCHANGE} _pp2_only_send_recv_output_tensors_npu@{MIX} send_recv_tensor_dict@{PS}", "recv_outputs", "next", True),
    ("0.5.6", f"{PP} recv_requests@managers/scheduler.py point_to_point_pyobj@utils/common.py", "wait_requests", "mb", False),
    ("0.5.23", f"{PP} Scheduler.ingest_requests@managers/scheduler.py wrapper@observability/scheduler_stage_metrics.py "
               "SchedulerRequestReceiver.recv_requests@managers/scheduler_components/request_receiver.py "
               "_pull_raw_reqs@managers/scheduler_components/request_receiver.py point_to_point_pyobj@utils/common.py",
     "wait_requests", "mb", False),
    ("0.5.11", f"{PP} recv_requests@managers/scheduler.py broadcast_pyobj@utils/common.py", "wait_peers", "none", False),
    ("0.5.15", f"{PP} recv_requests@x.py _broadcast_reqs_across_ranks@x.py broadcast_pyobj@utils/common.py", "wait_peers", "none", False),
    ("0.5.9", f"{PP} get_next_batch_to_run@managers/scheduler.py maybe_prepare_mlp_sync_batch@managers/scheduler_dp_attn_mixin.py "
              "all_gather@managers/scheduler_dp_attn_mixin.py", "wait_peers", "none", False),
    ("0.5.6", f"{PREFILL} recv_pyobj_from_prev_stage@disaggregation/prefill.py point_to_point_pyobj@utils/common.py",
     "wait_disagg", "none", False),
    ("0.5.23", f"{DECODE} _pp_pd_get_retract_ids@{MIX} _pp_recv_pyobj_from_prev_stage@{MIX} point_to_point_pyobj@utils/common.py",
     "wait_disagg", "none", False),
    ("0.5.11", f"{DECODE} _pp_pd_get_prealloc_ids@{MIX} get_rids@{MIX} poll_and_all_reduce_attn_cp_tp_group@disaggregation/utils.py",
     "wait_disagg", "none", False),
    ("0.5.9", f"{PP} _pp_commit_comm_work@{MIX} wait@x.py", "wait_send", "none", False),
    ("0.5.23", f"{PP} _pp_commit_proxy_send_work@{MIX} _pp_commit_comm_work@{MIX}", "wait_send", "none", False),
    ("0.5.6", f"{PP} send_tensor_dict@{PS} send_object@{PS}", "wait_send", "none", False),
    ("0.5.6", f"{PP} point_to_point_pyobj@utils/common.py", "wait_send", "none", False),
    ("0.5.9", f"{PP} _pp_send_pyobj_to_next_stage@{MIX} point_to_point_pyobj@utils/common.py", "send", "none", False),
    ("0.5.9", f"{PP} _pp_send_dict_to_next_stage@{MIX} send_tensor_dict@{PS}", "send", "mb", True),
    ("0.5.23", f"{PP} _pp_send_proxy_to_next_stage@{MIX} _pp_send_dict_to_next_stage@{MIX} send_tensor_dict@{PS} send_object@{PS}",
     "send", "mb", True),
    ("0.5.23", f"{PP} {EXCHANGE} _do_send@{MIX} _pp_send_output_to_next_stage@{MIX} _pp_send_dict_to_next_stage@{MIX} "
               f"send_tensor_dict@{PS}", "send", "none", False),
    ("0.5.6", f"{PP} {RUN6} forward@model_executor/model_runner.py replay@model_executor/cuda_graph_runner.py", "replay", "mb", True),
    ("0.5.11", f"{PP} {RUN} forward_extend@model_executor/model_runner.py replay@model_executor/piecewise_cuda_graph_runner.py "
               f"forward@srt/models/llama.py forward_extend@layers/attention/triton_backend.py", "replay", "mb", True),
    ("0.5.15", f"{PP} {RUN23} execute@{DECODE_RUNNER} replay@model_executor/runner_backend/full_cuda_graph_backend.py "
               "replay@T/cuda/graphs.py", "replay", "mb", True),
    ("0.5.23", f"{PP} {RUN23} PrefillCudaGraphRunner.execute@model_executor/runner/prefill_cuda_graph_runner.py "
               "forward@srt/models/deepseek_v2.py", "replay", "mb", True),
    ("0.5.9", f"{PP} {RUN} replay@model_executor/cuda_graph_runner.py replay_prepare@model_executor/cuda_graph_runner.py",
     "graph_input", "mb", True),
    ("0.5.23", f"{PP} {RUN23} DecodeCudaGraphRunner.execute@{DECODE_RUNNER} DecodeCudaGraphRunner.load_batch@{DECODE_RUNNER}",
     "graph_input", "mb", True),
    ("0.5.11", f"{PP} {RUN} forward_decode@model_executor/model_runner.py prepare@layers/x.py", "eager", "mb", True),
    ("0.5.11", f"{NORMAL} {RUN6} forward_decode@model_executor/model_runner.py {MODEL}", "eager", "mb", True),
    ("0.5.23", f"{PP} {RUN23} EagerRunner.execute@model_executor/runner/eager_runner.py _execute_decode@x.py", "eager", "mb", True),
    ("0.5.23", f"{OVERLAP} {RUN6} {MODEL} sdpa@layers/attention/x.py", "eager", "mb", True),
    ("0.5.9", f"{PP} {RUN} sample@model_executor/model_runner.py forward@layers/sampler.py", "sample", "mb", True),
    ("0.5.23", f"{OVERLAP} Scheduler.launch_batch_sample_if_needed@managers/scheduler.py", "sample", "mb", True),
    ("0.5.6", f"{PP} {RUN6} init_new@model_executor/forward_batch_info.py clamp@x.py", "prepare", "mb", True),
    ("0.5.23", f"{PP} {RUN23}", "prepare", "mb", True),
    ("0.5.9", f"{PP} get_next_batch_to_run@managers/scheduler.py update_running_batch@managers/scheduler.py", "schedule", "mb", False),
    ("0.5.15", f"{PREFILL} get_new_batch_prefill@managers/scheduler.py add_one_req@managers/schedule_policy.py", "schedule", "mb", False),
    ("0.5.23", f"{DECODE} get_next_disagg_decode_batch_to_run@disaggregation/decode.py", "schedule", "mb", False),
    ("0.5.11", f"{PP} _pp_process_batch_result@{MIX} {PROCESS} stream_output@x.py", "postprocess", "next", False),
    ("0.5.11", f"{PP} _pp_process_batch_result@{MIX} {PROCESS} append@x.py", "postprocess", "next", True),
    ("0.5.23", f"{PP} {EXCHANGE} _do_recv@{MIX} _pp_prep_batch_result@{MIX}", "postprocess", "next", True),
    ("0.5.6", f"{NORMAL} process_input_requests@managers/scheduler.py handle@x.py", "intake", "mb", False),
    ("0.5.23", f"{PP} ingest_requests@managers/scheduler.py recv_requests@x.py _pull_raw_reqs@x.py recv_pyobj@zmq/sugar/socket.py",
     "intake", "mb", False),
]  # fmt: skip


def frames_of(text: str) -> list[Frame]:
    frames: list[Frame] = []
    for item in text.split():
        function, _, file = item.rpartition("@")
        root = TORCH if file.startswith("T/") else SRT
        frames.append((function, root + file.removeprefix("T/").removeprefix("srt/"), 1))
    return frames


@pytest.mark.parametrize(("release", "text", "phase", "batch", "needs_batch"), STACKS)
def test_a_stack_means_what_the_release_does_there(
    release: str, text: str, phase: str, batch: str, needs_batch: bool
) -> None:
    meaning = TABLE.meaning(frames_of(text))
    assert (TABLE.styles[meaning.phase].name, meaning.batch, meaning.needs_batch) == (phase, batch, needs_batch), (
        release
    )
    assert TABLE.classify(frames_of(text)) == meaning.phase


def test_every_rule_decides_at_least_one_of_the_stacks() -> None:
    used = {id(TABLE.meaning(frames_of(text)).rule) for _, text, *_ in STACKS}
    silent = [rule.functions[0] for rule in TABLE.rules if id(rule) not in used]
    # Rows for frames that a release leaves in passing, between two of its own calls.
    assert set(silent) <= {
        "maybe_sleep", "self_check_during_busy", "synchronize", "_pp_recv_proxy_tensors", "_pp_recv_dict_from_prev_stage",
        "_pp_recv_pyobj_from_prev_stage", "get_rids", "_pp_send_output_to_next_stage", "_pp_send_proxy_to_next_stage",
        "_pp_send_pyobj_to_next_stage", "execute", "process_bootstrapped_queue", "_pp_send_recv_and_preprocess_output_tensors",
        "point_to_point_pyobj",
    }  # fmt: skip


def test_phases_can_be_told_apart_with_and_without_colour() -> None:
    glyphs = [style.glyph for style in TABLE.styles]
    letters = [style.ascii for style in TABLE.styles]
    colours = [style.colour for style in TABLE.styles]
    assert len(set(glyphs)) == len(set(letters)) == len(set(colours)) == len(TABLE.styles)
    # Heights, tenths, micro-batch numbers, marks and the eager sign are drawn beside them.
    assert set(glyphs).isdisjoint("▁▂▃▄▅▆▇0123456789e=~≅")
    assert set(letters).isdisjoint("0123456789e=~*")
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)
    assert {style.kind for style in TABLE.styles} == {"work", "wait", "idle", "other", "frozen"}
    for colour in colours:
        red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
        luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert (luminance + 0.05) / 0.05 >= 3, f"{colour} is lost on black"
        assert 1.05 / (luminance + 0.05) >= 1.9, f"{colour} is lost on white"


def test_a_user_row_wins_and_a_user_phase_is_added(tmp_path: Path) -> None:
    user = tmp_path / "phases.toml"
    user.write_text(
        '[[phase]]\nname="warp"\nlabel="warp"\nkind="work"\nglyph="W"\nascii="W"\ncolour="#123456"\ncolour16="red"\n'
        '[[rule]]\nfunctions=["on_idle"]\nphase="warp"\n[[rule]]\nfunctions=["fork_*"]\nphase="schedule"\nbatch="mb"\n'
    )
    table = PhaseTable.load(user)
    assert table.problem is None
    assert table.styles[table.classify(frames_of(f"{PP} on_idle@managers/scheduler.py"))].name == "warp"
    assert table.styles[table.classify(frames_of(f"{PP} Fork.fork_schedule@x.py deeper@y.py"))].name == "schedule"
    assert [s.name for s in table.styles[: len(TABLE.styles)]] == [s.name for s in TABLE.styles]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[rule", "phases.toml"),
        ('[[rule]]\nfunctions=["f"]\nphase="nowhere"', "no phase 'nowhere'"),
        ('[[rule]]\nfunctions=[]\nphase="idle"', "`functions` is empty"),
        ('[[rule]]\nfunctions=["f"]\nphase="idle"\nbatch="both"', "batch 'both'"),
        ('[[rule]]\nfunctions=["f"]\nphase="idle"\nneeds_batch=1', "true or false"),
        ("rule=3", "array of tables"),
        ("loops=3", "array of strings"),
        (
            '[[phase]]\nname="a"\nlabel="a"\nkind="fun"\nglyph="a"\nascii="a"\ncolour="red"\ncolour16="red"',
            "kind 'fun'",
        ),
        (
            '[[phase]]\nname="a"\nlabel="a"\nkind="work"\nglyph="ab"\nascii="a"\ncolour="red"\ncolour16="red"',
            "one character",
        ),
    ],
)
def test_a_broken_user_table_is_named_and_left_out(tmp_path: Path, text: str, said: str) -> None:
    user = tmp_path / "phases.toml"
    user.write_text(text)
    table = PhaseTable.load(user)
    assert table.problem is not None
    assert said in table.problem
    assert "\n" not in table.problem
    assert table.styles == TABLE.styles


def test_a_table_needs_the_phases_that_classify_falls_back_to() -> None:
    with pytest.raises(PhaseTableError, match="idle"):
        PhaseTable.from_data({})


FRAMES = st.lists(
    st.tuples(st.text(max_size=20) | st.sampled_from(["event_loop_pp", "run_batch", "a.<locals>.synchronize"]), st.text(max_size=30),
              st.none() | st.integers(0, 9999)),
    max_size=12,
)  # fmt: skip


@given(FRAMES)
def test_any_stack_has_a_phase(frames: list[Frame]) -> None:
    assert 0 <= TABLE.classify(frames) < len(TABLE.styles)


@given(FRAMES, st.lists(st.tuples(st.just("unheard_of"), st.just("elsewhere.py"), st.none()), max_size=5))
def test_frames_that_no_rule_names_do_not_change_the_phase(frames: list[Frame], unknown: list[Frame]) -> None:
    assert TABLE.classify([*frames, *unknown]) == TABLE.classify(frames)


@pytest.mark.parametrize(
    ("function", "file", "told"),
    [
        ("_run_sdpa_forward_decode", "/x/sglang/srt/layers/attention/torch_native_backend.py", True),
        (
            "TorchNativeAttnBackend._run_sdpa_forward_decode",
            "sglang/srt/layers/attention/torch_native_backend.py",
            True,
        ),
        ("_run_sdpa_forward_extend", "sglang/srt/layers/attention/torch_native_backend.py", False),
        ("_run_sdpa_forward_decode", "sglang/srt/layers/attention/intel_amx_backend.py", False),
    ],
)
def test_loops_over_requests(function: str, file: str, told: bool) -> None:
    inner: Frame = (function, file, 1)
    assert TABLE.by_request([("event_loop_pp", "x.py", 1), inner, ("sdpa", "torch/nn/functional.py", 2)]) is told
    assert not TABLE.by_request([])


INSTALLED = sorted(Path("~/.cache/sglang-cpu").expanduser().glob("venv-*/lib/python3.*/site-packages/sglang/srt"))


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


@cache
def _functions(srt: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    folders = (
        "managers",
        "disaggregation",
        "distributed",
        "utils",
        "model_executor",
        "speculative",
        "hardware_backend",
    )
    for folder in folders:
        for path in (srt / folder).rglob("*.py"):
            for name in re.findall(r"^\s*(?:async )?def (\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE):
                found.setdefault(name, set()).add(str(path))
    return found


@pytest.mark.skipif(not INSTALLED, reason="no SGLang installed by the kit in ~/.cache/sglang-cpu")
def test_every_row_names_functions_of_the_releases_it_claims() -> None:
    missing: list[str] = []
    named: dict[str, bool] = {}
    for srt in INSTALLED:
        version = next(part for part in srt.parts if part.startswith("venv-")).removeprefix("venv-")
        functions = _functions(srt)
        for rule in TABLE.rules:
            first, _, last = rule.versions.partition("-")
            covered = _order(first) <= _order(version) <= _order(last or first)
            torch_only = rule.files and all(file.startswith("torch") for file in rule.files)
            if torch_only or rule.functions == ("*",):
                continue
            present = [f for f in rule.functions if _defined(f, functions, rule)]
            named |= {f: named.get(f, False) or f in present for f in rule.functions}
            if covered and not present:
                missing.append(f"{version}: {rule.functions}")
    assert not missing
    # With an old and the newest release at hand, what is left are 0.5.6's own names, and torch's.
    if {"venv-0.5.11", "venv-0.5.23"} <= {part for srt in INSTALLED for part in srt.parts}:
        unknown = {name for name, seen in named.items() if not seen}
        assert unknown <= {"recv_pyobj_from_prev_stage", "send_pyobj_to_next_stage", "export_chrome_trace"}


def _defined(pattern: str, functions: dict[str, set[str]], rule: object) -> bool:
    from fnmatch import fnmatchcase

    from ppscope.target.phases import Rule

    assert isinstance(rule, Rule)
    return any(
        rule.fits(name, path) for name, paths in functions.items() if fnmatchcase(name, pattern) for path in paths
    )

"""The rule reader on published SGLang versions: every known rule is found where it stands, and none is made up."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ppscope.diagnose.graph_rules import answers, causes, judge
from ppscope.diagnose.graph_world import World
from ppscope.diagnose.rules_command import setting_value
from ppscope.diagnose.rules_text import report
from ppscope.sources.rules import read_rules
from ppscope.sources.rules_model import GraphRule
from tests.sglang.server import HOME
from tests.sglang.sglang_wheels import book, package

A, M, R = "srt/server_args.py", "srt/model_executor/model_runner.py", "srt/arg_groups/"
C, S = "srt/model_executor/cuda_graph_config.py", "srt/model_executor/model_runner_components/cuda_graph_setup.py"

Row = tuple[str, str, int, int, str]
"""Phases (D, P or DP), file, first and last line the rule stands in, and what its condition says, in parts around " & "."""

PIECEWISE = [  # 0.5.11's conditions for prefill graphs, which 0.5.15 keeps as a rule list
    "is_piecewise_cuda_graph_disabled_model", "enable_dp_attention", "enable_torch_compile", "pp_size > 1", "is_hip()",
    "is_out_of_tree", "moe_a2a_backend != 'none'", "lora_paths or enable_lora", "is_multimodal", "load_format == 'gguf'",
    "dllm_algorithm is not None", "cpu_offload_gb > 0 or enable_hierarchical_cache", "enable_deterministic_inference",
    "disaggregation_mode != 'null'", "enable_symm_mem", "enable_eplb or expert_distribution_recorder_mode is not None",
    "attn_cp_size > 1", "debug_cuda_graph",
]  # fmt: skip
PIECEWISE_LINES = [
    1202,
    1205,
    1208,
    1211,
    1214,
    1219,
    1223,
    1226,
    1229,
    1232,
    1239,
    1242,
    1245,
    1248,
    1251,
    1254,
    1257,
    1260,
]

TABLE: dict[str, list[Row]] = {
    "0.5.6.post2": [
        ("D", A, 3522, 3522, "disable_cuda_graph"),
        ("D", A, 1411, 1415, "attention_backend == 'torch_native'"),
        ("D", A, 1417, 1421, "attention_backend == 'flex_attention'"),
        ("D", A, 1619, 1621, "deepep_mode == 'normal'"),
        ("D", A, 1916, 1917, "disaggregation_mode == 'prefill' and not enable_piecewise_cuda_graph"),
        ("D", A, 2114, 2118, "debug_tensor_dump_output_folder is not None"),
        ("P", M, 1604, 1610, "enable_torch_compile"),
        ("P", M, 1611, 1617, "pp_size > 1"),
    ],
    "0.5.9": [
        ("D", A, 4490, 4490, "disable_cuda_graph"),
        ("D", A, 1840, 1844, "attention_backend == 'torch_native'"),
        ("D", A, 1846, 1850, "attention_backend == 'flex_attention'"),
        ("D", A, 2179, 2181, "deepep_mode == 'normal'"),
        ("D", A, 2567, 2568, "disaggregation_mode == 'prefill' and not enable_piecewise_cuda_graph"),
        ("D", A, 2801, 2806, "is_hip()"),
        ("D", A, 2854, 2858, "debug_tensor_dump_output_folder is not None"),
        ("P", M, 1647, 1652, "enable_torch_compile"),
        ("P", M, 1653, 1659, "pp_size > 1"),
    ],
    "0.5.11": [
        ("D", A, 5999, 5999, "disable_cuda_graph"),
        ("P", A, 6140, 6140, "disable_piecewise_cuda_graph"),
        ("P", A, 1186, 1192, "device == 'xpu'"),
        *(("P", A, line, line + 5, text) for line, text in zip(PIECEWISE_LINES, PIECEWISE, strict=True)),
        ("D", A, 1271, 1277, "enable_mis"),
        ("P", A, 1271, 1277, "enable_mis"),
        ("D", A, 2553, 2557, "attention_backend == 'torch_native'"),
        ("D", A, 2559, 2563, "attention_backend == 'flex_attention'"),
        ("P", A, 3041, 3051, "moe_runner_backend in ('flashinfer_trtllm', 'flashinfer_mxfp4')"),
        ("D", A, 3055, 3058, "moe_a2a_backend == 'deepep' and deepep_mode == 'normal'"),
        ("D", A, 3779, 3783, "disaggregation_mode == 'prefill' and prefill graphs are off"),
        ("D", A, 4067, 4072, "dllm_algorithm is not None and is_hip()"),
        ("D", A, 4142, 4146, "debug_tensor_dump_output_folder is not None"),
        ("D", A, 4149, 4155, "msprobe_dump_config is not None"),
        ("D", M, 2754, 2756, "not self.is_generation"),
        ("D", M, 2758, 2759, "model_impl.lower() == 'mindspore'"),
        ("P", M, 2805, 2809, "prefill graphs are off"),
        ("P", M, 2812, 2813, "is_draft_worker"),
        ("P", M, 2816, 2820, "hasattr"),
        ("P", M, 2823, 2827, "piecewise_cuda_graph_tokens"),
        ("P", M, 2834, 2838, "layers"),
        ("P", M, 2896, 2902, "num_hidden_layers"),
    ],
    "0.5.15": [
        ("D", A, 3149, 3152, "device == 'xpu'"),
        ("D", A, 3153, 3162, "cuda_graph_config.decode.backend not in ('disabled', 'full')"),
        ("P", A, 3164, 3172, "device == 'xpu'"),
        ("DP", A, 3214, 3216, "disable_cuda_graph"),
        ("P", A, 3221, 3222, "disable_prefill_cuda_graph"),
        ("D", A, 3223, 3224, "disable_decode_cuda_graph"),
        *(("P", A, 3273, 3339, f"backend == 'tc_piecewise' & {text}") for text in PIECEWISE),
        ("P", A, 3273, 3339, "enable_dsa_prefill_context_parallel"),
        *(
            ("P", A, 3341, 3385, f"backend == 'breakable' & {text}")
            for text in ("use_mla_backend", "is_deepseek_v4", "attn_cp_size > 1", "lora_paths or enable_lora",
                         "moe_a2a_backend != 'none'", "enable_dp_attention", "is_multimodal")
        ),
        ("P", A, 3405, 3425, "(prefill_attention_backend or attention_backend) == 'trtllm_mla'"),
        ("DP", A, 3446, 3452, "enable_mis"),
        ("P", A, 3896, 3900, "enable_prefill_cp"),
        ("P", A, 3936, 3937, "enable_prefill_cp"),
        ("DP", A, 4403, 4408, "attention_backend == 'torch_native'"),
        ("DP", A, 4410, 4415, "attention_backend == 'flex_attention'"),
        ("DP", A, 5104, 5107, "deepep_mode == 'normal'"),
        ("DP", A, 5957, 5968, "is_hip()"),
        ("DP", A, 6059, 6064, "debug_tensor_dump_output_folder is not None"),
        ("DP", A, 6067, 6074, "msprobe_dump_config is not None"),
        ("P", M, 2833, 2840, "num_hidden_layers"),
    ],
    "0.5.23": [
        ("DP", R + "cuda_graph_hook.py", 55, 57, "disable_cuda_graph"),
        ("P", R + "cuda_graph_hook.py", 62, 63, "disable_prefill_cuda_graph"),
        ("D", R + "cuda_graph_hook.py", 64, 65, "disable_decode_cuda_graph"),
        ("D", R + "cuda_graph_hook.py", 68, 69, "cuda_graph_backend_decode == 'disabled'"),
        ("P", R + "cuda_graph_hook.py", 70, 71, "cuda_graph_backend_prefill == 'disabled'"),
        ("DP", R + "cuda_graph_hook.py", 90, 94, "backend == 'disabled'"),
        ("P", C, 119, 123, "not is_cuda()"),
        ("P", R + "cuda_graph_hook.py", 150, 162, "pp_size > 1"),
        *(
            ("P", R + "cuda_graph_hook.py", 183, 255, text)
            for text in ("uses_kda_attention", "is_deepseek_v4", "attn_cp_size > 1", "dcp_size > 1",
                         "enable_two_batch_overlap", "moe_a2a_backend not in ('none', 'deepep', 'megamoe', 'flashinfer')",
                         "is_multimodal")
        ),
        ("P", R + "cuda_graph_hook.py", 279, 312, "== 'trtllm_mla'"),
        ("D", R + "cuda_graph_hook.py", 557, 576, "disaggregation_mode == 'prefill'"),
        ("P", R + "cuda_graph_hook.py", 557, 576, "disaggregation_mode == 'decode'"),
        ("DP", R + "attention_hook.py", 124, 141, "attention_backend == 'torch_native'"),
        ("DP", R + "attention_hook.py", 143, 160, "attention_backend == 'flex_attention'"),
        ("DP", R + "attention_hook.py", 536, 554, "enable_mis"),
        ("DP", R + "moe_hook.py", 383, 398, "moe_a2a_backend == 'deepep' and deepep_mode == 'normal'"),
        ("P", R + "moe_hook.py", 437, 444, "moe_a2a_backend == 'deepep_v2'"),
        ("P", R + "kv_shard_hook.py", 327, 338, "enable_kv_cache_sharding"),
        ("D", R + "kv_shard_hook.py", 327, 338, "speculative_algorithm is not None"),
        ("P", R + "kv_cache_hook.py", 701, 716, "cuda_graph_config.prefill.backend == 'full'"),
        ("P", R + "layernorm_sp_hook.py", 72, 93, "cuda_graph_config.prefill.backend != 'breakable'"),
        ("P", R + "cp_tp_group_sharing_hook.py", 123, 127, "'Qwen4ExpForConditionalGeneration'"),
        ("DP", R + "expert_pack_hook.py", 194, 205, "load_format == 'expert_pack'"),
        ("DP", R + "parallel_hook.py", 503, 516, "dwdp_size > 1"),
        ("DP", R + "serving_hook.py", 544, 561, "debug_tensor_dump_output_folder is not None"),
        ("DP", R + "serving_hook.py", 566, 585, "msprobe_dump_config is not None"),
        ("D", R + "platform_hook.py", 132, 139, "device == 'xpu'"),
        ("D", R + "platform_hook.py", 140, 155, "device == 'xpu'"),
        ("DP", R + "dllm_hook.py", 33, 54, "dllm_algorithm is not None and is_hip()"),
        ("P", R + "model_hook.py", 310, 322, "enable_prefill_cp"),
        ("P", R + "model_hook.py", 421, 430, "enable_prefill_cp"),
        ("DP", R + "model_hook.py", 787, 812, "hrm_text"),
        ("D", R + "model_hook.py", 918, 978, "is_embedding_gemma"),
        ("P", R + "model_hook.py", 918, 978, "not is_cuda()"),
        ("DP", R + "model_hook.py", 1011, 1021, "joint_head_config"),
        *(
            ("P", S, first, last, text)
            for first, last, text in (
                (495, 506, "prefill graphs are off"), (511, 521, "is_draft_worker"), (529, 539, "'tc_piecewise'"),
                (541, 550, "lora_manager"), (554, 565, "AttributeError"), (554, 565, "cuda_graph_config.prefill.bs"),
                (570, 579, "pp_size > 1"), (604, 615, "num_tokens"), (633, 639, "layers"), (667, 679, "standard_gqa"),
            )
        ),
        ("D", S, 720, 725, "disaggregation_mode == 'prefill'"),
        ("D", S, 726, 728, "is_generation"),
        ("D", S, 729, 730, "mindspore"),
        ("D", S, 731, 736, "decode graphs are off"),
    ],
}  # fmt: skip
VERSIONS = list(TABLE)

WRITE = re.compile(
    r"disable_(piecewise_|prefill_|decode_)?cuda_graph[\"']?\s*[=:]\s*True"  # attribute, keyword, dict entry
    r"|\b_set\([Pp]hase|(?<!== )(?<!!= )(?<!\()Backend\.DISABLED"
    r"|\"--disable-(piecewise-)?cuda-graph\""
)
SWEEP = re.compile(
    r"\bdisable_(?:piecewise_)?cuda_graph\s*=\s*True|\.backend\s*=\s*Backend\.DISABLED|\(.*backend=Backend\.DISABLED"
)


def stands(rule: GraphRule, row: Row, phase: str) -> bool:
    _phases, file, first, last, text = row
    there = any(first <= line <= last for line in (rule.line, rule.guard_line))
    return (
        rule.phase in (phase, "both")
        and rule.file == file
        and there
        and all(part in rule.condition for part in text.split(" & "))
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_every_known_rule_is_found(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    rules = book(version).rules
    wanted = [("decode" if letter == "D" else "prefill", row) for row in TABLE[version] for letter in row[0]]
    missing = [(phase, *row[1:]) for phase, row in wanted if not any(stands(rule, row, phase) for rule in rules)]
    decidable = [rule for rule in rules if not rule.undecidable]
    with capsys.disabled():
        print(
            f"\n  sglang {version}: {len(rules)} rules, {len(decidable)} decidable from settings alone, "
            f"{len(wanted)} known rows, read in {book(version).read_s:.1f} s"
        )
    assert missing == []


@pytest.mark.parametrize("version", VERSIONS)
def test_none_is_invented(version: str) -> None:
    found = book(version)
    for rule in found.rules:
        lines = (Path(found.path) / rule.file).read_text(encoding="utf-8").splitlines()
        text = lines[rule.line - 1]
        if rule.kind == "capture":
            assert text.strip().startswith("return"), (rule.file, rule.line, text)
        else:
            assert WRITE.search(text), (rule.file, rule.line, text)
        assert "kv_split" not in text
        assert not rule.file.startswith("srt/speculative/"), "writes that are restored once the draft is built"
        assert rule.source_lines == tuple(lines[rule.source_start - 1 : rule.source_start - 1 + len(rule.source_lines)])
        assert rule.source_lines[rule.line - rule.source_start] == text


@pytest.mark.parametrize("version", VERSIONS)
def test_no_write_in_the_text_is_missed(version: str) -> None:
    """A plain search of all the source, which knows nothing of guards or syntax trees."""
    found = book(version)
    covered = {(rule.file, rule.line) for rule in found.rules}
    missed = []
    for path in sorted((Path(found.path) / "srt").rglob("*.py")):
        file = path.relative_to(found.path).as_posix()
        if file.startswith("srt/speculative/"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            code = line.split("#", 1)[0]
            if SWEEP.search(code) and '"' not in code.split("=", 1)[0] and (file, number) not in covered:
                missed.append((file, number, line.strip()))
    assert missed == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("backend", "expected"), [("torch_native", "off"), ("triton", "not off")])
def test_dropping_the_flag_answers_for_the_attention_backend(version: str, backend: str, expected: str) -> None:
    asked = {"disable_cuda_graph": True, "attention_backend": backend, "pp_size": 8}
    decode, _prefill = answers(World(book(version), asked, device="cuda"))
    assert decode.state == "off"
    assert decode.fired[0].rule.kind == "flag"
    assert decode.without is not None
    if expected == "off":
        assert decode.without.state == "off"
        assert "torch_native" in decode.without.fired[0].rule.condition
    else:
        assert decode.without.fired == ()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("backend", ["torch_native", "triton"])
def test_the_text_fits_one_screen(version: str, backend: str) -> None:
    world = World(
        book(version), {"disable_cuda_graph": True, "attention_backend": backend, "pp_size": 8}, device="cuda"
    )
    lines = report(world, *answers(world))
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert "decode graphs: OFF because --disable-cuda-graph" in " ".join(" ".join(lines).split())


@pytest.mark.parametrize(("version", "fires"), [("0.5.11", True), ("0.5.15", False), ("0.5.23", True)])
def test_pipeline_parallelism_and_prefill_graphs(version: str, fires: bool) -> None:
    """0.5.15 has no such rule for its default backend: prefill graphs end only while capturing."""
    asked = {"attention_backend": "fa3", "pp_size": 8}
    judged = judge(World(book(version), asked, device="cuda"))
    assert any("pp_size > 1" in item.rule.condition for item in causes(judged, "prefill")) is fires
    assert causes(judged, "decode") == ()


RESOLVE = """
import contextlib, io, json, logging, sys
logging.disable(logging.CRITICAL)
from sglang.srt.server_args import prepare_server_args
for words in json.load(sys.stdin):
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            view = args = prepare_server_args(words)
            if hasattr(args, "resolve_once"):
                from sglang.srt.arg_groups.overrides import resolved_view
                args.resolve_once()
                view = resolved_view(args)
        graph = getattr(view, "cuda_graph_config", None)
        if graph is not None:
            off = [graph.decode.backend == "disabled", graph.prefill.backend == "disabled"]
        else:
            off = [view.disable_cuda_graph, view.disable_piecewise_cuda_graph]
    except (Exception, SystemExit):
        off = None  # this version refuses the combination
    print("@@" + json.dumps(off))
"""
CASES: list[dict[str, str | bool]] = [
    {"attention_backend": "torch_native"},
    {"attention_backend": "torch_native", "disable_cuda_graph": True},
    {"attention_backend": "triton", "disable_cuda_graph": True},
    {"attention_backend": "triton"},
    {"attention_backend": "triton", "pp_size": "2"},
    {"attention_backend": "flex_attention"},
    {"attention_backend": "triton", "debug_tensor_dump_output_folder": "dump"},
    {"attention_backend": "triton", "msprobe_dump_config": "probe"},
    {"attention_backend": "triton", "moe_a2a_backend": "deepep", "deepep_mode": "normal"},
    {"attention_backend": "triton", "disaggregation_mode": "prefill"},
    {"attention_backend": "triton", "disaggregation_mode": "decode"},
    {"attention_backend": "triton", "cuda_graph_backend_decode": "disabled"},
    {"attention_backend": "triton", "cuda_graph_backend_prefill": "breakable", "pp_size": "2"},
    {"attention_backend": "triton", "cuda_graph_config": '{"decode": {"backend": "disabled"}}'},
    {"attention_backend": "triton", "enable_torch_compile": True},
    {"attention_backend": "triton", "disable_cuda_graph": True, "cuda_graph_backend_decode": "full"},
    {"attention_backend": "triton", "disable_cuda_graph": True, "cuda_graph_config": '{"decode": {"backend": "full"}}'},
    {
        "attention_backend": "triton",
        "cuda_graph_backend_decode": "disabled",
        "cuda_graph_config": '{"decode": {"backend": "full"}}',
    },
    {
        "attention_backend": "triton",
        "cuda_graph_backend_decode": "full",
        "cuda_graph_config": '{"decode": {"backend": "disabled"}}',
    },
    {"attention_backend": "triton", "disable_decode_cuda_graph": True, "cuda_graph_backend_decode": "full"},
    {"attention_backend": "triton", "disaggregation_mode": "prefill", "cuda_graph_backend_prefill": "breakable"},
    {"attention_backend": "triton", "disable_piecewise_cuda_graph": True},
    {"attention_backend": "triton", "enforce_piecewise_cuda_graph": True},
    {"attention_backend": "triton", "enable_breakable_cuda_graph": True, "disable_cuda_graph": True},
]


@pytest.mark.parametrize("version", ["0.5.11", "0.5.15", "0.5.23"])
def test_no_claim_differs_from_what_sglang_itself_resolves(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    """SGLang's own start-up code resolves each command line (no server runs); ours may say "open", never the opposite."""
    python, model = HOME / f"venv-{version}" / "bin" / "python", HOME / "model"
    if not python.is_file() or not model.is_dir():
        pytest.skip(f"no SGLang {version} on CPU here (shared/sglang-cpu/recipe.sh install)")
    base = ["--model-path", str(model), "--device", "cpu"]
    lines = [base + [word for key, value in case.items() for word in _words(key, value)] for case in CASES]
    done = subprocess.run(
        [str(python), "-c", RESOLVE], input=json.dumps(lines), capture_output=True, text=True, timeout=240, check=False
    )
    found = [json.loads(line[2:]) for line in done.stdout.splitlines() if line.startswith("@@")]
    assert len(found) == len(CASES), done.stderr[-400:]
    agreed, still_open, wrong = 0, 0, []
    for case, off in zip(CASES, found, strict=True):
        if off is None:
            continue
        asked = {"device": "cpu", **{key: setting_value(str(value)) for key, value in case.items()}}
        judged = judge(World(book(version), asked, device="cpu"))
        for phase, really in zip(("decode", "prefill"), off, strict=True):
            own = [i for i in judged if i.rule.phase in (phase, "both") and i.rule.kind != "capture"]
            fires = any(item.verdict == "fires" for item in own)
            if not fires and any(item.verdict == "unknown" for item in own):
                still_open += 1
            elif fires is bool(really):
                agreed += 1
            else:
                wrong.append((case, phase, really, [item.rule.condition for item in own if item.verdict == "fires"]))
    with capsys.disabled():
        print(
            f"\n  sglang {version} resolves {agreed + still_open + len(wrong)} phases: {agreed} agree, {still_open} open"
        )
    assert wrong == []
    assert agreed > still_open


def _words(key: str, value: str | bool) -> list[str]:
    option = "--" + key.replace("_", "-")
    return [option] if value is True else [option, str(value)]


def test_planted_moved_and_removed_rules_follow_the_source(tmp_path: Path) -> None:
    """On a copy of the real file: line numbers come from the source, not from a list of ours."""
    srt = tmp_path / "sglang" / "srt"
    srt.mkdir(parents=True)
    copy = srt / "server_args.py"
    shutil.copy(package("0.5.11") / "srt" / "server_args.py", copy)

    def found(text: str) -> list[GraphRule]:
        copy.write_text(text, encoding="utf-8")
        return [rule for rule in read_rules(srt.parent).rules if rule.kind != "flag"]

    original = copy.read_text(encoding="utf-8")
    before = found(original)
    native = next(rule for rule in before if "'torch_native'" in rule.condition)

    head = "    def _handle_multi_item_scoring(self):\n"
    assert original.count(head) == 1
    planted = original.replace(
        head,
        "    def _planted(self):\n        if self.pp_size > 3:\n"
        '            logger.warning("CUDA graph is off for tests")\n            self.disable_cuda_graph = True\n\n'
        + head,
    )
    after = found(planted)
    (new,) = [rule for rule in after if rule.function == "_planted"]
    assert (new.phase, new.condition, new.message) == ("decode", "pp_size > 3", "CUDA graph is off for tests")
    assert len(after) == len(before) + 1

    moved = next(rule for rule in after if "'torch_native'" in rule.condition)
    assert (moved.line, moved.condition, moved.message) == (native.line + 5, native.condition, native.message)

    lines = original.splitlines(keepends=True)
    assert lines[native.line - 1].strip() == "self.disable_cuda_graph = True"
    lines[native.line - 1] = lines[native.line - 1].replace("self.disable_cuda_graph = True", "pass")
    gone = found("".join(lines))
    assert len(gone) == len(before) - 1
    assert not any("'torch_native'" in rule.condition for rule in gone)

"""The catalogue on built evidence: each finding where it belongs, nowhere else, and never more than the evidence allows."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from ppscope.diagnose.evidence import Evidence
from ppscope.diagnose.findings import CATALOGUE, judge
from ppscope.diagnose.graph_rules import Answer, Judged
from ppscope.diagnose.graph_state import Sizes
from ppscope.records import Fact, GpuDevice, LogNote
from ppscope.sources.rules_model import Condition, GraphRule, literal
from ppscope.views import Finding, GraphState, Occupancy
from tests.shared import ROOT
from tests.terminal.test_check import EXPECTED
from tests.unit.findings_tools import (
    STARVED,
    decode_lines,
    evidence,
    gpu,
    ids,
    load,
    server,
    settings,
    stage,
    stages,
)

NATIVE = GraphRule(
    "decode", "srt/server_args.py", 2553, "_handle_attention", "attention_backend == 'torch_native'",
    Condition("==", (Condition("setting", name="attention_backend"), literal("torch_native"))), message="Cuda graph is disabled",
)  # fmt: skip
FLAG = GraphRule(
    "decode", "srt/arg_groups/cuda_graph_hook.py", 55, "resolve", "disable_cuda_graph",
    Condition("requested", name="disable_cuda_graph"), kind="flag",
)  # fmt: skip
ON = Answer("decode", "on", (), ())
BY_RULE = Answer("decode", "off", (Judged(NATIVE, "fires"),), (), ON)
BY_FLAG = Answer("decode", "off", (Judged(FLAG, "fires"),), (), BY_RULE)
OFF = GraphState(None, "off", "off", "log")
SERIAL: dict[str, Any] = {
    "occupancy": Occupancy(8, 1.0, 50, "sampled"),
    "resolved": settings(pp_max_micro_batch_size=256),
    "in_flight": None,
}
TWO = {"server": server(2), "stages": stages(count=2)}
IDLE_POWER = stages(gpu=gpu(power_w=85.0, util=3.0))

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "serial": ("pipeline.serial", SERIAL),
    "serial: two of four slots, as far as samples tell": (
        "pipeline.serial",
        {**SERIAL, "server": server(4), "stages": stages(count=4), "occupancy": Occupancy(4, 2.1, 50, "sampled")},
    ),
    "serial: one of two slots, nobody counts": ("pipeline.serial", {**SERIAL, **TWO, "occupancy": Occupancy(2, 1.1, 45, "sampled")}),
    "serial: one batch of all that moves between two slots": (
        "pipeline.serial",
        {**SERIAL, **TWO, "occupancy": Occupancy(2, 1.3, 43, "sampled"), "in_flight": 8, "micro_batch": 8.0},
    ),
    "serial: one batched request is one open request": (
        "pipeline.serial",
        {**SERIAL, "load": load(None), "in_flight": 1, "running_at_least": 8},
    ),
    "too few requests": (
        "load.too_few_requests",
        {"load": load(1), "occupancy": Occupancy(8, 1.0, 50, "sampled"), "running_at_least": 1, "micro_batch": 1.0, "in_flight": 1,
         "running_at_most": 1},
    ),
    "by flag": ("graphs.disabled_by_flag", {"decode": GraphState("off", "off", "off", "log"), "replay_share": 0.0}),
    "by flag, with the rules": ("graphs.disabled_by_flag", {"decode": OFF, "rule": BY_FLAG, "replay_share": 0.0}),
    "by flag, settings refused": ("graphs.disabled_by_flag", {"decode": GraphState("off", None, "off", "log")}),
    "by rule": ("graphs.disabled_by_rule", {"decode": OFF, "rule": BY_RULE, "replay_share": 0.0}),
    "by rule, source not readable": (
        "graphs.disabled_by_rule",
        {"decode": OFF, "rules_problem": "no permission", "replay_share": 0.0},
    ),
    "batch over captured": (
        "graphs.batch_over_captured",
        {"batches": decode_lines(64, False), "micro_batch": 64.0, "replay_share": 0.0, "decode": GraphState(None, "on", "off", "log")},
    ),
    "batch over captured, by counters alone": (
        "graphs.batch_over_captured",
        {"batches": (), "micro_batch": 64.0, "replay_share": 0.0, "decode": GraphState(None, "on", "off", "metrics")},
    ),
    "eager decode": ("graphs.eager_decode", {"replay_share": 0.1, "decode": GraphState(None, "on", "mixed", "metrics")}),
    "imbalance": ("pipeline.imbalance", {"stages": stages([0.4, 0.4, 0.4, 0.9, 0.4, 0.4, 0.4, 0.4])}),
    "bubbles": ("pipeline.bubbles", {"stages": stages([0.4] * 8)}),
    "last stage sync": (
        "pipeline.last_stage_sync",
        {"stages": (*stages([0.7] * 7), stage(7, busy=0.75, phases={"schedule": 0.15, "postprocess": 0.15, "wait_gpu": 0.7}))},
    ),
    "idle power": ("gpu.idle_while_serving", {"stages": IDLE_POWER}),
    "spinning": ("gpu.spinning", {"stages": stages(phases=STARVED, gpu=gpu(power_w=160.0, util=100.0))}),
    "throttled": (
        "gpu.throttled",
        {"stages": (*stages(count=7), stage(7, gpu=gpu(7, throttled=(("hw_thermal", 0.6), ("gpu_idle", 0.1)))))},
    ),
    "cpu bound": (
        "host.cpu_bound",
        {"stages": (stage(0, phases={"eager": 0.9, "wait_gpu": 0.1}, host_cpu=0.97, gpu=gpu(util=40.0)), *stages(count=8)[1:])},
    ),
    "draft eager": (
        "graphs.eager_leak",
        {"draft_eager": 0.12, "draft_replayed": 0.0, "resolved": settings(speculative_algorithm="EAGLE")},
    ),
    "queue blocked": (
        "server.queue_blocked",
        {"active": False, "load": load(None, 3, None), "queued_s": 9.0, "occupancy": Occupancy(8, None, 2, None)},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("requested", "words"),
    [
        ({}, "--cuda-graph-max-bs-decode 64 (cost"),
        ({"cuda_graph_max_bs_decode": 32}, "--cuda-graph-max-bs-decode 64 (cost"),
        ({"cuda_graph_bs_decode": [1, 2, 4]}, "add 64 to the sizes of --cuda-graph-bs-decode"),
        ({"cuda_graph_bs": [1, 2, 4]}, "add 64 to the sizes of --cuda-graph-bs-decode"),
        (
            {"cuda_graph_config": {"decode": {"bs": [1, 2]}}, "cuda_graph_bs": [1]},
            "add 64 to decode.bs in --cuda-graph-config",
        ),
        ({"cuda_graph_config": '{"decode": {"max_bs": 32}}'}, "decode.max_bs 64 in --cuda-graph-config"),
        (
            {"cuda_graph_config": {"decode": {"max_bs": 8}}, "cuda_graph_bs": [1]},
            "add 64 to the sizes of --cuda-graph-bs-decode",
        ),
    ],
)
def test_larger_graphs_are_asked_for_where_their_sizes_were_set(requested: dict[str, object], words: str) -> None:
    """A largest size beside a list of sizes changes nothing (0.5.15 server_args.py 3560-3567)."""
    (found,) = judge(evidence(**CASES["batch over captured"][1], requested=requested))
    assert words in found.remedy


def test_the_remedy_of_replicas_is_for_each() -> None:
    """16 requests a replica in one slot each: 4 a slot fill four slots of both."""
    four = {"stages": stages(count=4), "occupancy": Occupancy(4, 1.0, 50, "sampled"), "micro_batch": 16.0}
    of = {**SERIAL, **four, "server": server(4, dp_size=2), "in_flight": 32, "load": load(32), "running_at_least": 32}
    (found,) = judge(evidence(**of))
    assert found.id == "pipeline.serial"
    assert "--pp-max-micro-batch-size 4 (at most 4 × 8 = 32 requests" in found.remedy


@pytest.mark.parametrize("case", [case for case in CASES if case != "queue blocked"])
def test_the_last_seconds_of_a_server_that_ended_are_judged(case: str) -> None:
    """A recording ends with its server: before a restart with other flags."""
    of = evidence(**CASES[case][1])
    gone = msgspec.structs.replace(of, server=msgspec.structs.replace(of.server, state="gone"))
    assert ids(gone) == ids(of)


def test_one_node_of_several_is_measured_by_its_own_stages() -> None:
    quarter = stages(count=4, phases={"eager": 0.06, "recv_outputs": 0.94}, gpu=gpu(power_w=85.0, util=3.0))
    assert "gpu.idle_while_serving" in ids(
        evidence(server=server(16), stages=quarter, occupancy=Occupancy(16, None, 2, None))
    )


def test_a_server_behind_tls_is_told_by_https() -> None:
    of = server(facts=(Fact("tls", "yes", "cmdline"),))
    (found,) = judge(evidence(**{**SERIAL, "server": of}))
    assert "curl -X POST https://127.0.0.1:30000/set_internal_state" in found.remedy


def test_a_part_of_the_stages_is_not_given_layers() -> None:
    """On one of two nodes: a partition of the layers needs a number for every stage."""
    seen = tuple(stage(pp, busy=busy, layers=15) for pp, busy in enumerate((0.4, 0.4, 0.4, 0.9)))
    (found,) = judge(evidence(stages=seen, server=server(8)))
    assert found.id == "pipeline.imbalance"
    assert "=n0,n1" in found.remedy
    assert "the stages of this node" in found.summary


@pytest.mark.parametrize("pp", [1, 2])
def test_power_capped_and_slow_is_throttled(pp: int) -> None:
    slow = gpu(throttled=(("sw_power_cap", 0.9),), sm_clock_mhz=1200.0, sm_clock_max_mhz=1980)
    assert "gpu.throttled" in ids(evidence(server=server(pp), stages=stages(count=pp, gpu=slow)))


def only(case: str) -> Finding:
    found = judge(evidence(**CASES[case][1]))
    assert [finding.id for finding in found] == [CASES[case][0]]
    return found[0]


def test_a_healthy_server_has_none() -> None:
    assert ids(evidence()) == set()


@pytest.mark.parametrize("case", CASES)
def test_each_finding_alone_and_complete(case: str) -> None:
    finding = only(case)
    severity = {"graphs": "high", "server": "high", "load": "info"}.get(finding.id.partition(".")[0], "medium")
    others = {"pipeline.serial": "high", "gpu.spinning": "info", "graphs.eager_leak": "medium"}
    assert finding.severity == others.get(finding.id, severity)
    assert finding.evidence
    assert finding.remedy
    assert finding.provenance in ("exact", "sampled", "inferred")
    assert not re.search(r"\bNone\b|\bnan\b|\d%", " ".join((finding.summary, *finding.evidence, finding.remedy)))
    assert all(line[0] not in " (" for line in finding.evidence)


def test_every_finding_that_the_readme_names_is_judged_here_and_shown_by_a_scenario() -> None:
    """But for one: the emulator has no installed source whose rules could be read; tests/sglang shows that."""
    text = (ROOT / "README.md").read_text()
    table = text[text.index("| finding | claimed when |") :].split("\n\n", maxsplit=1)[0]
    named = set(re.findall(r"`([a-z]+\.[a-z_]+)`", table))
    assert named == {name for name, _ in CASES.values()}
    by_burst = {"graphs.eager_leak"}
    shown = set[str]().union(*(above | infos for above, infos in EXPECTED.values())) | by_burst
    assert named - shown == {"graphs.disabled_by_rule"}


@pytest.mark.parametrize("case", [case for case in CASES if case != "queue blocked"])
def test_an_idle_or_loading_server_has_none(case: str) -> None:
    of = evidence(**CASES[case][1])
    assert ids(msgspec.structs.replace(of, active=False)) == set()
    loading = msgspec.structs.replace(of.server, state="loading")
    assert ids(msgspec.structs.replace(of, server=loading)) == set()


NEAR: dict[str, dict[str, Any]] = {
    "three of four slots": {**SERIAL, "server": server(4), "stages": stages(count=4), "occupancy": Occupancy(4, 2.5, 60, "sampled")},
    "two slots, most requests in one": {
        **SERIAL, **TWO, "occupancy": Occupancy(2, 1.3, 43, "sampled"), "in_flight": 8, "micro_batch": 5.5,
    },
    "one of two slots or both, nobody counts": {**SERIAL, **TWO, "occupancy": Occupancy(2, 1.2, 29, "sampled")},
    "half of the slots, or more: too near to say": {**SERIAL, "occupancy": Occupancy(8, 4.0, 60, "sampled")},
    "two of four slots, from too few samples": {
        **SERIAL, "server": server(4), "stages": stages(count=4), "occupancy": Occupancy(4, 2.0, 20, "sampled"),
    },
    "dumps say one slot, the server's counts need eight": {
        **SERIAL, "load": load(None), "running_at_least": 64, "in_flight": 64, "micro_batch": 8.0,
    },
    "too few samples": {**SERIAL, "occupancy": Occupancy(8, None, 19, None)},
    "slots not known": {**SERIAL, "occupancy": Occupancy(None, 1.0, 60, "sampled")},
    "one stage only": {**SERIAL, "occupancy": Occupancy(None, None, 0, None), "server": server(1)},
    "nobody says how many run": {**SERIAL, "load": load(None), "running_at_least": None, "in_flight": None, "micro_batch": None},
    "resolved off, seen replaying": {"decode": GraphState(None, "off", "on", "log"), "rule": BY_RULE},
    "off, but nobody says by whom": {"decode": OFF, "requested": None, "replay_share": 0.0},
    "asked off, nothing seen": {"decode": GraphState("off", None, None)},
    "a few large batches": {"batches": (*decode_lines(8), *decode_lines(64, False, 2)), "micro_batch": 16.0},
    "large batches that replay": {"batches": decode_lines(64), "micro_batch": 64.0},
    "captured sizes not known": {"batches": decode_lines(64), "micro_batch": 64.0, "captured": None},
    "no busy evidence": {"stages": (*stages([0.4] * 7), stage(7))},
    "busy evidence from two sources": {"stages": (*stages([0.3] * 7), stage(7, busy=0.9, source="trace"))},
    "hardly any work": {"stages": stages([0.01] * 7 + [0.05])},
    "as even as whole layers can be": {"stages": tuple(stage(k, busy=0.3 + 0.3 * (k == 2), layers=1) for k in range(8))},
    "one GPU works": {"stages": (*IDLE_POWER[:7], stage(7))},
    "a GPU without power": {"stages": (*IDLE_POWER[:7], stage(7, gpu=gpu(7, power_w=None)))},
    "no GPU": {"stages": stages(gpu=None)},
    "low power at work": {"stages": stages(gpu=gpu(power_w=200.0, util=100.0))},
    "a stage between two others' paces": {"stages": stages([0.9] * 7 + [0.95])},
    "throttled for a moment": {"stages": stages(gpu=gpu(throttled=(("sw_power_cap", 0.15), ("gpu_idle", 0.9))))},
    "busy scheduler, busy GPU": {"stages": stages(phases={"eager": 0.9}, host_cpu=0.97)},
    "scheduler that polls": {"stages": stages(phases={"idle": 0.9, "replay": 0.1}, host_cpu=0.97, gpu=gpu(util=30.0))},
    "a draft that replays": {"draft_eager": 0.05, "draft_replayed": 0.1},
    "a draft hardly seen": {"draft_eager": 0.02, "draft_replayed": 0.0},
    "a draft whose target's passes nobody counts": {"draft_eager": 0.2, "draft_replayed": 0.0, "replay_share": None},
    "a queue that moves": {"load": load(64, 40), "queued_s": 30.0},
    "a queue while a trace is written": {
        "active": False, "load": load(None, 3, None), "queued_s": 9.0, "stages": stages(phases={"frozen": 1.0}),
    },
    "a node that only prefills": {"decode": OFF, "rule": BY_RULE, "resolved": settings(disaggregation_mode="prefill")},
    "a server of embeddings": {"decode": OFF, "resolved": settings(is_embedding=True)},
    "no decode pass among those that were counted": {"decode": OFF, "rule": BY_FLAG, "decodes": False, "batches": ()},
    "a CPU without torch.compile": {"decode": GraphState(None, "off", "off", "log"), "server": server(device="cpu")},
    "a CPU whose setting says on": {"replay_share": 0.0, "decode": GraphState(None, "on", "off", "log"), "server": server(device="cpu")},
    "a chat now and then": {
        "stages": stages(phases={"replay": 0.02, "wait_gpu": 0.01, "wait_requests": 0.97}, gpu=gpu(power_w=140.0, util=3.0)),
    },
    "at its power limit at nearly full clocks": {
        "stages": stages(gpu=gpu(throttled=(("sw_power_cap", 0.9),), sm_clock_mhz=1900.0, sm_clock_max_mhz=1980)),
    },
    "application clocks, and no clock told": {"stages": stages(gpu=gpu(throttled=(("app_clocks", 1.0),)))},
    "the last stage is on another node": {
        "stages": (*stages([0.7] * 3), stage(3, busy=0.75, phases={"schedule": 0.15, "postprocess": 0.15, "wait_gpu": 0.7})),
    },
    "slots to spare: two of four fill two stages": {
        **SERIAL, **TWO, "occupancy": Occupancy(4, 2.0, 60, "sampled"), "resolved": settings(pp_async_batch_depth=2),
    },
    "requests for every stage, not for every spare slot": {
        **TWO, "occupancy": Occupancy(4, 2.0, 60, "sampled"), "load": load(2), "running_at_least": 2, "running_at_most": 2, "in_flight": 2,
        "micro_batch": 1.0,
    },
    "two replicas fill their slots": {
        **SERIAL, "server": server(dp_size=2), "occupancy": Occupancy(8, 7.9, 60, "sampled"), "in_flight": 128, "load": load(128),
    },
}  # fmt: skip


@pytest.mark.parametrize("near", NEAR)
def test_what_only_looks_like_a_finding_is_none(near: str) -> None:
    assert ids(evidence(**NEAR[near])) == set()


OPTIONAL: dict[str, Any] = {
    "requested": None,
    "resolved": None,
    "batches": (),
    "micro_batch": None,
    "in_flight": None,
    "running_at_least": None,
    "running_at_most": None,
    "replay_share": None,
    "rule": None,
    "captured": None,
    "layers": None,
    "draft_eager": None,
    "active": None,
    "load": load(None, None, None),
    "occupancy": Occupancy(None, None, 0, None),
    "decode": GraphState(None, None, None),
    "stages": (),
}
WEAKER = {
    "graphs.batch_over_captured": {"graphs.eager_decode"},
    "pipeline.serial": {"load.too_few_requests"},
    "graphs.disabled_by_flag": {"graphs.disabled_by_rule"},
    "graphs.disabled_by_rule": {"graphs.disabled_by_flag"},
}
"""What a finding may turn into once a piece of its evidence is missing: a weaker claim of the same facts."""


@settings_of(deadline=None)
@given(st.sampled_from(sorted(CASES)), st.sets(st.sampled_from(sorted(OPTIONAL))))
def test_missing_evidence_only_lowers_what_is_claimed(case: str, missing: set[str]) -> None:
    name, changes = CASES[case]
    of = evidence(**{**changes, **{field: OPTIONAL[field] for field in missing}})
    assert ids(of) <= {name} | WEAKER.get(name, set())


def test_blank_evidence_claims_nothing() -> None:
    nothing = GraphState(None, None, None)
    blank = Evidence(0.0, server(), (), load(None, None, None), Occupancy(None, None, 0, None), nothing, nothing)
    assert [entry(blank) for entry in CATALOGUE] == [None] * len(CATALOGUE)


class TestWords:
    """What the findings say."""

    @pytest.mark.parametrize(
        ("running", "queued", "slots", "wanted"),
        [(8, 0, 8, 1), (8, 0, 4, 2), (9, 0, 4, 3), (8, 5, 4, 4), (64, 0, 8, 8)],
    )
    def test_serial_remedy_covers_running_and_queued(self, running: int, queued: int, slots: int, wanted: int) -> None:
        of = evidence(
            **{**SERIAL, "server": server(slots), "stages": stages(count=slots)},
            load=load(running, queued),
            running_at_least=running,
        )
        of = msgspec.structs.replace(of, occupancy=Occupancy(slots, 1.0, 50, "sampled"))
        (finding,) = judge(of)
        assert f"--pp-max-micro-batch-size {wanted} (at most {wanted} × {slots} = {wanted * slots}" in finding.remedy
        assert f'{{"server_args": {{"pp_max_micro_batch_size": {wanted}}}}}' in finding.remedy

    def test_a_limit_that_is_low_already_is_not_recommended_again(self) -> None:
        finding = judge(evidence(**{**SERIAL, "resolved": settings(pp_max_micro_batch_size=1)}))[0]
        assert "curl" not in finding.remedy
        assert "is 1 already" in finding.remedy

    def test_a_rule_is_named_with_file_line_and_what_comes_next(self) -> None:
        finding = only("by rule")
        assert finding.source == (("srt/server_args.py", 2553),)
        assert finding.provenance == "exact"
        assert any("srt/server_args.py:2553" in line for line in finding.evidence)

    def test_dropping_the_flag_is_not_enough_where_a_rule_waits(self) -> None:
        finding = only("by flag, with the rules")
        assert any("graphs stay off all the same: srt/server_args.py:2553" in line for line in finding.evidence)

    def test_without_the_source_the_rule_is_only_inferred(self) -> None:
        finding = only("by rule, source not readable")
        assert (finding.provenance, finding.source) == ("inferred", ())
        assert any("no permission" in line for line in finding.evidence)

    def test_the_graph_flag_is_that_of_the_version(self) -> None:
        assert "--cuda-graph-max-bs-decode 64" in only("batch over captured").remedy
        old = {key: value for key, value in settings().items() if key != "cuda_graph_config"}
        (finding,) = judge(evidence(**{**CASES["batch over captured"][1], "resolved": old}))
        assert "--cuda-graph-max-bs 64" in finding.remedy

    def test_with_dp_attention_the_largest_replica_decides(self) -> None:
        lines = tuple(
            msgspec.structs.replace(line, dp=at % 2, running=64 if at % 2 else 4) for at, line in enumerate(decode_lines(4, False))
        )  # fmt: skip
        changes = {"server": server(dp_size=2), "resolved": settings(enable_dp_attention=True), "batches": lines}
        assert ids(evidence(**changes, micro_batch=None, replay_share=0.0)) == {"graphs.batch_over_captured"}

    @pytest.mark.parametrize(
        ("changed", "word"),
        [
            ({"enable_mixed_chunk": True}, "mixed chunks"),
            ({"disable_cuda_graph_padding": True}, "padding is disabled"),
            ({"enable_return_hidden_states": True}, "cannot be known"),
            ({"speculative_algorithm": "EAGLE"}, "draft model"),
        ],
    )
    def test_runtime_reasons(self, changed: dict[str, object], word: str) -> None:
        changes = {
            **CASES["eager decode"][1],
            "resolved": settings(**changed),
            "captured": Sizes((1, 2, 4), "captured"),
        }
        (finding,) = judge(evidence(**changes, batches=decode_lines(3, False), micro_batch=3.0))
        assert word in " ".join(finding.evidence)

    @pytest.mark.parametrize(
        ("replayed", "eager", "word"),
        [(0.1, 0.01, "the draft model replays"), (0.0, 0.1, "the draft model runs eager")],
    )
    def test_what_was_seen_of_the_draft_is_told(self, replayed: float, eager: float, word: str) -> None:
        changes = {**CASES["eager decode"][1], "resolved": settings(speculative_algorithm="EAGLE")}
        (finding,) = judge(evidence(**changes, draft_eager=eager, draft_replayed=replayed))
        assert word in " ".join(finding.evidence)

    def test_the_log_tells_why_a_draft_has_no_graph(self) -> None:
        notes = (
            LogNote(
                0,
                "graph_disabled",
                "Disable DFLASH draft cuda graph because cpu does not support device graph capture.",
            ),
            LogNote(0, "graph_disabled", "Disable prefill CUDA graph because no sizes"),
        )
        (finding,) = judge(evidence(**CASES["draft eager"][1], log_notes=notes))
        assert [line for line in finding.evidence if line.startswith("log:")] == [f"log: {notes[0].text}"]
        (off,) = judge(evidence(**CASES["by rule, source not readable"][1], log_notes=notes))
        assert not any(line.startswith("log:") for line in off.evidence), "both are about other graphs"
        own = LogNote(0, "graph_disabled", "Cuda graph is disabled because of using torch native attention backend")
        (off,) = judge(evidence(**CASES["by rule, source not readable"][1], log_notes=(*notes, own)))
        assert f"log: {own.text}" in off.evidence

    def test_bubbles_name_links_and_what_to_run(self) -> None:
        devices = [
            GpuDevice(index, f"GPU-{index}", "B200", pcie_gen_max=5, pcie_width_max=16, p2p=((index + 1, "SYS"),))
            for index in range(8)
        ]
        told = tuple(
            stage(pp, busy=0.4, gpu=gpu(pp, device=devices[pp], pcie_gen=1 if pp == 2 else 5, pcie_width=16))
            for pp in range(8)
        )
        (finding,) = judge(evidence(stages=told))
        lines = " / ".join(finding.evidence)
        assert "links between neighbouring stages: GPU 0 to 1 SYS, GPU 1 to 2 SYS" in lines
        assert "PCIe below what it can: GPU 2 gen 1 ×16 of gen 5 ×16" in lines
        assert "computes 40 % at most" in lines
        assert "nvidia-smi topo -m" in finding.remedy
        at_work = {"schedule": 0.6, "wait_gpu": 0.4}
        (finding,) = judge(evidence(stages=stages([0.4] * 8, phases=at_work)))
        assert "ppscope attach 50" in finding.remedy

    def test_crowded_cores_are_told(self) -> None:
        phases = {"eager": 0.9, "wait_gpu": 0.1}
        (finding,) = judge(evidence(stages=stages(phases=phases, host_cpu=0.95, wait=0.3, gpu=gpu(util=40.0))))
        assert any("without a core 30 %" in line for line in finding.evidence)

    def test_depth_carries_its_risk(self) -> None:
        assert "#15527" in only("last stage sync").remedy


@pytest.mark.parametrize("case", [name for name, (identity, _) in CASES.items() if identity == "pipeline.serial"])
def test_a_serial_pipeline_is_never_said_to_fill_more_than_half(case: str) -> None:
    of = evidence(**CASES[case][1])
    summary = next(finding.summary for finding in judge(of) if finding.id == "pipeline.serial")
    found = re.search(r"sit in ≈?(?:\d+–)?(\d+) of (\d+)", summary)
    assert found is not None, summary
    assert 2 * int(found[1]) <= max(int(found[2]), 2)


@pytest.mark.parametrize(
    ("running", "queued", "in_flight", "wanted"),
    [
        (64, 0, 64, 8),
        (64, 1, 64, 8),
        (64, 1, 65, 9),
        (64, 16, None, 10),
        (64, 0, 63, 8),
        (64, 16, 8, 10),
    ],
)
def test_a_request_that_takes_the_place_of_another_is_not_counted_twice(
    running: int, queued: int, in_flight: int | None, wanted: int
) -> None:
    """In the last row a request carries eight prompts, so that open requests say nothing of the load."""
    of = evidence(**{**SERIAL, "load": load(running, queued), "in_flight": in_flight, "micro_batch": 64.0})
    finding = next(finding for finding in judge(of) if finding.id == "pipeline.serial")
    assert f"--pp-max-micro-batch-size {wanted} " in finding.remedy

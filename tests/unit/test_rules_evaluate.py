"""Three-valued judging of graph rules: true, false, cannot know; and what fires once the first cause is gone."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppscope.diagnose.graph_rules import Evaluator, answers, judge
from ppscope.diagnose.graph_world import Open, World
from ppscope.sources.rules_model import (
    FALSE,
    TRUE,
    Condition,
    GraphRule,
    RuleBook,
    conjunction,
    disjunction,
    fact,
    literal,
    negate,
    render,
)


def setting(name: str) -> Condition:
    return Condition("setting", name=name)


def compare(name: str, op: str, value: str | int | None) -> Condition:
    return Condition(op, (setting(name), literal(value)))


def rule(tree: Condition, phase: str = "decode", kind: str = "setting", line: int = 1) -> GraphRule:
    return GraphRule(phase, "srt/server_args.py", line, "handle", render(tree), tree, kind)


FLAG = Condition("requested", name="disable_cuda_graph")
NATIVE = compare("attention_backend", "==", "torch_native")


def book(*rules: GraphRule, dialect: str = "flags") -> RuleBook:
    return RuleBook(
        version="0",
        path="/x",
        dialect=dialect,
        rules=rules,
        settings=frozenset({"pp_size", "attention_backend", "disable_cuda_graph", "device"}),
        defaults={"pp_size": 1, "attention_backend": None, "disable_cuda_graph": False, "device": None},
        resolved_late=frozenset({"attention_backend", "device"}),
        backends={
            "decode": literal("full"),
            "prefill": Condition("if", (Condition("platform", name="cuda"), literal("breakable"), literal("disabled"))),
        },
    )


def verdict(world: World, tree: Condition) -> str:
    (judged,) = judge(World(book(rule(tree)), world.asked, world.requested, world.resolved, world.device))
    return judged.verdict


NOTHING = World(book())


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (compare("pp_size", ">", 1), "does_not"),  # the source's default decides
        (NATIVE, "unknown"),  # start-up replaces the default, so it does not
        (conjunction([compare("pp_size", ">", 1), fact("is_x(y)")]), "does_not"),
        (conjunction([compare("pp_size", "==", 1), fact("is_x(y)")]), "unknown"),
        (disjunction([compare("pp_size", "==", 1), fact("is_x(y)")]), "fires"),
        (negate(fact("is_x(y)")), "unknown"),
        (compare("never_heard_of", "==", 1), "unknown"),
        (fact("model_runner.is_draft_worker"), "does_not"),  # the target model is asked about
        (Condition("late", name="x"), "does_not"),
        (Condition("in", (setting("pp_size"), Condition("tuple", (literal(1), fact("n"))))), "fires"),
        (Condition("in", (setting("pp_size"), Condition("tuple", (literal(2), fact("n"))))), "unknown"),
        (compare("pp_size", ">", None), "unknown"),
        (Condition("==", (setting("pp_size"), literal(True))), "does_not"),  # 1 is not True
    ],
)
def test_without_a_server(tree: Condition, expected: str) -> None:
    assert verdict(NOTHING, tree) == expected


@pytest.mark.parametrize(
    ("device", "name", "expected"),
    [
        ("cuda", "cuda", "fires"),
        ("cuda", "hip", "does_not"),
        ("hip", "hip", "fires"),
        ("cpu", "sm100", "does_not"),
        ("cpu", "cpu", "unknown"),  # real 0.5.11 on --device cpu: is_cpu() is False without SGLANG_USE_CPU_ENGINE
        ("cuda", "cpu", "does_not"),
        ("cuda", "sm100", "unknown"),
        ("cuda", "out_of_tree", "unknown"),
        (None, "cuda", "unknown"),
    ],
)
def test_platform_helpers_follow_the_observed_device(device: str | None, name: str, expected: str) -> None:
    assert verdict(World(book(), device=device), Condition("platform", name=name)) == expected


def test_the_servers_own_word_cuda_does_not_tell_nvidia_from_amd() -> None:
    says_cuda = World(book(), resolved={"device": "cuda"})
    assert verdict(says_cuda, Condition("platform", name="hip")) == "unknown"
    assert verdict(says_cuda, Condition("platform", name="npu")) == "does_not"


def test_undecided_names_are_those_that_would_decide() -> None:
    tree = conjunction([compare("pp_size", "==", 1), NATIVE, fact("is_x(y)"), fact("is_x(y)")])
    (judged,) = judge(World(book(rule(tree))))
    assert judged.undecided == ("attention_backend", "is_x(y)")


@pytest.mark.parametrize("backend", ["torch_native", "triton"])
def test_if_only_the_flag_is_dropped(backend: str) -> None:
    rules = book(rule(FLAG, kind="flag"), rule(NATIVE, line=2))
    decode, prefill = answers(World(rules, {"disable_cuda_graph": True, "attention_backend": backend}))
    assert (decode.state, decode.fired[0].rule.kind, prefill.state) == ("off", "flag", "on")
    assert decode.without is not None
    assert decode.without.state == ("off" if backend == "torch_native" else "on")


def test_dropping_the_flag_unlocks_the_rules_it_held_back() -> None:
    """0.5.23: a phase the user chose is left alone, so the pipeline rule shows only once the flag is gone."""
    locked = Condition("locked", name="prefill.backend")
    pipeline = conjunction(
        [
            negate(locked),
            compare("pp_size", ">", 1),
            Condition("==", (Condition("backend", name="prefill"), literal("breakable"))),
        ]
    )
    rules = book(rule(FLAG, "prefill", "flag"), rule(pipeline, "prefill", line=2), dialect="config")
    _decode, prefill = answers(World(rules, {"disable_cuda_graph": True, "pp_size": 8}, device="cuda"))
    assert [item.rule.line for item in prefill.fired] == [1]
    assert prefill.without is not None
    assert [item.rule.line for item in prefill.without.fired] == [2]
    asked = {"pp_size": 8, "cuda_graph_backend_prefill": "breakable"}
    assert answers(World(rules, asked, device="cuda"))[1].state == "on"
    assert answers(World(rules, {"pp_size": 8}))[1].state == "open"  # which backend it is hangs on the platform


SWITCH = GraphRule("decode", "srt/x.py", 10, "parse", "disable_cuda_graph", FLAG, "flag", order=20)
SELECTOR = Condition("==", (Condition("requested", name="cuda_graph_backend_decode"), literal("disabled")))
JSON = Condition("==", (Condition("requested", name="cuda_graph_config.decode.backend"), literal("disabled")))
WORDS = (
    SWITCH,
    GraphRule("decode", "srt/x.py", 11, "parse", "selector", SELECTOR, "flag", order=20),
    GraphRule("decode", "srt/x.py", 12, "parse", "json", JSON, "flag", order=20),
    GraphRule("prefill", "srt/x.py", 13, "parse", "disable_cuda_graph", FLAG, "flag", order=20),
)


@pytest.mark.parametrize(
    ("asked", "fired"),
    [
        ({"disable_cuda_graph": True}, [10]),
        ({"disable_cuda_graph": True, "cuda_graph_backend_decode": "full"}, []),
        ({"disable_cuda_graph": True, "cuda_graph_backend_decode": "disabled"}, [10, 11]),
        ({"cuda_graph_backend_decode": "disabled", "cuda_graph_config": {"decode": {"backend": "full"}}}, []),
        ({"cuda_graph_backend_decode": "full", "cuda_graph_config": {"decode": {"backend": "disabled"}}}, [12]),
        ({"disable_cuda_graph": True, "cuda_graph_config": {"decode": {"max_bs": 32}}}, [10]),
    ],
)
def test_the_strongest_of_the_users_words_counts_from_0_5_15_on(asked: dict[str, object], fired: list[int]) -> None:
    decode, prefill = answers(World(book(*WORDS, dialect="config"), asked))
    assert [item.rule.line for item in decode.fired] == fired
    assert decode.state == ("off" if fired else "on")
    assert (prefill.state == "off") == ("disable_cuda_graph" in asked)
    old = answers(World(book(*WORDS), asked))[0]
    assert (10 in [item.rule.line for item in old.fired]) == ("disable_cuda_graph" in asked), (
        "up to 0.5.11 there is but the switch"
    )


@pytest.mark.parametrize(("order", "kept"), [(10, True), (30, False), (0, False)])
def test_a_switch_that_start_up_sets_before_it_reads_the_words_is_written_over(order: int, kept: bool) -> None:
    """A prefill node of 0.5.15 (pd_disaggregation_hook.py 77) with a backend for its prefill: decode is off, prefill on."""
    node = compare("disaggregation_mode", "==", "prefill")
    early = GraphRule("both", "srt/y.py", 77, "hook", "prefill node", node, "setting", order=order)
    asked = {"disaggregation_mode": "prefill", "cuda_graph_backend_prefill": "breakable"}
    decode, prefill = answers(World(book(*WORDS, early, dialect="config"), asked, device="cuda"))
    assert [item.rule.line for item in decode.fired] == [77]
    assert [item.rule.line for item in prefill.fired] == ([] if kept else [77])


@pytest.mark.parametrize("on", ["decode", "prefill", None])
def test_of_a_rule_for_both_phases_what_the_server_says_of_each_counts(on: str | None) -> None:
    node = compare("disaggregation_mode", "==", "prefill")
    both = GraphRule("both", "srt/y.py", 77, "hook", "prefill node", node, "setting")
    config = {phase: {"backend": "full" if phase == on else "disabled"} for phase in ("decode", "prefill")}
    resolved = {"disaggregation_mode": "prefill", "cuda_graph_config": config}
    found = dict(
        zip(("decode", "prefill"), answers(World(book(both, dialect="config"), resolved=resolved)), strict=True)
    )
    for phase, answer in found.items():
        assert [item.rule.line for item in answer.fired] == ([] if phase == on else [77])


@pytest.mark.parametrize("given", [True, False, None])
def test_an_old_flag_stands_for_the_value_of_the_new_one(given: bool | None) -> None:
    locked = negate(Condition("locked", name="prefill.backend"))
    off = Condition("==", (Condition("requested", name="cuda_graph_backend_prefill"), literal("disabled")))
    rules = msgspec.structs.replace(
        book(rule(off, "prefill", "flag"), rule(locked, "prefill", line=2), dialect="config"),
        aliases={"disable_piecewise_cuda_graph": ("cuda_graph_backend_prefill", "disabled")},
    )
    asked = {} if given is None else {"disable_piecewise_cuda_graph": given}
    for world in (World(rules, asked), World(rules, requested=asked)):
        assert [item.rule.line for item in answers(world)[1].fired] == ([1] if given else [2])


def test_the_resolved_flag_alone_does_not_say_who_set_it() -> None:
    rules = book(rule(FLAG, kind="flag"), rule(NATIVE, line=2))
    by_rule = World(rules, resolved={"disable_cuda_graph": True, "attention_backend": "torch_native"})
    assert [item.verdict for item in judge(by_rule)] == ["unknown", "fires"]
    assert answers(by_rule)[0].fired[0].rule.line == 2

    unexplained = answers(World(rules, resolved={"disable_cuda_graph": True, "attention_backend": "fa3"}))[0]
    assert (unexplained.state, unexplained.fired) == ("off", ())

    by_command = World(
        rules, resolved={"disable_cuda_graph": True, "attention_backend": "fa3"}, requested={"disable_cuda_graph": True}
    )
    assert [item.verdict for item in judge(by_command)] == ["fires", "does_not"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -m sglang.launch_server --disable-cuda-graph", "fires"),
        (["python", "-m", "sglang.launch_server", "--pp-size", "2"], "does_not"),
        ("sglang serve --config c.yaml", "unknown"),
        ("unbalanced 'quote", "unknown"),
    ],
)
def test_the_launch_command_in_server_info_says_what_was_asked(command: object, expected: str) -> None:
    resolved = {"disable_cuda_graph": True, "launch_command": command}
    (judged,) = judge(World(book(rule(FLAG, kind="flag")), resolved=resolved))
    assert judged.verdict == expected


def test_a_phase_the_server_says_is_on_was_not_turned_off() -> None:
    rules = book(
        rule(fact("is_x(y)")), rule(compare("pp_size", ">", 1), line=2), rule(fact("later()"), kind="capture", line=3)
    )
    world = World(rules, resolved={"disable_cuda_graph": False, "pp_size": 2})
    assert [item.verdict for item in judge(world)] == ["does_not", "unknown", "unknown"]


def test_what_if_values_stand_above_the_server() -> None:
    rules = book(rule(NATIVE))
    resolved = {"attention_backend": "fa3", "disable_cuda_graph": False}
    assert judge(World(rules, resolved=resolved))[0].verdict == "does_not"
    assert judge(World(rules, {"attention_backend": "torch_native"}, resolved=resolved))[0].verdict == "fires"


@pytest.mark.parametrize(
    ("prefill_order", "mode", "expected"),
    [
        (10, "prefill", "fires"),  # start-up turned prefill off before the decode rule asks
        (10, "null", "does_not"),
        (30, "prefill", "does_not"),  # afterwards: 0.5.11 with --disaggregation-mode prefill keeps its decode graphs
        (0, "prefill", "unknown"),  # the source does not say which comes first
    ],
)
def test_a_decode_rule_that_asks_for_prefill_sees_only_what_came_before(
    prefill_order: int, mode: str, expected: str
) -> None:
    asks = msgspec.structs.replace(rule(Condition("off", name="prefill")), function="asks", order=20)
    turns_off = rule(compare("disaggregation_mode", "!=", "null"), "prefill", line=2)
    turns_off = msgspec.structs.replace(turns_off, function="turns_off", order=prefill_order)
    found = judge(World(book(asks, turns_off), {"disaggregation_mode": mode}))
    assert found[0].verdict == expected


def test_an_undecided_rule_before_leaves_the_question_open() -> None:
    asks = msgspec.structs.replace(rule(Condition("off", name="prefill")), function="asks", order=20)
    before = msgspec.structs.replace(rule(fact("is_x(y)"), "prefill", line=2), function="before", order=10)
    found = judge(World(book(asks, before)))
    assert (found[0].verdict, found[0].undecided) == ("unknown", ("is_x(y)",))


def test_first_cause_first_is_the_order_of_start_up() -> None:
    late, early = (
        msgspec.structs.replace(rule(TRUE, line=line), function=name, order=order)
        for line, name, order in ((1, "late", 30), (2, "early", 10))
    )
    decode, _prefill = answers(World(book(late, early)))
    assert [item.rule.function for item in decode.fired] == ["early", "late"]


def test_asking_for_the_cpu_does_not_tell_that_there_is_no_gpu() -> None:
    assert verdict(World(book(), {"device": "cpu"}), Condition("platform", name="cuda")) == "unknown"
    assert verdict(World(book(), {"device": "cuda"}), Condition("platform", name="cuda")) == "fires"


def test_capture_that_only_carries_out_a_decision_is_no_cause() -> None:
    carried = rule(Condition("off", name="decode"), kind="capture")
    decode, _prefill = answers(World(book(carried, rule(FLAG, kind="flag", line=2)), {"disable_cuda_graph": True}))
    assert [item.rule.kind for item in decode.fired] == ["flag"]


def test_a_redacted_value_decides_nothing() -> None:
    assert verdict(World(book(), resolved={"attention_backend": "«redacted»"}), NATIVE) == "unknown"


def test_a_fact_can_be_told() -> None:
    tree = fact("model_config_of(args).is_multimodal")
    assert verdict(World(book(), {"is_multimodal": True}), tree) == "fires"
    assert verdict(World(book(), {"is_multimodal": False}), tree) == "does_not"


NAMES = ("a", "b", "c")


def conditions() -> st.SearchStrategy[Condition]:
    leaves = st.sampled_from([setting(name) for name in NAMES] + [TRUE, FALSE])
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, min_size=1, max_size=3).map(conjunction)
            | st.lists(inner, min_size=1, max_size=3).map(disjunction)
            | inner.map(negate)
            | st.tuples(inner, inner, inner).map(lambda parts: Condition("if", parts))
        ),
        max_leaves=8,
    )


@given(conditions(), st.dictionaries(st.sampled_from(NAMES), st.booleans()))
def test_what_is_claimed_holds_however_the_rest_turns_out(tree: Condition, known: dict[str, bool]) -> None:
    """A definite verdict under partial knowledge equals the verdict under every way of completing it."""
    claimed = Evaluator(World(book(), known), {}).truth(tree)
    open_names = [name for name in NAMES if name not in known]
    outcomes = set()
    for values in itertools.product([True, False], repeat=len(open_names)):
        full = {**known, **dict(zip(open_names, values, strict=True))}
        result = Evaluator(World(book(), full), {}).truth(tree)
        assert not isinstance(result, Open)
        outcomes.add(result)
    if not isinstance(claimed, Open):
        assert outcomes == {claimed}
    else:
        assert set(claimed.names) <= set(open_names)


@given(conditions(), st.fixed_dictionaries({name: st.booleans() for name in NAMES}))
def test_negation_is_negation(tree: Condition, values: dict[str, bool]) -> None:
    world = World(book(), values)
    assert Evaluator(world, {}).truth(negate(tree)) is (not Evaluator(world, {}).truth(tree))

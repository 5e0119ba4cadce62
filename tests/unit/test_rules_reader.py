"""The rule reader on small sources: one shape of a write or guard at a time, and sources that are broken."""

from __future__ import annotations

import textwrap
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ppscope.diagnose.graph_rules import judge
from ppscope.diagnose.graph_world import World
from ppscope.sources.rules import NotSglang, find_package, read_rules
from ppscope.sources.rules_model import GraphRule, RuleBook

FLAGS = """
class ServerArgs:
    disable_cuda_graph: bool = False
    disable_piecewise_cuda_graph: bool = False
    attention_backend: str = None
    pp_size: int = 1
    deepep_mode: str = "auto"
    moe_a2a_backend: str = "none"
    enforce_piecewise_cuda_graph: bool = False
    device: str = None

    def __post_init__(self):
        self.handle()

    def handle(self):
"""

CONFIG = """
class ServerArgs:
    cuda_graph_config: str = None
    disable_cuda_graph: bool = False
    cuda_graph_backend_prefill: str = None
    attention_backend: str = "fa3"
    enable_mis: bool = False
    pp_size: int = 1
"""


def package(tmp_path: Path, **files: str) -> Path:
    """An sglang package folder; keys are paths under srt with `__` for `/`."""
    for name, text in files.items():
        path = tmp_path / "sglang" / "srt" / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "sglang"


def flags(tmp_path: Path, body: str) -> RuleBook:
    return read_rules(package(tmp_path, server_args=FLAGS + textwrap.indent(textwrap.dedent(body), " " * 8)))


def hook(tmp_path: Path, body: str, settings_text: str = CONFIG) -> RuleBook:
    return read_rules(package(tmp_path, server_args=settings_text, arg_groups__x_hook=textwrap.dedent(body)))


def written(book: RuleBook) -> list[GraphRule]:
    return [rule for rule in book.rules if rule.kind != "flag"]


def brief(book: RuleBook) -> list[tuple[str, str]]:
    return [(rule.phase, rule.condition) for rule in written(book)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("if self.pp_size > 1:\n    self.disable_piecewise_cuda_graph = True", [("prefill", "pp_size > 1")]),
        ("if self.pp_size == 1:\n    return\nself.disable_cuda_graph = True", [("decode", "pp_size != 1")]),
        (
            "if self.pp_size > 1:\n    pass\nelif self.deepep_mode == 'normal':\n    self.disable_cuda_graph = True",
            [("decode", "pp_size <= 1 and deepep_mode == 'normal'")],
        ),
        (
            "if self.pp_size > 1:\n    pass\nelse:\n    self.disable_cuda_graph = True",
            [("decode", "pp_size <= 1")],
        ),
        (
            "if not self.disable_cuda_graph:\n    if self.pp_size > 1:\n        self.disable_cuda_graph = True",
            [("decode", "pp_size > 1")],
        ),
        (
            "backend = self.moe_a2a_backend\nif backend == 'deepep':\n    self.disable_cuda_graph = True",
            [("decode", "moe_a2a_backend == 'deepep'")],
        ),
        ("self.disable_cuda_graph = self.disable_cuda_graph or self.pp_size > 1", [("decode", "pp_size > 1")]),
        (
            "if self.pp_size < 1:\n    raise ValueError()\nelif is_hip():\n    self.disable_cuda_graph = True",
            [("decode", "is_hip()")],
        ),
        (
            "match self.attention_backend:\n    case 'a' | 'b':\n        self.disable_cuda_graph = True",
            [("decode", "attention_backend == 'a' or attention_backend == 'b'")],
        ),
        (
            "if self.pp_size > 1:\n    if self.deepep_mode == 'auto':\n        return\nself.disable_cuda_graph = True",
            [("decode", "pp_size <= 1 or deepep_mode != 'auto'")],
        ),
        ("setattr(self, 'disable_cuda_graph', True)", [("decode", "True")]),
    ],
)
def test_guards_until_0_5_11(tmp_path: Path, body: str, expected: list[tuple[str, str]]) -> None:
    assert brief(flags(tmp_path, body)) == expected


WRITES = {
    "declared": "declare_resolution(args, 'x', cuda_graph_config=with_phase(c, Phase.DECODE, backend=Backend.DISABLED))",
    "text": "cfg.cuda_graph_config.decode.backend = 'disabled'",
    "dict": "fields['cuda_graph_config'] = with_phase(c, Phase.DECODE, backend=Backend.DISABLED)",
    "alias": "graph = cfg.cuda_graph_config\n    graph.decode.backend = Backend.DISABLED",
    "nested dict": "declare_resolution(args, 'x', cuda_graph_config={'decode': {'backend': 'disabled'}})",
    "local": (
        "chosen = Backend.DISABLED\n    declare_resolution(args, 'x',"
        " cuda_graph_config=with_phase(c, Phase.DECODE, backend=chosen))"
    ),
    "inline choice": (
        "declare_resolution(args, 'x', cuda_graph_config=with_phase("
        "c, Phase.DECODE, backend=Backend.FULL if False else Backend.DISABLED))"
    ),
}


@pytest.mark.parametrize("shape", WRITES)
def test_shapes_of_a_write_from_0_5_15(tmp_path: Path, shape: str) -> None:
    book = hook(
        tmp_path,
        f"def handle(args):\n    cfg = resolving_view(args)\n    if not cfg.enable_mis:\n        return\n    {WRITES[shape]}\n",
    )
    (rule,) = written(book)
    assert (rule.phase, rule.condition, rule.function) == ("decode", "enable_mis", "handle")
    text = (Path(book.path) / rule.file).read_text().splitlines()[rule.line - 1]
    assert "DISABLED" in text or "disabled" in text
    assert rule.source_lines[rule.line - rule.source_start] == text


def test_a_rule_list_yields_a_rule_per_entry_with_its_own_message(tmp_path: Path) -> None:
    book = hook(
        tmp_path,
        """
        def outer(args):
            cfg = resolving_view(args)
            if (Phase.PREFILL, "backend") in args._cuda_graph_config_locked:
                return
            if cfg.cuda_graph_config.prefill.backend == Backend.BREAKABLE:
                inner(args)

        def inner(args):
            cfg = resolving_view(args)
            rules = [
                ("pipelines", lambda: cfg.pp_size > 1),
                (None, lambda: model_config_of(args).is_multimodal),
            ]
            for name, predicate in rules:
                if predicate():
                    if name is not None:
                        logger.warning("CUDA graph is incompatible with %s; disabling", name)
                    declare_resolution(
                        args, "inner", cuda_graph_config=with_phase(
                            cfg.cuda_graph_config, Phase.PREFILL, backend=Backend.DISABLED
                        ),
                    )
                    return
        """,
    )
    first, second = written(book)
    outer = "not (prefill.backend was set by the user) and cuda_graph_config.prefill.backend == 'breakable' and "
    assert first.condition == outer + "pp_size > 1"
    assert first.message == "CUDA graph is incompatible with pipelines; disabling"
    assert second.condition == outer + "model_config_of(args).is_multimodal"
    assert second.message is None
    assert second.undecidable == ("model_config_of(args).is_multimodal",)
    assert first.line == second.line
    assert first.guard_line + 1 == second.guard_line


def test_a_default_backend_counts_only_where_nobody_chose_one(tmp_path: Path) -> None:
    book = hook(
        tmp_path,
        """
        def default_prefill_backend():
            from sglang.srt.utils import is_cuda

            return Backend.BREAKABLE if is_cuda() else Backend.DISABLED

        class CudaGraphConfig:
            decode: PhaseConfig = field(default_factory=lambda: PhaseConfig(backend=Backend.FULL))
            prefill: PhaseConfig = field(default_factory=lambda: PhaseConfig(backend=default_prefill_backend()))
        """,
    )
    assert [(rule.kind, *found) for rule, found in zip(written(book), brief(book), strict=True)] == [
        ("default", "prefill", "not (prefill.backend was set by the user) and not is_cuda()")
    ]
    for asked, expected in [({}, "fires"), ({"cuda_graph_backend_prefill": "breakable"}, "does_not")]:
        verdicts = {item.rule.kind: item.verdict for item in judge(World(book, asked, device="cpu"))}
        assert verdicts["default"] == expected


def test_a_loop_over_both_phases_is_one_rule_for_both(tmp_path: Path) -> None:
    book = hook(
        tmp_path,
        """
        def handle(args):
            for phase in (Phase.DECODE, Phase.PREFILL):
                if args.enable_mis:
                    declare_resolution(args, "x", cuda_graph_config=with_phase(c, phase, backend=Backend.DISABLED))
        """,
    )
    assert brief(book) == [("both", "enable_mis")]


def test_the_flag_read_before_a_write_to_it_makes_the_write_void(tmp_path: Path) -> None:
    book = hook(
        tmp_path,
        """
        def pipeline(args):
            run_hook(early, args)
            run_hook(parse_cuda_graph_config, args)
            run_hook(afterwards, args)

        def parse_cuda_graph_config(args):
            if args.disable_cuda_graph:
                _set(Phase.DECODE, "backend", Backend.DISABLED)

        def early(args):
            if args.enable_mis:
                declare_resolution(args, "early", disable_cuda_graph=True)

        def afterwards(args):
            if args.pp_size > 1:
                declare_resolution(args, "late", disable_cuda_graph=True)
        """,
    )
    assert brief(book) == [("both", "enable_mis"), ("both", "pp_size > 1 and the flag had not been read yet")]
    assert [(rule.phase, rule.condition) for rule in book.rules if rule.kind == "flag"] == [
        ("decode", "disable_cuda_graph")
    ]


@pytest.mark.parametrize(
    "body",
    [
        "self.disable_cuda_graph_kv_split = True",
        "self.disable_cuda_graph = False",
        "self.disable_cuda_graph = other.disable_cuda_graph",
        "backup = self.disable_cuda_graph\nself.disable_cuda_graph = True\nbuild()\nself.disable_cuda_graph = backup",
        "saved = (1, a.disable_cuda_graph)\na.disable_cuda_graph = True\ntry:\n    yield\nfinally:\n    (b, a.disable_cuda_graph) = saved",
        "if check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED):\n    log()",
        "prepare(disable_cuda_graph=self.disable_cuda_graph)",
        "self.video.backend = 'disabled'",
    ],
)
def test_what_is_no_rule(tmp_path: Path, body: str) -> None:
    assert written(flags(tmp_path, body)) == []


def test_capture_code_that_gives_up(tmp_path: Path) -> None:
    book = read_rules(
        package(
            tmp_path,
            server_args=FLAGS + "        pass\n",
            model_executor__model_runner=textwrap.dedent(
                """
                class ModelRunner:
                    def init_device_graphs(self):
                        if not self.is_generation:
                            return
                        if self.device != "cpu" and self.server_args.disable_cuda_graph:
                            return
                        self.graph_runner = CudaGraphRunner(self)

                    def can_run_piecewise_cuda_graph(self):
                        if self.pp_size > 1:
                            log_info_on_rank0(logger, "Disable piecewise CUDA graph because of PP")
                            return False
                        return True

                    def init_forward_metadata_capture_cuda_graph(self, mode):
                        if mode.is_draft():
                            return
                """
            ),
        )
    )
    assert [(rule.phase, rule.kind, rule.condition, rule.message) for rule in written(book)] == [
        ("decode", "capture", "not self.is_generation", None),
        ("decode", "capture", "device != 'cpu' and decode graphs are off", None),
        ("prefill", "capture", "pp_size > 1", "Disable piecewise CUDA graph because of PP"),
    ]


def test_defaults_and_what_start_up_replaces(tmp_path: Path) -> None:
    book = flags(tmp_path, "if self.attention_backend is None:\n    self.attention_backend = pick()")
    assert book.defaults["pp_size"] == 1
    assert book.defaults["attention_backend"] is None
    assert "attention_backend" in book.resolved_late
    assert "pp_size" not in book.resolved_late
    assert (book.dialect, book.version) == ("flags", None)


def test_rules_travel(tmp_path: Path) -> None:
    book = flags(tmp_path, "if self.pp_size > 1 and is_hip():\n    self.disable_cuda_graph = True")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(book), type=RuleBook) == book
    assert msgspec.json.decode(msgspec.json.encode(book), type=RuleBook) == book


def test_a_folder_that_is_not_sglang_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(NotSglang, match=r"no srt/server_args\.py") as error:
        find_package(tmp_path)
    assert "\n" not in str(error.value)
    with pytest.raises(NotSglang, match="no such folder"):
        find_package(tmp_path / "nothing" / "here")


@pytest.mark.parametrize(
    "text", ["def broken(:\n", "x = '\0'\n", "(" * 400 + "\n", "\ud800".encode("utf-8", "surrogatepass")]
)
def test_server_args_that_cannot_be_parsed_are_refused(tmp_path: Path, text: str | bytes) -> None:
    path = package(tmp_path, server_args="") / "srt" / "server_args.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(NotSglang, match="cannot parse") as error:
        read_rules(tmp_path)
    assert "\n" not in str(error.value)


def test_another_file_that_cannot_be_parsed_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    folder = package(tmp_path, server_args=CONFIG, arg_groups__bad_hook="def broken(:  # cuda_graph disabled\n")
    package(
        tmp_path,
        arg_groups__good_hook="def f(args):\n    if args.enable_mis:\n        args.cuda_graph_config.decode.backend = 'disabled'\n",
    )
    book = read_rules(folder)
    assert brief(book) == [("decode", "enable_mis")]
    assert [file for file, _reason in book.unreadable] == ["srt/arg_groups/bad_hook.py"]


@pytest.mark.parametrize("found_from", ["", "sglang", "sglang/srt"])
def test_the_package_is_found_from_near_it(tmp_path: Path, found_from: str) -> None:
    folder = package(tmp_path, server_args=CONFIG)
    (tmp_path / "sglang-9.9.9.dist-info").mkdir()
    book = read_rules(tmp_path / found_from)
    assert (Path(book.path), book.version) == (folder.resolve(), "9.9.9")


SEED = FLAGS + textwrap.indent(
    "\n".join(["if self.pp_size > 1:", "    self.disable_cuda_graph = True", "elif is_hip():", "    return"]), " " * 8
)
HOOK_SEED = (
    "def parse_cuda_graph_config(args):\n    cfg = resolving_view(args)\n    rules = [('a', lambda: cfg.pp_size > 1)]\n"
    "    for name, predicate in rules:\n        if predicate():\n"
    "            declare_resolution(args, 'x', cuda_graph_config=with_phase(c, Phase.PREFILL, backend=Backend.DISABLED))\n"
    "            return\n    while (n := cfg.enable_mis):\n        match n:\n            case {'a': 1}:\n"
    "                cfg.cuda_graph_config.decode.backend = Backend.DISABLED if n else Backend.FULL\n"
)
PIECES = [
    "self.disable_cuda_graph = True",
    "return",
    "not ",
    "(",
    ")",
    "x = x",
    "lambda: ",
    "\n",
    "    ",
    ":",
    "rules",
    "*a",
    "[0]",
    "-1",
    "**{}",
    "=",
    ",",
]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, 2000), st.integers(0, 12), st.sampled_from(PIECES) | st.text(max_size=4)), max_size=6
    ),
)
def test_mutated_source_never_crashes_the_reader(tmp_path: Path, edits: list[tuple[int, int, str]]) -> None:
    texts = []
    for seed in (SEED, HOOK_SEED):
        text = seed
        for at, cut, put in edits:
            start = at % (len(text) + 1)
            text = text[:start] + put + text[start + cut :]
        texts.append(text.encode("utf-8", "surrogatepass").decode("utf-8", "replace"))
    folder = package(tmp_path, server_args=SEED, arg_groups__x_hook=texts[1])
    assert read_rules(folder).dialect == "flags"
    package(tmp_path, server_args=texts[0])
    try:
        book = read_rules(folder)
    except NotSglang as error:
        assert "\n" not in str(error)  # noqa: PT017  either outcome is right; a traceback is not
    else:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(book), type=RuleBook) == book


@pytest.mark.parametrize(
    "body",
    [
        "a = b\nb = a\nif a == b:\n    self.disable_cuda_graph = True",
        "rules = rules\nfor x in rules:\n    if x():\n        self.disable_cuda_graph = True",
        "f = lambda: f()\nif f():\n    self.disable_cuda_graph = True",
        "if " + " or ".join(f"self.a{n} == {n}" for n in range(600)) + ":\n    self.disable_cuda_graph = True",
        "if " + "not " * 150 + "x:\n    self.disable_cuda_graph = True",
        "for a in (1, 2, 3, 4, 5, 6, 7, 8, 9):\n"
        + "".join("    " * n + f"for v{n} in (1, 2, 3, 4, 5, 6, 7, 8, 9):\n" for n in range(1, 8))
        + "    " * 8
        + "self.disable_cuda_graph = True",
        f"if self.pp_size == {10**40}:\n    self.disable_cuda_graph = True",
    ],
    ids=["cycle", "own name", "recursive lambda", "wide", "deep", "loops", "huge number"],
)
def test_hostile_source_ends(tmp_path: Path, body: str) -> None:
    book = flags(tmp_path, body)
    assert all(rule.phase == "decode" for rule in written(book))

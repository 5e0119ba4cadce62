"""The rules source: a child reads, a cache keeps, the model's layers come along; what cannot be read is said once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from ppscope.records import AnyRecord, Fact, Rules, Server, Settings, SourceStatus
from ppscope.sources import rules_cache
from ppscope.sources.model_config import model_settings
from ppscope.sources.rules_model import RuleBook
from ppscope.sources.rules_source import RulesSource

ARGS = """
class ServerArgs:
    disable_cuda_graph: bool = False
    attention_backend: str = None

    def __post_init__(self):
        if self.attention_backend == "torch_native":
            self.disable_cuda_graph = True
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ppscope"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "site" / "sglang"
    (folder / "srt").mkdir(parents=True)
    (folder / "srt" / "server_args.py").write_text(ARGS)
    (folder / "version.py").write_text('__version__ = "0.5.11"\n')
    return folder


def server(model: str | None = None, emulated: bool = False) -> Server:
    return Server(0, 50, 1, "launch_server", "serving", (), 2, 1, 1, version="0.5.11", model=model, emulated=emulated)


def said(
    package: Path | None,
    *,
    until: Callable[[list[AnyRecord]], bool] | None = None,
    of: Server | None = None,
    root: str = "",
    for_s: float = 20.0,
) -> list[AnyRecord]:
    """What the source says until it has said its word on the rules, or `until` holds."""
    heard: list[AnyRecord] = []
    source = RulesSource(heard.append, lambda: (None if package is None else str(package), root), delay_s=0.0)
    source.start(of or server())
    finished = until or (lambda records: any(isinstance(record, SourceStatus) for record in records))
    deadline = time.monotonic() + for_s
    while not finished(heard) and time.monotonic() < deadline:
        time.sleep(0.01)
    source.stop()
    return heard


def lines_of(book: RuleBook) -> list[int]:
    """Lines of the rules that start-up applies; the flag itself is one more rule."""
    return [rule.line for rule in book.rules if rule.kind == "setting"]


def book_of(heard: list[AnyRecord]) -> RuleBook:
    (record,) = [record for record in heard if isinstance(record, Rules)]
    assert record.problem == ""
    return msgspec.msgpack.decode(record.book, type=RuleBook)


def test_rules_of_the_package_are_read_by_a_child(package: Path) -> None:
    heard = said(package)
    assert lines_of(book_of(heard)) == [8]
    assert [record.state for record in heard if isinstance(record, SourceStatus)] == ["ok"]


def test_the_cache_answers_until_a_file_changes(package: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = book_of(said(package))
    (kept,) = cache.glob("rules-*.msgpack")
    assert cache.stat().st_mode & 0o777 == 0o700
    assert not list(cache.glob(".rules-*")), "nothing half written is left"

    def no_child(self: RulesSource, folder: str) -> tuple[bytes, str]:
        raise AssertionError("read again")

    with monkeypatch.context() as patched:
        patched.setattr(RulesSource, "_in_child", no_child)
        assert book_of(said(package)) == first
    (package / "srt" / "server_args.py").write_text("\n" + ARGS)
    assert lines_of(book_of(said(package))) == [9]
    assert kept.exists()


@pytest.mark.parametrize("damage", [b"", b"\x00garbage"])
def test_a_damaged_cache_file_is_read_anew(package: Path, cache: Path, damage: bytes) -> None:
    said(package)
    (kept,) = cache.glob("rules-*.msgpack")
    kept.write_bytes(damage)
    assert lines_of(book_of(said(package))) == [8]


def test_a_link_in_the_cache_is_not_followed(package: Path, cache: Path, tmp_path: Path) -> None:
    said(package)
    (kept,) = cache.glob("rules-*.msgpack")
    elsewhere = tmp_path / "elsewhere"
    kept.rename(elsewhere)
    kept.symlink_to(elsewhere)
    assert rules_cache.load(package) is None


def test_a_folder_others_may_write_is_no_cache(package: Path, cache: Path) -> None:
    said(package)
    cache.chmod(0o777)
    assert rules_cache.folder() is None
    assert lines_of(book_of(said(package))) == [8]


def test_a_few_books_are_kept(package: Path, cache: Path) -> None:
    for turn in range(12):
        (package / "srt" / "more.py").write_text(f"turn = {turn}\n" + "#" * turn)
        rules_cache.store(package, b"x")
        os.utime(next(iter(cache.glob("rules-*.msgpack"))))
    assert len(list(cache.glob("rules-*.msgpack"))) <= 8


def test_what_cannot_be_read_is_said_and_claims_nothing(tmp_path: Path, package: Path) -> None:
    (package / "srt" / "server_args.py").write_text("def broken(:\n")
    for where, state in ((None, "off"), (tmp_path / "empty", "degraded"), (package, "degraded")):
        heard = said(where)
        (record,) = [record for record in heard if isinstance(record, Rules)]
        assert record.book == b""
        assert record.problem
        (status,) = [record for record in heard if isinstance(record, SourceStatus)]
        assert (status.state, "\n" in status.message) == (state, False)


def test_an_emulated_server_has_no_rules_and_says_nothing(package: Path) -> None:
    heard = said(package, of=server(emulated=True), until=bool, for_s=0.3)
    assert heard == []


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ('{"num_hidden_layers": 61}', 61),
        ('{"text_config": {"num_hidden_layers": 32}}', 32),
        ('{"n_layer": 12}', 12),
        ('{"num_hidden_layers": true}', None),
        ('{"num_hidden_layers": -1}', None),
        ("[" * 10_000, None),
        ("[]", None),
        ("", None),
    ],
)
def test_layers_of_the_model(tmp_path: Path, config: str, layers: int | None) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(config)
    expected = {} if layers is None else {"num_hidden_layers": layers}
    assert model_settings(server(str(tmp_path / "model")), "") == expected
    assert model_settings(server("/model"), str(tmp_path)) == expected
    assert model_settings(server("nobody/nothing"), "") == {}
    assert model_settings(server(None), "") == {}


@pytest.mark.parametrize("where", ["served name", "relative", "HF_HUB_CACHE", "HF_HOME", "ours"])
def test_layers_are_those_of_the_path_wherever_it_is(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--served-model-name` is no path; the hub's cache is the server's own, in its own file system."""
    hub = tmp_path / "data" / "hub"
    folder = tmp_path / "m" if where in ("served name", "relative") else hub / "models--org--m" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"num_hidden_layers": 61}')
    monkeypatch.chdir(tmp_path)
    path = {"served name": "/m", "relative": "m"}.get(where, "org/m")
    facts: tuple[Fact, ...] = (Fact("model_path", path, "cmdline"),)
    if where in ("HF_HUB_CACHE", "HF_HOME"):
        value = "/data/hub" if where == "HF_HUB_CACHE" else "/data"
        facts += (Fact(f"env.{where}", value, "env"),)
    elif where == "ours":
        monkeypatch.setenv("HF_HOME", str(tmp_path / "data"))
    root = "" if where in ("relative", "ours") else str(tmp_path)
    of = replace(server("my-model"), facts=facts, launcher_pid=os.getpid())
    assert model_settings(of, root) == {"num_hidden_layers": 61}
    assert model_settings(replace(of, facts=()), root) == {}


def test_the_model_is_told_before_the_rules(tmp_path: Path, package: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 61}')
    heard = said(package, of=server(str(tmp_path)))
    assert isinstance(heard[0], Settings)
    assert (heard[0].origin, heard[0].values) == ("model", {"num_hidden_layers": 61})

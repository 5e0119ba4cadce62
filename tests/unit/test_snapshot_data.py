"""A snapshot's data: records to columns and back, into a page and out of it, whatever the names in it are."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html.parser
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppscope.records import (
    AnyRecord,
    BatchLog,
    FrameDef,
    GpuSample,
    HostSamples,
    LoopSample,
    Metric,
    ProbeSpans,
    RankKey,
    Settings,
    StackDef,
    StackSpans,
)
from ppscope.snapshot.document import build
from ppscope.snapshot.pack import UnreadableDocument, pack, records_of
from ppscope.snapshot.page_data import extract
from ppscope.snapshot.read import read_file
from ppscope.snapshot.recorded import session_of
from ppscope.snapshot.sound import is_sound
from ppscope.snapshot.window import RecordWindow, in_time_order, time_of
from ppscope.snapshot.write import page
from tests.recordings import FRAMES, START_NS, head, probe_second, recording, second

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "'\"&<>`${x}",
    "\u202egnp.exe\u202c \u2066abc",
    "x" * 10_000,
    "🦜🏴‍☠️ 模型 \x00\x1b[2J\n\t]]>",
)

texts = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=30).filter(lambda text: text.isprintable()))
keys = st.builds(RankKey, st.just(0), st.integers(0, 3), st.just(0))
times = st.integers(START_NS, START_NS + 5_000_000_000)
small = st.integers(0, 255)
some = st.one_of(st.none(), st.integers(0, 10**12))
watts = st.one_of(st.none(), st.floats(0, 1000))
pids = st.one_of(st.none(), st.tuples(small, small))
values = st.dictionaries(texts, st.one_of(texts, some, st.booleans()), max_size=4)


@st.composite
def spans(draw: st.DrawFn) -> StackSpans:
    edges = sorted(set(draw(st.lists(times, min_size=2, max_size=12))))
    stacks = [draw(st.integers(0, 3)) for _ in edges[1:]]
    key = draw(keys)
    return StackSpans(
        key,
        4000 + key.pp,
        "MainThread",
        edges[0],
        edges[-1] + 1,
        20_000_000,
        edges[:-1],
        edges[1:],
        stacks,
        draw(st.one_of(st.none(), small)),
        draw(st.one_of(st.none(), st.floats(0, 1))),
    )


@st.composite
def probes(draw: st.DrawFn) -> ProbeSpans:
    rows = draw(
        st.lists(st.tuples(times, st.integers(0, 10**6), small, small, st.integers(-1, 9)), min_size=1, max_size=8)
    )
    rows.sort(key=lambda row: row[0] + row[1])
    count = len(rows)
    return ProbeSpans(
        draw(keys), 4000, 1, 0, bytes(row[2] for row in rows), [row[0] for row in rows], [row[0] + row[1] for row in rows],
        bytes(row[3] for row in rows), [row[4] for row in rows], bytes(count), [1] * count, [2] * count, bytes(count), list(range(count)),
    )  # fmt: skip


any_record = st.one_of(
    spans(),
    probes(),
    st.builds(GpuSample, st.integers(0, 3), times, power_w=watts, util_percent=st.one_of(st.none(), small), pids=pids),
    st.builds(LoopSample, keys, times, small, st.integers(0, 5), texts, some, some),
    st.builds(HostSamples, keys, small, st.lists(times, min_size=1), st.lists(times), st.just([]), texts, processors=st.lists(small)),
    st.builds(Metric, times, texts, st.tuples(st.tuples(texts, texts)), st.floats(allow_nan=False, allow_infinity=False)),
    st.builds(BatchLog, times, some, texts, some, some, some, running=some),
    st.builds(Settings, times, st.sampled_from(["requested", "resolved"]), values),
)  # fmt: skip


def plain(value: object) -> Any:
    """As it is after a way through JSON."""
    return json.loads(msgspec.json.encode(value))


def described(records: Sequence[AnyRecord]) -> list[AnyRecord]:
    """With definitions in front, as a window gives them out."""
    window = RecordWindow()
    defined: list[AnyRecord] = [FrameDef(0, "f", "a.py", 1), *(StackDef(number, (0,)) for number in range(4))]
    window.add([*head(2), *defined, *records])
    return window.records()


@given(st.lists(any_record, max_size=8))
@settings(deadline=None, max_examples=40)
def test_packed_and_unpacked_is_the_same_data(records: list[AnyRecord]) -> None:
    whole = described(records)
    packed = {"window": {"origin_ns": START_NS}, **pack(whole, START_NS)}
    through = plain(packed)
    back = records_of(through)
    assert plain(pack(back, START_NS)) == {name: through[name] for name in through if name != "window"}
    for kind in (Metric, BatchLog, LoopSample, GpuSample, ProbeSpans, HostSamples, Settings):
        before = sorted((r for r in whole if isinstance(r, kind)), key=repr)
        assert sorted((r for r in back if isinstance(r, kind)), key=repr) == before


@given(st.lists(texts, min_size=5, max_size=5), texts)
@settings(deadline=None, max_examples=15)
def test_snapshot_opened_again_is_the_same_document(names: list[str], model: str) -> None:
    frames = tuple((name, name + ".py", 1) for name in names)
    document = build([*head(2, frames=frames, model=model), *second(0, 2), *second(1, 2)])
    again = build(records_of(extract(page(document))))
    same = ("schema", "window", "view", "stacks", "tracks", "gpu_samples", "columns", "records", "bursts")
    assert plain({name: again[name] for name in same}) == plain({name: document[name] for name in same})


@pytest.mark.parametrize("exact", [False, True], ids=["sampled", "exact"])
def test_opened_snapshot_draws_what_the_recording_does(exact: bool, tmp_path: Path) -> None:
    records = recording(6)[:-1]
    if exact:
        for at in range(6):
            records += probe_second(at, 4, 200)
    file = tmp_path / "s.html"
    file.write_bytes(page(build(records)))
    first, then = session_of(in_time_order(records)), session_of(read_file(file).records)
    before, after = first.screen(), then.screen()
    for name in ("occupancy", "settings", "gpus"):
        assert getattr(after, name) == getattr(before, name)
    assert [(f.id, f.stage) for f in after.findings] == [(f.id, f.stage) for f in before.findings] != []
    assert after.header.load == before.header.load
    start, end = START_NS + 1_000_000_000, START_NS + 5_000_000_000
    for key in first.states:
        ours, theirs = first.spans(key, start, end), then.spans(key, start, end)
        assert [(s.phase, s.micro_batch, s.provenance) for s in ours] == [
            (s.phase, s.micro_batch, s.provenance) for s in theirs
        ]
        limit = 1000 if exact else 0
        assert all(abs(a.start_ns - b.start_ns) <= limit for a, b in zip(ours, theirs, strict=True))
    assert len(then.stacks(RankKey(0, 0, 0), 4)) == len(first.stacks(RankKey(0, 0, 0), 4)) == 1


def test_samples_that_were_given_up_are_not_forgotten() -> None:
    """The share lost is a mean over the track's windows, and an opened snapshot corrects by it as the recording does."""
    lost = [msgspec.structs.replace(r, failed=0.2) if isinstance(r, StackSpans) else r for r in recording(6, 2)]
    document = build(lost)
    assert {track["failed"] for track in document["tracks"]} == {0.2}
    ours, theirs = session_of(in_time_order(lost)).screen(), session_of(records_of(plain(document))).screen()
    shares = [stage.host_work for stage in theirs.stages]
    assert shares == pytest.approx([stage.host_work for stage in ours.stages], abs=0.03)
    assert shares > [stage.host_work for stage in session_of(in_time_order(recording(6, 2))).screen().stages]
    assert {track["failed"] for track in build(recording(2, 2))["tracks"]} == {None}


def test_a_window_keeps_the_last_seconds_and_every_fact() -> None:
    window = RecordWindow(3_000_000_000)
    for at in range(10):
        window.add(second(at) if at else [*head(), *second(0)])
    kept = window.records()
    newest = max(time_of(r) or 0 for r in kept)
    assert min(r.at_ns for r in kept if isinstance(r, GpuSample)) >= newest - 3_000_000_000
    assert sum(isinstance(r, Settings) for r in kept) == 2
    assert session_of(kept).screen().header.model == "org/Model-7B"
    assert build(kept, window_ns=1_000_000_000)["window"]["seconds"] == pytest.approx(1.0)


class Reader(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._in = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag + (dict(attrs).get("id") or "")

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        self.texts[self._in] = self.texts.get(self._in, "") + data


def test_page_loads_nothing_and_names_its_script_and_style() -> None:
    frames = tuple((HOSTILE[i % 6], HOSTILE[(i + 1) % 6], 1) for i in range(len(FRAMES)))
    text = page(build([*head(2, frames=frames, model=HOSTILE[0]), *second(0, 2)])).decode()
    reader = Reader()
    reader.feed(text)
    assert [tag for tag, _ in reader.tags].count("script") == 3
    assert not [
        attributes for _, attributes in reader.tags if {"src", "srcset", "onerror", "onload", "style"} & set(attributes)
    ]
    assert [attributes["href"] for _, attributes in reader.tags if "href" in attributes] == ["data:,"]
    assert "alert(1)" not in text
    policy = next(
        a["content"] or ""
        for tag, a in reader.tags
        if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for name in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(reader.texts[name].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)


DOCUMENT = build([*recording(2, 2), *probe_second(0, 2, 40)])


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_a_document_of_another_form_is_refused(data: st.DataObject) -> None:
    """Whatever a hostile page embeds: something that can be shown, or one clear refusal."""
    damaged: Any = json.loads(json.dumps(msgspec.to_builtins(DOCUMENT)))
    for _ in range(data.draw(st.integers(1, 3))):
        node: Any = damaged
        while isinstance(node, dict | list) and node:
            name = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
            if not isinstance(node[name], dict | list) or not node[name] or data.draw(st.booleans()):
                node[name] = data.draw(
                    st.one_of(
                        st.none(),
                        st.integers(-(2**70), 2**70),
                        st.text(max_size=3),
                        st.just([]),
                        st.just({}),
                        st.floats(),
                    )
                )
                break
            node = node[name]
    with contextlib.suppress(UnreadableDocument):
        session = session_of(record for record in records_of(damaged) if is_sound(record))
        session.screen()
        for key in session.states:
            session.spans(key, *session.extent())


def exact_page(seconds: int) -> int:
    """Bytes of a page of eight stages with a thousand exact spans a second each, sampled besides."""
    records = head(8)
    for at in range(seconds):
        records += [*probe_second(at, 8, 1000), *second(at, 8)]
    return len(page(build(records)))


def test_a_minute_of_exact_spans_of_eight_stages_stays_under_three_megabytes() -> None:
    short, longer = exact_page(4), exact_page(10)
    assert longer + 50 * (longer - short) / 6 < 3_000_000

"""Before and after: what changed, what it came from, and when two files cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ppscope import exits
from ppscope.commands.compare import compare
from ppscope.records import (
    AnyRecord,
    BurstRank,
    BurstReport,
    BurstStep,
    LoadSample,
    LoopSample,
    RankKey,
    Server,
    Settings,
    StackSpans,
)
from ppscope.snapshot.compare import compare_documents
from ppscope.snapshot.compare_text import to_text
from ppscope.snapshot.comparison import to_json
from ppscope.snapshot.document import build
from ppscope.snapshot.measure import _throughput, measure
from ppscope.snapshot.write import page
from tests.recordings import MS, SECOND, START_NS, WAIT, head, probe_second, recording, second

Json = dict[str, Any]


def mended(records: list[AnyRecord]) -> list[AnyRecord]:
    """The same load after --pp-max-micro-batch-size 2: every slot is occupied, tokens come twice as fast."""
    out: list[AnyRecord] = []
    for number, record in enumerate(records):
        if isinstance(record, Settings):
            values = {**record.values, "pp_max_micro_batch_size": 2}
            out.append(msgspec.structs.replace(record, values=values))
        elif isinstance(record, LoopSample):
            out.append(msgspec.structs.replace(record, mb_id=number % 4, next_mb_id=(number + 1) % 4))
        elif isinstance(record, LoadSample):
            out.append(msgspec.structs.replace(record, tokens_per_s=48.0, micro_batch=2.0))
        else:
            out.append(record)
    return out


def by_name(compared: Json) -> dict[str, Json]:
    return {figure["name"]: figure for figure in compared["figures"]}


def test_what_changed_and_why() -> None:
    before, after = recording(8), mended(recording(8))
    comparison = compare_documents(build(before), build(after), ("a", "b"))
    compared = to_json(comparison)
    assert compared["schema"] == "ppscope.compare/1"
    assert compared["comparable"]
    figures = by_name(compared)
    assert (figures["throughput"]["before"], figures["throughput"]["after"]) == (24.0, 48.0)
    assert figures["throughput"]["ratio"] == pytest.approx(2)
    assert figures["throughput"]["verdict"] == "better"
    slots = figures["micro-batch slots in use"]
    assert slots["after"] > 3.5
    assert slots["before"] < 1.5
    assert figures["step time"]["verdict"] == "better"
    assert figures["step time"]["before"] == pytest.approx(1000 * 8 / 24)
    assert {"name": "pp_max_micro_batch_size", "before": "64", "after": "2"} in compared["settings"]
    assert "pipeline.serial" in [finding["id"] for finding in compared["findings"]["resolved"]]
    assert "graphs.disabled_by_flag" in [finding["id"] for finding in compared["findings"]["remaining"]]
    said = to_text(comparison)
    assert "throughput 24.0 tok/s → 48.0 tok/s (×2.00, better)" in said
    assert "pp_max_micro_batch_size 64 → 2" in said
    assert "resolved: pipeline.serial" in said


def tokens(records: list[AnyRecord]) -> list[AnyRecord]:
    """Throughput just beyond its noise upwards, which downwards is a smaller share."""
    changed = 24.0 * 1.16
    return [msgspec.structs.replace(r, tokens_per_s=changed) if isinstance(r, LoadSample) else r for r in records]


@pytest.mark.parametrize("barely", [False, True])
def test_a_change_undone_is_the_reverse(barely: bool) -> None:
    one, other = build(recording(8)), build(tokens(mended(recording(8))) if barely else mended(recording(8)))
    there, back = to_json(compare_documents(one, other, ("", ""))), to_json(compare_documents(other, one, ("", "")))
    assert there["findings"]["resolved"] == back["findings"]["appeared"]
    for name, figure in by_name(there).items():
        mirrored = by_name(back)[name]
        assert (figure["before"], figure["after"]) == (mirrored["after"], mirrored["before"])
        assert {figure["verdict"], mirrored["verdict"]} in ({"better", "worse"}, {"same"}, {None})


def test_the_same_file_twice_has_no_change() -> None:
    document = build(recording(6))
    compared = to_json(compare_documents(document, document, ("a", "a")))
    assert {figure["verdict"] for figure in compared["figures"]} <= {"same", None}
    assert not compared["settings"]
    assert {name for name, findings in compared["findings"].items() if findings} == {"remaining"}


def test_what_one_side_cannot_know_is_neither_resolved_nor_new() -> None:
    """Too few samples for the slots is no mended pipeline."""
    known, few = build(recording(8)), build([r for r in recording(8) if not isinstance(r, LoopSample)])
    assert few["view"]["occupancy"]["mean"] is None
    there, back = compare_documents(known, few, ("", "")), compare_documents(few, known, ("", ""))
    assert "pipeline.serial" in [finding["id"] for finding in there.unknown_after]
    assert "pipeline.serial" not in [finding["id"] for finding in there.resolved]
    assert "not known after: pipeline.serial" in to_text(there)
    assert there.unknown_after == back.unknown_before
    assert back.worse


def test_a_short_look_swings_more_and_says_by_how_much() -> None:
    compared = compare_documents(build(recording(4)), build(recording(4, tokens_per_s=24.0 * 0.91)), ("", ""))
    figure = next(figure for figure in compared.figures if figure.name == "throughput")
    assert (figure.verdict, figure.noise) == ("same", 0.15)
    assert "×0.91 same (it swings by ±15 %)" in to_text(compared)


def test_slots_that_few_samples_cannot_tell_apart_are_the_same() -> None:
    one, other = build(recording(8)), build(mended(recording(8)))
    one["view"]["occupancy"]["likely"], other["view"]["occupancy"]["likely"] = (1.0, 2.5), (2.0, 4.0)
    compared = compare_documents(one, other, ("", ""))
    (slots,) = [figure for figure in compared.figures if figure.name == "micro-batch slots in use"]
    assert (slots.verdict, slots.noise) == ("same", None)
    assert "same (too few samples to tell)" in to_text(compared)


def quiet_at_the_end(records: list[AnyRecord], from_s: int) -> list[AnyRecord]:
    """Stages that only wait from an instant on."""
    begin = START_NS + from_s * SECOND
    return [
        msgspec.structs.replace(r, stacks=[WAIT] * len(r.stacks))
        if isinstance(r, StackSpans) and r.end_ns > begin
        else r
        for r in records
    ]


@pytest.mark.parametrize("exact", [False, True], ids=["sampled", "exact"])
def test_busy_is_that_of_the_window_and_not_of_its_last_seconds(exact: bool) -> None:
    records = [
        msgspec.structs.replace(r, device="cpu", emulated=False) if isinstance(r, Server) else r for r in head(2)
    ]
    for at in range(20):
        records += [*second(at, 2), *(probe_second(at, 2, 400) if exact else [])]
    document = build(records if exact else quiet_at_the_end(records, 10))
    figures = measure(document)
    assert set(figures.busy) == {"PP0", "PP1"}
    shown = {f"PP{stage['pp']}": stage["busy"] for stage in document["view"]["stages"]}
    for stage, busy in figures.busy.items():
        if exact:
            assert document["view"]["stages"][0]["busy_source"] == "probe"
            assert busy == pytest.approx(shown[stage], abs=0.05), "alike in every second"
        else:
            assert shown[stage] == 0
            assert busy == pytest.approx(0.25, abs=0.03), "half of the time, in every second turn"


def test_slots_say_of_how_many() -> None:
    said = to_text(compare_documents(build(recording(8)), build(mended(recording(8))), ("", "")))
    assert "micro-batch slots in use 1.00 of 4 → 4.00 of 4 (×4.00, better)" in said


def test_what_the_passes_carry_says_why() -> None:
    said = to_text(compare_documents(build(recording(8)), build(mended(recording(8))), ("", "")))
    assert "a pass carries 2.0 requests instead of 8.0, at 24.0 passes a second instead of 3.0\n" in said
    one, other = (
        [msgspec.structs.replace(r, device="cpu") if isinstance(r, Server) else r for r in records]
        for records in (recording(8), mended(recording(8)))
    )
    slower = [msgspec.structs.replace(r, tokens_per_s=12.0) if isinstance(r, LoadSample) else r for r in other]
    said = to_text(compare_documents(build(one), build(slower), ("", "")))
    why = "a pass carries 2.0 requests instead of 8.0, at 6.0 passes a second instead of 3.0: too few more of them to make up for it"
    assert f"{why}; the stages of a CPU server may share its cores\n" in said
    assert "a pass carries" not in to_text(compare_documents(build(one), build(one), ("", "")))


def with_server(**changes: object) -> list[AnyRecord]:
    return [msgspec.structs.replace(r, **changes) if isinstance(r, Server) else r for r in recording(4)]


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (lambda: recording(4, model="org/Other-70B"), "other models: org/Model-7B and org/Other-70B"),
        (lambda: recording(4, running=40), "the load is another: 8 requests before, 40 after"),
        (lambda: with_server(device="cpu"), "other devices: cuda and cpu"),
        (lambda: with_server(emulated=True), "emulated"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_said_and_not_judged(
    after: Any, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for name, records in (("a", recording(4)), ("b", after())):
        files.append(tmp_path / f"{name}.html")
        files[-1].write_bytes(page(build(records)))
    assert compare(files[0], files[1], as_json=True, output=None, redact_paths=False) == exits.CANNOT_ATTACH
    out, err = capsys.readouterr()
    compared = json.loads(out)
    assert not compared["comparable"]
    assert any(reason in line for line in compared["refused"])
    assert reason in err
    assert {figure["verdict"] for figure in compared["figures"]} == {None}
    assert compared["summary"] == []
    assert not compared["findings"]["resolved"]
    assert not compared["findings"]["appeared"]


def test_a_page_and_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other, out = tmp_path / "a.html", tmp_path / "b.html", tmp_path / "c.html"
    one.write_bytes(page(build(recording(4))))
    other.write_bytes(page(build(mended(recording(4)))))
    assert compare(one, other, as_json=False, output=out, redact_paths=False) == exits.FINDINGS
    assert out.read_bytes().startswith(b"<!doctype html>")
    assert compare(one, tmp_path / "none", as_json=False, output=None, redact_paths=False) == exits.CANNOT_ATTACH
    assert compare(one, out, as_json=False, output=None, redact_paths=False) == exits.CANNOT_ATTACH
    assert "is a comparison" in capsys.readouterr().err
    assert compare(one, other, as_json=False, output=tmp_path / "no" / "c.html", redact_paths=False) == exits.USAGE


def test_figures_of_a_profile_go_before_those_of_the_log() -> None:
    steps = tuple(
        BurstStep(
            f"step {i}", "decode", 8, START_NS + i * 50 * MS, START_NS + i * 50 * MS + 30 * MS, 0, 0, 12, 0, "eager", ""
        )
        for i in range(4)
    )
    burst = BurstRank(
        1,
        RankKey(0, 0, 0),
        START_NS,
        START_NS + SECOND,
        (),
        [],
        [],
        [],
        [1],
        [0],
        [5],
        [0],
        [0],
        steps,
        (),
        (48, 0, 48, 0, 0),
        0.2,
    )
    measured = measure(build([*recording(4), burst, BurstReport(1, START_NS + SECOND, bubble=0.75)]))
    assert measured.step_ms == pytest.approx(30)
    assert measured.eager_per_step == pytest.approx(12)
    assert measured.bubble == pytest.approx(0.75)


def test_a_queue_that_the_change_made_is_explained() -> None:
    def queued(records: list[AnyRecord]) -> list[AnyRecord]:
        return [
            msgspec.structs.replace(r, queued=4, micro_batch=1.0, tokens_per_s=12.0) if isinstance(r, LoadSample) else r
            for r in mended(records)
        ]

    after = [
        msgspec.structs.replace(r, values={**r.values, "pp_max_micro_batch_size": 1}) if isinstance(r, Settings) else r
        for r in queued(recording(8))
    ]
    said = to_text(compare_documents(build(recording(8)), build(after), ("a", "b")))
    assert "4 requests wait in the queue now: pp_max_micro_batch_size × slots lets 4 run at once" in said


def test_unknown_is_none() -> None:
    measured = measure(build(head()))
    assert measured.active is None
    assert [
        measured.tokens_per_s,
        measured.step_ms,
        measured.occupied,
        measured.stages_at_work,
        measured.bubble,
        measured.power_w,
        measured.requests,
    ] == [None] * 7


def test_throughput_is_a_mean_over_time_not_over_readings() -> None:
    """`/metrics` is read every second at first and then every few: ten seconds at 10 and thirty-five at 20 tokens a second."""
    times = [*range(11), *(10 + 3.5 * number for number in range(1, 11))]
    records = [
        LoadSample(int(at * SECOND), "metrics", tokens_per_s=10.0 if number <= 10 else 20.0)
        for number, at in enumerate(times)
    ]
    load = {"source": "metrics", "tokens_per_s": None}
    assert _throughput(records, load) == pytest.approx((10 * 10 + 35 * 20) / 45)
    assert _throughput(records[:1], load) == 10.0
    silent = [*records[:11], LoadSample(3_610 * SECOND, "metrics", tokens_per_s=20.0)]
    assert _throughput(silent, load) == pytest.approx(15.0), "an hour without a reading is not an hour of the next one"
    assert _throughput([], load) is None

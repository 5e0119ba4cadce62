"""The page in headless Chromium: it draws, folds, zooms and prints; it loads nothing; names that are hostile stay text."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ppscope import emulator
from ppscope.records import RankKey
from ppscope.snapshot.compare import compare_documents
from ppscope.snapshot.comparison import SCHEMA as COMPARE_SCHEMA
from ppscope.snapshot.comparison import to_json
from ppscope.snapshot.document import build
from ppscope.snapshot.pack import records_of
from ppscope.snapshot.recorded import session_of
from ppscope.snapshot.write import page
from tests.browser.chromium import Chromium, needs_chromium
from tests.recordings import head, probe_second, recording, second
from tests.shared import SHARED, needs_shared
from tests.terminal.terminal import PPSCOPE

pytestmark = needs_chromium

HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=document.title='owned'>",
    "\u202egnp.exe\u202c",
    "k" * 10_000,
    "🦜 模型 \"'`",
)
OPERABLE = {"button", "combobox", "treeitem", "DisclosureTriangle", "link", "textbox"}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("profile")) as chromium:
        yield chromium


@pytest.fixture
def show(browser: Chromium, tmp_path: Path) -> Iterator[Any]:
    """Opens the page of a document; afterwards nothing was complained of and nothing else was loaded."""
    file = tmp_path / "s.html"

    def shown(data: dict[str, Any]) -> Chromium:
        file.write_bytes(page(data))
        browser.said.clear()
        browser.asked.clear()
        browser.size(1440, 1000)
        browser.open(file)
        return browser

    yield shown
    assert browser.said == []
    assert [url for url in browser.asked if not url.startswith("data:")] == [file.as_uri()]


def rows(browser: Chromium) -> list[dict[str, Any]]:
    """The tree's rows as a screen reader finds them."""
    found: list[dict[str, Any]] = browser.run(
        "[...document.querySelectorAll('[role=treeitem]')].map(n => ({name: n.getAttribute('aria-label'),"
        "level: n.getAttribute('aria-level'), open: n.getAttribute('aria-expanded'), here: n === document.activeElement}))"
    )
    return found


def axis(browser: Chromium) -> str:
    """What is drawn of the time axis, as an image."""
    drawn: str = browser.run("document.querySelector('canvas.axis').toDataURL()")
    return drawn


def ink(browser: Chromium, selector: str) -> int:
    """Pixels of the first such canvas that are not empty."""
    count: int = browser.run(
        f"(() => {{ const c = document.querySelector('{selector}');"
        " const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " let n = 0; for (let i = 3; i < d.length; i += 4) if (d[i]) n++; return n; })()"
    )
    return count


def test_the_page_shows_what_was_found(show: Any) -> None:
    document = build(recording(4))
    browser = show(document)
    text = browser.run("document.body.innerText")
    for finding in document["view"]["findings"]:
        assert finding["id"] in text
        assert finding["summary"] in text
    assert document["view"]["findings"]
    assert browser.run(
        "document.getElementById('verdicts').getBoundingClientRect().top < document.getElementById('timeline').getBoundingClientRect().top"
    )
    assert "org/Model-7B" in browser.run("document.title")
    assert len(rows(browser)) == 4
    assert ink(browser, "canvas.lane") > 1000
    assert ink(browser, "canvas.strip") > 500
    assert "--disable-cuda-graph" in text
    assert "pp_max_micro_batch_size" in text


def test_zoom_pan_and_fold_by_keyboard(show: Any) -> None:
    browser = show(build(recording(4, 2, 2)))
    browser.run("document.querySelector('[role=treeitem]').focus()")
    before = axis(browser)
    seen = {before}
    for key in ("+", "ArrowRight", "-", "0", "Home", "End"):
        browser.press(key)
        browser.settle()
        seen.add(axis(browser))
    assert len(seen) >= 5, "every key changes what is shown"
    assert [row["open"] for row in rows(browser)] == ["false", "false"]
    browser.press("Enter")
    assert [(row["level"], row["open"]) for row in rows(browser)] == [
        ("1", "true"),
        ("2", None),
        ("2", None),
        ("1", "false"),
    ]
    browser.press("ArrowDown")
    assert [row["here"] for row in rows(browser)] == [False, True, False, False]
    browser.press("]")
    browser.press("]")
    said = browser.run("document.querySelector('[role=status]').textContent")
    assert "TP0" in said
    assert "sampled" in said
    browser.press("Escape")
    assert len(rows(browser)) == 2


def test_hovering_a_span_says_what_it_is(show: Any) -> None:
    browser = show(build(recording(4)))
    browser.run("document.querySelector('canvas.lane').scrollIntoView({block: 'center'})")
    x, y = browser.run(
        "(() => { const b = document.querySelector('canvas.lane').getBoundingClientRect();"
        " return [b.left + b.width / 2, b.top + b.height / 2]; })()"
    )
    browser.move(x, y)
    browser.settle()
    tip = browser.run("document.querySelector('.tip').innerText")
    assert "PP0" in tip
    assert "sampled" in tip
    assert ".py:" in tip


def test_time_that_nothing_was_seen_of_is_hatched_and_said(show: Any) -> None:
    """The second of nothing between two seconds of samples: drawn over the full height, unlike idle."""
    browser = show(build([*head(2), *second(0, 2), *second(2, 2)]))
    assert "not seen" in browser.run("document.querySelector('.legend').innerText")
    browser.run("[...document.querySelectorAll('button')].find(b => b.textContent === 'all').click()")
    browser.settle()
    top = browser.run(
        "(() => { const c = document.querySelector('canvas.lane'), w = Math.floor(c.width / 5), d = c.getContext('2d')"
        ".getImageData(w * 2, 0, w, 2).data; let n = 0; for (let i = 3; i < d.length; i += 4) if (d[i]) n++; return n / w; })()"
    )
    assert top > 0.1
    browser.run("document.querySelector('canvas.lane').scrollIntoView({block: 'center'})")
    x, y = browser.run(
        "(() => { const b = document.querySelector('canvas.lane').getBoundingClientRect();"
        " return [b.left + b.width / 2, b.top + b.height / 2]; })()"
    )
    browser.move(x, y)
    browser.settle()
    assert "not seen" in browser.run("document.querySelector('.tip').innerText")


def test_a_remedy_is_prose_and_its_command_is_code(show: Any) -> None:
    document = build(recording(4))
    command = "curl -X POST http://127.0.0.1:1/set_internal_state -H 'Content-Type: application/json' -d '{\"a\": 2}'"
    document["view"]["findings"][0]["remedy"] = (
        f"Spread them: --pp-max-micro-batch-size 2. Try it live: {command}. No gain is predicted."
    )
    browser = show(document)
    assert browser.run("[...document.querySelector('.remedy').querySelectorAll('code')].map(c => c.textContent)") == [
        "--pp-max-micro-batch-size 2",
        command,
    ]
    assert browser.run("document.querySelector('.remedy').lastChild.textContent") == "No gain is predicted."


def test_everything_that_can_be_operated_has_a_name(show: Any) -> None:
    browser = show(build(recording(3, 2, 2)))
    found = [(role, name) for role, name in browser.accessible() if role in OPERABLE]
    assert {"button", "combobox", "treeitem"} <= {role for role, _ in found}
    assert [role for role, name in found if not name.strip()] == []


def test_hostile_names_stay_text(show: Any) -> None:
    frames = tuple((name, name + ".py", 1) for name in HOSTILE)
    document = build([*head(2, frames=frames, model=HOSTILE[0]), *second(0, 2), *second(1, 2)])
    finding = {
        "id": HOSTILE[1],
        "severity": HOSTILE[0],
        "stage": 0,
        "summary": HOSTILE[3],
        "remedy": HOSTILE[2],
        "provenance": "exact",
        "evidence": list(HOSTILE),
        "source": [{"file": HOSTILE[1], "line": 1}],
    }
    document["view"]["findings"] = [finding]
    document["view"]["settings"] = [
        {"name": name, "requested": name, "resolved": name, "observed": None, "differs": True} for name in HOSTILE
    ]
    document["view"]["launches"] = [
        {
            "kind": "eager",
            "name": name,
            "count": 1,
            "gpu_us": 2.0,
            "stage": 0,
            "function": name,
            "file": name,
            "line": 3,
            "reason": name,
            "provenance": "exact",
        }
        for name in HOSTILE
    ]
    browser = show(document)
    assert browser.run("document.title").startswith("ppscope snapshot: </script>")
    assert browser.run("document.querySelectorAll('img, iframe, object, embed').length") == 0
    assert browser.run("document.querySelectorAll('script').length") == 3
    assert browser.run("document.documentElement.scrollWidth") <= 1440
    assert HOSTILE[1] in browser.run("document.body.innerText")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_light_and_dark_phone_and_desk(show: Any, scheme: str, width: int) -> None:
    browser = show(build(recording(3)))
    browser.size(width, 844, phone=width < 700)
    browser.scheme(scheme)
    assert browser.run("document.documentElement.scrollWidth") == width
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 200) is (scheme == "dark")
    assert ink(browser, "canvas.lane") > 100
    browser.run("document.querySelector('.theme').click()")
    assert browser.run("document.documentElement.dataset.theme") == "light"
    assert browser.run("document.querySelector('.theme').innerText") == "colours: light"


def test_it_prints(show: Any) -> None:
    browser = show(build(recording(3)))
    assert browser.pdf().startswith(b"%PDF")
    browser.settle()
    assert browser.run("document.documentElement.dataset.theme || ''") == ""


def test_many_ranks_and_a_minute_of_exact_data(show: Any) -> None:
    records = head(8, 8)
    for at in range(5):
        records += second(at, 8, 8)
    browser = show(build(records))
    assert len(rows(browser)) == 8
    browser.run("[...document.querySelectorAll('button')].find(b => b.textContent === 'unfold').click()")
    browser.settle()
    assert len(rows(browser)) == 72


@pytest.mark.parametrize("limit", [{"all": 600.0}, None])
def test_hours_of_gpu_readings_are_drawn(show: Any, limit: object) -> None:
    document = build(recording(2, 2))
    readings, end = 200_000, document["window"]["end_ns"] - document["window"]["origin_ns"]
    document["gpu_samples"][0] |= {
        "at": [end // readings] * readings, "power_w": [80.0, 90.0] * (readings // 2), "power_limit_w": limit,
    }  # fmt: skip
    browser = show(document)
    assert "cannot be shown" not in browser.run("document.body.innerText")
    browser.run("[...document.querySelectorAll('button')].find(b => b.textContent === 'all').click()")
    browser.settle()
    assert ink(browser, "canvas.strip") > 500


def test_exact_lanes_are_drawn_as_the_session_has_them(show: Any) -> None:
    records = recording(4)[:-1]
    for at in range(4):
        records += probe_second(at, 4, 300)
    document = build(records)
    browser = show(document)
    session = session_of(records_of(document))
    origin, end = document["window"]["origin_ns"], document["window"]["end_ns"]
    spans = session.spans(RankKey(0, 0, 0), origin, end)
    assert {span.provenance for span in spans} == {"exact"}
    browser.run("document.querySelector('[role=treeitem]').focus()")
    for key in ("Home", "]", "]", "]"):
        browser.press(key)
    said = browser.run("document.querySelector('[role=status]').textContent")
    labels = {style.label for style in session.phases()}
    assert any(label in said for label in labels)
    assert said.endswith("exact")
    assert len(page(document)) < 3_000_000


def test_a_comparison_shows_both_on_one_scale(show: Any) -> None:
    before, after = build(recording(4)), build(recording(4, tokens_per_s=48.0))
    browser = show(compared(before, after, ("a.pps", "b.pps")))
    text = browser.run("document.body.innerText")
    assert "throughput" in text
    assert "still there" in text
    axes = browser.run("[...document.querySelectorAll('canvas.axis')].map(c => c.toDataURL())")
    assert len(axes) == 2
    assert axes[0] == axes[1]
    browser.run("document.querySelectorAll('[role=treeitem]')[5].focus()")
    browser.press("+")
    now = browser.run("[...document.querySelectorAll('canvas.axis')].map(c => c.toDataURL())")
    assert now[0] == now[1] != axes[0]


def compared(before: dict[str, Any], after: dict[str, Any], names: tuple[str, str]) -> dict[str, Any]:
    comparison = to_json(compare_documents(before, after, names))
    return {"schema": COMPARE_SCHEMA, "comparison": comparison, "before": before, "after": after}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_a_hostile_comparison_on_phone_and_desk_light_dark_and_on_paper(show: Any, scheme: str, width: int) -> None:
    frames = tuple((name, name + ".py", 1) for name in HOSTILE)
    before = build([*head(2, frames=frames, model=HOSTILE[0]), *second(0, 2), *second(1, 2)])
    after = build([*head(2, 2, frames=frames, model=HOSTILE[0]), *second(0, 2, 2), *second(1, 2, 2), *second(2, 2, 2)])
    for document, value in ((before, HOSTILE[1]), (after, HOSTILE[3])):
        document["view"]["settings"] += [
            {"name": name, "requested": value, "resolved": value, "observed": None, "differs": False}
            for name in HOSTILE
        ]
    browser = show(compared(before, after, (HOSTILE[1], HOSTILE[2])))
    browser.size(width, 844, phone=width < 700)
    browser.scheme(scheme)
    assert browser.run("document.title").startswith("ppscope comparison: </script>")
    assert browser.run("document.querySelectorAll('img, iframe, object, embed').length") == 0
    assert browser.run("document.querySelectorAll('script').length") == 3
    assert browser.run("document.documentElement.scrollWidth") == width
    assert HOSTILE[1] in browser.run("document.body.innerText")
    assert drawn_to_size(browser)
    assert [name for role, name in browser.accessible() if role in OPERABLE and not name.strip()] == []
    assert browser.pdf().startswith(b"%PDF")


def drawn_to_size(browser: Chromium) -> bool:
    """Whether every canvas that is shown has the pixels of its place."""
    browser.settle()
    fits: bool = browser.run(
        "[...document.querySelectorAll('canvas')].filter(c => c.clientWidth)"
        ".every(c => c.width === Math.round(c.clientWidth * Math.min(devicePixelRatio, 3)))"
    )
    return fits


def test_lanes_are_drawn_anew_when_their_place_changes(show: Any) -> None:
    browser = show(build(recording(3, 2, 2)))
    for width in (1440, 700, 390, 1000):
        browser.size(width, 900)
        assert drawn_to_size(browser), width
    browser.run("[...document.querySelectorAll('button')].find(b => b.textContent === 'unfold').click()")
    assert drawn_to_size(browser)
    assert ink(browser, ".level2 canvas.lane") > 100


def test_two_that_cannot_be_compared_are_set_side_by_side(show: Any) -> None:
    browser = show(compared(build(recording(3)), build(recording(3, model="org/Other")), ("a.pps", "b.pps")))
    text = browser.run("document.body.innerText")
    assert "These two cannot be compared" in text
    assert "org/Other" in text
    assert "better" not in text
    assert "resolved" not in text


def test_data_that_cannot_be_read_is_told(browser: Chromium, tmp_path: Path) -> None:
    file = tmp_path / "s.html"
    whole = page(build(recording(2, 2))).decode()
    mark = 'id="data">'
    at = whole.index(mark) + len(mark)
    file.write_text(whole[:at] + "AAAA" + whole[at + 400 :])
    browser.open(file)
    assert "cannot be shown" in browser.run("document.body.innerText")


@needs_shared
@pytest.mark.parametrize(
    "name", ["sglang_cpu/pp2", "tracelens/inference__sglang_decode__sglang_Qwen3-8B_decode.json.gz"]
)
def test_real_profiler_traces_as_a_page(browser: Chromium, tmp_path: Path, name: str) -> None:
    file = tmp_path / "t.html"
    done = subprocess.run(
        [PPSCOPE, "trace", SHARED / "traces" / name, "-o", file], capture_output=True, text=True, check=False
    )
    assert file.exists(), done.stderr
    browser.said.clear()
    browser.asked.clear()
    browser.open(file)
    assert browser.said == []
    assert [url for url in browser.asked if not url.startswith("data:")] == [file.as_uri()]
    assert ink(browser, "canvas.lane") > 50
    assert len(rows(browser)) >= 1
    facts = browser.run("document.querySelector('.facts').innerText")
    assert "torch profiler trace" in facts
    assert "PP1×TP1" not in facts
    assert "1970" not in facts


def test_the_demo_as_a_page(browser: Chromium, tmp_path: Path) -> None:
    file = tmp_path / "d.html"
    with emulator.start("healthy", 4) as server:
        subprocess.run(
            [PPSCOPE, "snapshot", str(server.pid), "-o", file, "--seconds", "1"], check=True, capture_output=True
        )
    browser.said.clear()
    browser.open(file)
    assert browser.said == []
    assert "emulated" in browser.run("document.querySelector('.facts').innerText")
    assert len(rows(browser)) == 4

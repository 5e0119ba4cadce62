"""The text of `check`: every finding in eighty columns, its commands whole, and what was missing at the end."""

from __future__ import annotations

import json
import re

import click
import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from ppscope.cli import main
from ppscope.diagnose.check_report import CheckReport, to_json
from ppscope.diagnose.check_text import DECIDES_S, LONGEST_S, WIDTH, render
from ppscope.diagnose.findings import judge
from ppscope.target.phases import PhaseTable
from tests.unit.findings_tools import evidence, load, server
from tests.unit.test_findings_catalogue import CASES

LABELS = {style.name: style.label for style in PhaseTable.load().styles}


def report(case: str, **changes: object) -> CheckReport:
    of = msgspec.structs.replace(evidence(**CASES[case][1]), labels=LABELS)
    return CheckReport(of, tuple(judge(of)), 0.4, "gpu01", **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES)
def test_every_finding_fits_and_is_told_whole(case: str) -> None:
    made = report(case)
    text = render(made)
    assert [line for line in text.splitlines() if len(line) > WIDTH or line != line.rstrip()] == []
    assert text.endswith("\n")
    told = " ".join(text.replace("\\\n", " ").split())
    for finding in made.findings:
        for part in (finding.summary, *finding.evidence):
            assert " ".join(part.split()) in told
        # A command stands on lines of its own, so the full stop after it is left out.
        assert re.sub(r"[. ]", "", finding.remedy) in re.sub(r"[. ]", "", told)
    assert not any(name in text for name in LABELS if "_" in name), "phases have the names of the view"


@settings_of(deadline=None)
@given(
    st.sampled_from(sorted(CASES)),
    st.integers(0, 10**7),
    st.sampled_from(["127.0.0.1", "::1", "a-very-long-host-name.of-some-cluster.example"]),
)
def test_figures_and_hosts_of_any_length(case: str, running: int, host: str) -> None:
    of = evidence(**{**CASES[case][1], "load": load(running), "server": server(host=host, model="m" * 200)})
    lines = render(CheckReport(of, tuple(judge(of)), None)).splitlines()
    assert [line for line in lines if len(line) > WIDTH and "http" not in line] == []


def test_what_was_missing_at_the_end_is_told() -> None:
    lacking = {
        "settings": "the server's settings, which it did not answer",
        "slots": "samples enough to tell the slots in use",
    }
    whole, thin = report("serial"), report("serial", lacking=lacking)
    assert "stopped without" not in render(whole)
    assert to_json(whole)["lacking"] == []
    said = " ".join(render(thin).split())
    assert said.endswith(
        "stopped without the server's settings, which it did not answer; samples enough to tell the slots in use:"
        " --seconds 60 may tell more"
    )
    assert to_json(thin)["lacking"] == ["settings", "slots"]
    assert json.loads(json.dumps(to_json(thin)))["schema"] == "ppscope.check/1"


@pytest.mark.parametrize(("seen_s", "said"), [(1.5, 5), (4.9, 5), (5.0, 10), (15.01, 31), (400.0, 600)])
def test_how_long_a_look_would_tell_more(seen_s: float, said: int) -> None:
    short = CheckReport(evidence(seconds=seen_s), (), None, lacking={"load": "readings enough of the load"})
    assert render(short).endswith(f"--seconds {said} may tell more\n")
    (option,) = (option for option in main.commands["check"].params if option.name == "seconds")
    assert isinstance(option.type, click.FloatRange)
    assert (option.default, option.type.max) == (DECIDES_S, LONGEST_S)

"""README and manual say what the code does."""

from __future__ import annotations

import re
import shutil
import subprocess

import click
import pytest

from ppscope.cli import SCENARIOS, main
from ppscope.keys import KEYS
from tests.docs import MANUAL, outdated
from tests.shared import ROOT


def test_generated_parts_are_fresh() -> None:
    assert outdated() == [], "run: make docs"


def test_pictures_and_links_of_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    local = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    assert local
    assert [target for target in local if not (ROOT / target).exists()] == []


def read_manual() -> str:
    """The page as it stands in a terminal of 80 columns; a warning of the formatter is a failure."""
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff is not installed")
    command = [groff, "-man", "-Tascii", "-P-c", "-P-b", "-P-u", "-rLL=80n", "-rCHECKSTYLE=3", "-ww", str(MANUAL)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_manual_is_formatted_without_a_warning_and_fits_80_columns() -> None:
    lines = read_manual().splitlines()
    assert [line for line in lines if len(line) > 80] == []


def test_manual_names_every_command_flag_scenario_and_key() -> None:
    page = read_manual()
    for name, command in main.commands.items():
        section = re.search(rf"^   {name}\n(.*?)(?=^ {{0,3}}\S)", page, re.MULTILINE | re.DOTALL)
        assert section is not None, name
        flags = [flag for option in command.params if isinstance(option, click.Option) for flag in option.opts]
        assert [flag for flag in flags if not re.search(rf"(?<![\w-]){flag}\b", section[1])] == []
    assert [scenario for scenario in SCENARIOS if not re.search(rf"\b{scenario}\b", page)] == []
    keys = page.partition("\nKEYS\n")[2].partition("\nEXIT STATUS\n")[0]
    assert [key.show for key in KEYS if " ".join(key.help.split()) not in " ".join(keys.split())] == []
    assert sum(bool(re.match(r" {7}\S", line)) for line in keys.splitlines()) == len(KEYS)

"""The command line refuses what no command could use, in words of its own, before anything is imported or looked at."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from importlib.abc import MetaPathFinder

import click
import pytest
from click.testing import CliRunner

import ppscope.__main__
from ppscope.cli import main
from ppscope.cli_types import Number
from ppscope.commands.record import Interrupt
from tests.docs import first_sentence


def parameters(kind: type[click.FloatRange | click.IntRange | click.Path]) -> Iterator[tuple[str, click.Parameter]]:
    """Every parameter of that type, with the command that has it."""
    for name, command in sorted(main.commands.items()):
        for parameter in command.params:
            if isinstance(parameter.type, kind):
                yield name, parameter


def refusal(parameter: click.Parameter, value: str) -> str:
    """What the parameter says about a value that it does not take."""
    with pytest.raises(click.BadParameter) as refused:
        parameter.type_cast_value(click.Context(main), (value,) if parameter.nargs == -1 else value)
    return refused.value.message


def test_no_number_is_one_that_cannot_be_counted_with() -> None:
    numbers = [parameter for _, parameter in parameters(click.FloatRange)]
    assert len(numbers) >= 8
    for parameter in numbers:
        assert refusal(parameter, "nan") == "'nan' is not a number"
        for giant in ("inf", "1e300", "-inf", "-1e300"):
            assert giant.lstrip("-") in refusal(parameter, giant).replace("+", "")


def test_no_number_has_a_type_that_lets_nan_through() -> None:
    for name, command in main.commands.items():
        for parameter in command.params:
            assert not isinstance(parameter.type, click.types.FloatParamType) or isinstance(parameter.type, Number), (
                name
            )


def test_no_file_or_folder_has_an_empty_name() -> None:
    paths = [parameter for _, parameter in parameters(click.Path)]
    assert len(paths) >= 9
    assert {refusal(parameter, "") for parameter in paths} == {"the name is empty"}


@pytest.mark.parametrize("value", ["abc", "", "0", "-1", "12.0", "0x17", "1 2"])
def test_what_is_no_process_id_is_called_that(value: str) -> None:
    pids = [parameter for _, parameter in parameters(click.IntRange) if parameter.name == "pid"]
    assert len(pids) == 6
    assert {refusal(pid, value) for pid in pids} == {f"{value!r} is not a process id: a whole number from 1 up"}


def test_the_help_says_of_every_command_all_it_has_to_say() -> None:
    shown = CliRunner().invoke(main, ["--help"]).output
    assert "..." not in shown.replace("[ARGS]...", "")
    for name, command in main.commands.items():
        assert f"{name} {first_sentence(command).split('. ')[0].rstrip('.')}" in " ".join(shown.split())


def interrupt(*_arguments: object, **_options: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["ppscope.commands.check.check", "ppscope.cli_group.CommandGroup.parse_args"])
def test_ctrl_c_is_130_wherever_it_comes(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(where, interrupt)
    done = CliRunner().invoke(main, ["check", "1"])
    assert (done.exit_code, done.output) == (130, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_after_it_cleaned_up_and_is_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    cleaned: list[bool] = []

    def command(*_arguments: object, **_options: object) -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            cleaned.append(True)

    monkeypatch.setattr("ppscope.commands.check.check", command)
    done = CliRunner().invoke(main, ["check", "1"])
    assert (done.exit_code, done.output) == (128 + number, f"ppscope: ended by {number.name}\n")
    assert cleaned, "a second signal does not break in"
    assert signal.getsignal(number) == before


def test_under_nohup_a_closed_terminal_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(*_arguments: object, **_options: object) -> int:
        Interrupt()
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(0.01)
        return 7

    monkeypatch.setattr("ppscope.commands.check.check", command)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert CliRunner().invoke(main, ["check", "1"]).exit_code == 7
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ctrl_c_while_the_command_line_is_imported_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(MetaPathFinder):
        def find_spec(self, fullname: str, *_: object) -> None:
            if fullname == "ppscope.cli":
                interrupt()

    monkeypatch.delitem(sys.modules, "ppscope.cli")
    monkeypatch.setattr(sys, "meta_path", [Slow(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        ppscope.__main__.main()
    assert ended.value.code == 130

"""Writes what README.md and docs/ppscope.1 say of commands, keys and findings from the code's own tables.

python -m tests.docs            rewrite them
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from ppscope import __version__
from ppscope.cli import main as command_line
from ppscope.keys import KEYS, as_markdown
from tests.shared import ROOT

README = ROOT / "README.md"
MANUAL = ROOT / "docs" / "ppscope.1"


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command of the command line, by name."""
    yield from sorted(command_line.commands.items())


def usage(name: str, command: click.Command) -> str:
    """`ppscope check [OPTIONS] [PID]` as the command line itself puts it."""
    with click.Context(command, info_name=f"ppscope {name}") as context:
        return " ".join([context.command_path, *command.collect_usage_pieces(context)])


def first_sentence(command: click.Command) -> str:
    """The first paragraph of the help, on one line."""
    text = (command.help or "").split("\n\n")[0]
    return " ".join(text.split())


def commands_table() -> str:
    """Markdown table of the commands."""
    rows = []
    for name, command in commands():
        call = usage(name, command).replace("|", "\\|")
        rows.append(f"| `{call}` | {first_sentence(command)} |")
    return "\n".join(["| command | what |", "|---|---|", *rows])


COMPLETION = (
    ("bash, in", "~/.bashrc", 'eval "$(_PPSCOPE_COMPLETE=bash_source ppscope)"'),
    ("zsh, at the end of", "~/.zshrc", 'eval "$(_PPSCOPE_COMPLETE=zsh_source ppscope)"'),
    ("fish, in", "~/.config/fish/completions/ppscope.fish", "_PPSCOPE_COMPLETE=fish_source ppscope | source"),
)


def completion_table() -> str:
    """Markdown table of what makes each shell complete."""
    rows = [f"| {shell} `{file}` | `{line.replace('|', chr(92) + '|')}` |" for shell, file, line in COMPLETION]
    return "\n".join(["| shell | line |", "|---|---|", *rows])


SECTIONS: dict[str, Callable[[], str]] = {
    "commands": commands_table,
    "completion": completion_table,
    "keys": as_markdown,
}


def readme(text: str) -> str:
    """The README with its generated sections made anew."""
    for name, make in SECTIONS.items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = f"\n{rest}".partition(end)
        assert found, f"README.md has no section {name}"
        assert closed, f"README.md has no end of section {name}"
        text = before + begin + make().strip() + end + after
    return text


def roff(text: str) -> str:
    """Text made safe for a manual page."""
    return text.replace("\\", "\\e").replace("-", "\\-").replace("\n.", "\n\\&.").replace("\n'", "\n\\&'")


def _options(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield ".TP"
            metavar = "" if parameter.is_flag else f" {(parameter.metavar or parameter.type.name).upper()}"
            yield f"\\fB{roff(', '.join(parameter.opts))}\\fR{roff(metavar)}"
            yield roff(" ".join((parameter.help or "").split()))


def manual() -> str:
    """The manual page, in roff."""
    lines = [
        f'.TH PPSCOPE 1 "" "ppscope {__version__}" "User Commands"',
        ".SH NAME",
        "ppscope \\- live profiler for pipeline\\-parallel SGLang servers",
        ".SH SYNOPSIS",
        *(f".br\n{roff(usage(name, command))}" for name, command in commands()),
        ".SH DESCRIPTION",
        roff(" ".join((command_line.help or "").split())),
        ".SH COMMANDS",
    ]
    for name, command in commands():
        lines += [
            f".SS {roff(name)}",
            "\n.PP\n".join(roff(" ".join(p.split())) for p in (command.help or "").split("\n\n")),
        ]
        lines += _options(command)
    lines.append(".SH KEYS")
    for key in KEYS:
        lines += [".TP", f"\\fB{roff(key.show)}\\fR", roff(key.help)]
    lines += [
        ".SH EXIT STATUS",
        roff("0 done, nothing found; 1 findings; 2 usage, or a choice is needed; 3 could not attach or read; "
             "4 the target ended before enough was seen; 130 interrupted."),
        ".SH ENVIRONMENT",
    ]  # fmt: skip
    for name, what in ENVIRONMENT:
        lines += [".TP", f"\\fB{roff(name)}\\fR", roff(what)]
    lines += [
        ".SH SHELL COMPLETION",
        roff("Tab completes commands, flags, files, and the pids of the servers that run, after:"),
    ]
    for shell, file, line in COMPLETION:
        lines += [".TP", f"\\fB{roff(f'{shell} {file}')}\\fR", roff(line)]
    return "\n".join(lines) + "\n"


ENVIRONMENT = (
    ("PPSCOPE_API_KEY, PPSCOPE_ADMIN_KEY", "keys of the server, sent to it alone and only when it asks for one"),
    ("PPSCOPE_PYSPY", "the py-spy binary to use"),
    ("PPSCOPE_SNAPSHOT_DIR", "where the key s saves snapshots; the current folder unless set"),
    ("NO_COLOR", "no colours; glyphs tell phases apart"),
)


def outdated() -> list[Path]:
    """Files that do not say what the code says."""
    text = README.read_text(encoding="utf-8")
    stale = [README] if readme(text) != text else []
    if not MANUAL.exists() or MANUAL.read_text(encoding="utf-8") != manual():
        stale.append(MANUAL)
    return stale


def main() -> int:
    """Rewrite both files."""
    README.write_text(readme(README.read_text(encoding="utf-8")), encoding="utf-8")
    MANUAL.parent.mkdir(exist_ok=True)
    MANUAL.write_text(manual(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""docs/ppscope.1 from the code's own tables: commands, flags with their values, keys, exit codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from ppscope import __version__
from ppscope.cli import main as command_line
from ppscope.keys import KEYS

EXIT_CODES = (
    ("0", "done, nothing found"),
    ("1", "findings of severity high or medium; `doctor`: something stands in the way"),
    ("2", "usage, or a choice is needed"),
    ("3", "could not attach, read or compare"),
    ("4", "the target ended before enough was seen"),
    ("126, 127", "`launch`: its command cannot be run, or is not there; else the command's own code"),
    ("130", "ended by ctrl-c"),
    ("143, 129", "ended by SIGTERM, or by SIGHUP as when a terminal is closed: 128 and the number of the signal"),
    ("141", "the reader of its output is gone, as after `| head -1`: SIGPIPE for other programs"),
)
ENVIRONMENT = (
    ("PPSCOPE_API_KEY, PPSCOPE_ADMIN_KEY", "keys of the server, sent to it alone and only when it asks for one"),
    ("PPSCOPE_PYSPY", "the py-spy binary to use"),
    ("PPSCOPE_SNAPSHOT_DIR", "where the key s saves snapshots; the current folder unless set"),
    (
        "PPSCOPE_PROFILE_FOLDER",
        "where a profile burst lets the server write its traces; /tmp or /var/tmp unless set",
    ),
    ("NO_COLOR", "no colours; glyphs tell phases apart"),
)
FILES = (
    ("$XDG_CONFIG_HOME/ppscope/phases.toml", "your own rows of phases, before those of ppscope; ~/.config unless set"),
    ("$XDG_CACHE_HOME/ppscope", "graph rules that were read before; may be removed; ~/.cache unless set"),
)
_METAVARS = {"integer range": "N", "integer": "N", "float range": "NUMBER", "float": "NUMBER", "choice": "NAME"}
_SPECIAL = {"\\": "\\e", "-": "\\-", "^": "\\(ha", "~": "\\(ti", "`": "\\(ga"}
_ARROWS = {"↑": "Up", "↓": "Down", "←": "Left", "→": "Right"}


def roff(text: str) -> str:
    """Text made safe for a manual page: as typed, in ASCII, and never a request."""
    safe = "".join(_SPECIAL.get(sign, sign if sign.isascii() else f"\\[u{ord(sign):04X}]") for sign in text)
    return safe.replace("\n.", "\n\\&.").replace("\n'", "\n\\&'")


def _item(term: str, what: str) -> Iterator[str]:
    yield ".TP"
    yield f"\\fB{roff(term)}\\fR"
    yield roff(what)


def _paragraphs(text: str) -> str:
    return "\n.PP\n".join(roff(" ".join(part.split())) for part in text.split("\n\n"))


def _values(option: click.Option) -> str:
    """What may be given, and what holds without it."""
    said, kind = [], option.type
    if isinstance(kind, click.Choice):
        said.append(f"One of {', '.join(kind.choices)}.")
    if isinstance(kind, (click.IntRange, click.FloatRange)):
        low, high = kind.min, kind.max
        if low is not None:
            said.append(f"From {low:g} to {high:g}." if high is not None else f"At least {low:g}.")
    if option.show_default and not option.is_flag:
        said.append(
            f"Default: {option.default:g}." if isinstance(option.default, float) else f"Default: {option.default}."
        )
    if option.required:
        said.append("Required.")
    if option.multiple:
        said.append("May be given more than once.")
    return " ".join(said)


def options(command: click.Command) -> Iterator[str]:
    """One item for each flag of a command."""
    for option in command.params:
        if isinstance(option, click.Option):
            metavar = (
                "" if option.is_flag else option.metavar or _METAVARS.get(option.type.name, option.type.name.upper())
            )
            yield ".TP"
            yield f"\\fB{roff(', '.join(option.opts))}\\fR {roff(metavar)}".rstrip()
            yield roff(" ".join([*(option.help or "").split(), _values(option)]).rstrip())


def manual(usages: Sequence[str]) -> str:
    """The manual page, in roff; `usages` are the lines of the synopsis."""
    lines = [
        f'.TH PPSCOPE 1 "" "ppscope {__version__}" "User Commands"',
        ".nh",  # commands are copied from here: no hyphens of the formatter's own, no stretched blanks
        ".ad l",
        ".SH NAME",
        "ppscope \\- live profiler for pipeline\\-parallel SGLang servers",
        ".SH SYNOPSIS",
        "\n.br\n".join(roff(usage) for usage in usages),
        ".SH DESCRIPTION",
        roff(" ".join((command_line.help or "").split())),
        ".SH OPTIONS",
        *_item("--version", "Show the version and exit."),
        *_item("-h, --help", "Show what a command takes and exit; every command has it."),
        ".SH COMMANDS",
    ]
    for name, command in sorted(command_line.commands.items()):
        lines += [f".SS {roff(name)}", _paragraphs(command.help or ""), *options(command)]
    lines.append(".SH KEYS")
    for key in KEYS:
        lines += _item("".join(_ARROWS.get(sign, sign) for sign in key.show), key.help)
    for title, rows in (("EXIT STATUS", EXIT_CODES), ("ENVIRONMENT", ENVIRONMENT), ("FILES", FILES)):
        lines.append(f".SH {title}")
        for term, what in rows:
            lines += _item(term, what)
    return "\n".join(lines) + "\n"


def completion(rows: Sequence[tuple[str, str, str]]) -> str:
    """The section on tab: which line in which file."""
    lines = [
        ".SH SHELL COMPLETION",
        roff("Tab completes commands, flags, files, and the pids of the servers that run, after:"),
    ]
    for shell, file, line in rows:
        lines += _item(f"{shell} {file}", line)
    return "\n".join(lines) + "\n"

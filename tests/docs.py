"""Writes what README.md and docs/ppscope.1 say of commands, keys and figures from the code's own tables.

python -m tests.docs            rewrite them
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from ppscope import keys, words
from ppscope.cli import main as command_line
from tests.manual import completion, manual
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
    "keys": keys.as_markdown,
    "words": words.as_markdown,
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


def manual_page() -> str:
    """The manual page as the code has it."""
    return manual([usage(name, command) for name, command in commands()]) + completion(COMPLETION)


def outdated() -> list[Path]:
    """Files that do not say what the code says."""
    text = README.read_text(encoding="utf-8")
    stale = [README] if readme(text) != text else []
    if not MANUAL.exists() or MANUAL.read_text(encoding="utf-8") != manual_page():
        stale.append(MANUAL)
    return stale


def main() -> int:
    """Rewrite both files."""
    README.write_text(readme(README.read_text(encoding="utf-8")), encoding="utf-8")
    MANUAL.parent.mkdir(exist_ok=True)
    MANUAL.write_text(manual_page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What all commands of `ppscope` have in common: how they end, and how the help lists them."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from ppscope import exits, signals, stdout


class CommandGroup(click.Group):
    """All commands; a stdout that is closed or full ends any of them with one line."""

    def main(self, *args: Any, **options: Any) -> Any:
        """As click's, but for what a write to stdout may raise, at the end of the process as well."""
        stdout.mend()
        if "_PPSCOPE_COMPLETE" in os.environ:
            from ppscope import completion

            completion.install()
        try:
            try:
                return super().main(*args, **options)
            finally:
                sys.stdout.flush()
        except OSError as error:
            if not stdout.is_ours(error):
                raise
            stdout.give_up(error)
            sys.exit(exits.CANNOT_ATTACH)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """As click's, but ctrl-c is 130 here too, not click's own 1."""
        try:
            return super().make_context(*args, **options)
        except KeyboardInterrupt:
            sys.exit(exits.INTERRUPTED)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; ctrl-c, SIGTERM and SIGHUP end any of them here, after it cleaned up."""
        try:
            with signals.raised():
                return super().invoke(ctx)
        except signals.Ended as ended:
            signals.say(ended.number)
            sys.exit(signals.exit_code(ended.number))
        except KeyboardInterrupt:
            sys.exit(exits.INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click's, but every command's first sentence is whole, on two lines where it needs them."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self.commands[name].get_short_help_str(limit=999)) for name in self.list_commands(ctx)]
            )

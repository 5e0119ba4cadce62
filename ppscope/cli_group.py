"""What all commands of `ppscope` have in common: how they end, and how the help lists them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from ppscope import exits, signals, stdout


@contextmanager
def _as_every_command_ends() -> Iterator[None]:
    """After it cleaned up: by ctrl-c, SIGTERM or SIGHUP, without a reader of its output, or on a wrong command line."""
    try:
        yield
    except signals.Ended as ended:
        signals.say(ended.number)
        sys.exit(signals.exit_code(ended.number))
    except KeyboardInterrupt:
        sys.exit(exits.INTERRUPTED)
    except BrokenPipeError:
        _end_without_a_reader()
    except click.ClickException as error:
        # It names the words of the command line, which may be files' names: a terminal must not obey them.
        vars(error)["message"] = stdout.harmless(error.message)
        raise


def _end_without_a_reader() -> NoReturn:
    """As SIGPIPE ends other programs of a pipe: with nothing said, and 141."""
    stdout.discard()
    sys.exit(signals.exit_code(signal.SIGPIPE))


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
        except BrokenPipeError:
            _end_without_a_reader()
        except OSError as error:
            if not stdout.is_ours(error):
                raise
            stdout.give_up(error)
            sys.exit(exits.CANNOT_ATTACH)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """As click's, but ctrl-c is 130 here too, and a reader that is gone 141, not click's own 1."""
        with _as_every_command_ends():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; ctrl-c, SIGTERM, SIGHUP and a reader that is gone end any of them here."""
        with _as_every_command_ends(), signals.raised():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click's, but every command's first sentence is whole, on two lines where it needs them."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self.commands[name].get_short_help_str(limit=999)) for name in self.list_commands(ctx)]
            )

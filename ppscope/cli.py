"""The `ppscope` command. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from ppscope import __version__
from ppscope.cli_group import CommandGroup
from ppscope.cli_types import Number, PathName, Pid

SCENARIOS = (
    "serial", "healthy", "eager", "unpadded", "imbalanced", "slow-links", "late-sync", "busy-host", "blocked", "spinning",
    "throttled", "leaky",
)  # fmt: skip

_EXIT_HELP = """\b
Exit codes: 0 nothing found · 1 findings · 2 usage, or a choice is needed ·
3 could not attach or read · 4 the target ended too early ·
128 + n ended by signal n: 130 ctrl-c, 143 SIGTERM, 129 a closed terminal,
141 nobody read on
"""


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EXIT_HELP,
)
@click.version_option(__version__, prog_name="ppscope")
def main() -> None:
    """See live what a pipeline-parallel SGLang server does, why it is slow, and what to change."""


def _server_pids(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from ppscope.commands.complete import server_pids

    return server_pids(incomplete)


def _words(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from ppscope.commands.complete import command_words

    return command_words(context.params.get(parameter.name or "") or (), incomplete)


_PID = click.argument("pid", type=Pid(), required=False, shell_complete=_server_pids)
_RATE = Number(1, 200)
_rate = click.option(
    "--rate", "rate_hz", type=_RATE, default=50.0, show_default=True, help="Stack samples a second, at most."
)
_rate_that_gives_way = click.option(
    "--rate",
    "rate_hz",
    type=_RATE,
    help="Stack samples a second, at most; without it 50, and less where few cores are idle.",
)
_ascii = click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters alone.")


@main.command()
@_PID
@_rate_that_gives_way
@_ascii
def attach(pid: int | None, rate_hz: float | None, ascii_only: bool) -> None:
    """Live view of the server that PID belongs to.

    PID is any process of the server; without one, the only server of this machine is taken.
    """
    from ppscope.commands.live import attach as run
    from ppscope.commands.live import prefers_ascii

    sys.exit(run(pid, rate_hz=rate_hz, ascii_only=ascii_only or prefers_ascii()))


@main.command()
@click.option(
    "--scenario",
    type=click.Choice(SCENARIOS),
    default="serial",
    show_default=True,
    help="What is wrong with the emulated server.",
)
@click.option("--pp", type=click.IntRange(2, 32), default=8, show_default=True, help="Pipeline stages.")
@click.option(
    "--tp", type=click.IntRange(1, 8), default=1, show_default=True, help="Tensor-parallel ranks of each stage."
)
@click.option("--serve-only", is_flag=True, help="No view: keep the server up and print its launcher's pid.")
@_rate
@_ascii
def demo(scenario: str, pp: int, tp: int, serve_only: bool, rate_hz: float, ascii_only: bool) -> None:
    """Start an emulated pipeline server and attach to it.

    The server's GPUs and load are made up and labelled so; everything the view shows of it is collected as from a real one.
    """
    from ppscope.commands.demo import demo as run

    sys.exit(run(scenario, pp=pp, tp=tp, serve_only=serve_only, rate_hz=rate_hz, ascii_only=ascii_only))


_OUT = PathName(path_type=Path)
_LOOK = (
    "How long to look; while evidence is missing up to three times as long, but no more than ten seconds longer."
    " Whether there are requests enough takes about four seconds to tell: two or more leave time for it."
    " Of more than a minute the last one is judged."
)
_redact_paths = click.option(
    "--redact-paths", is_flag=True, help="Shorten absolute paths to what lies within their package."
)


def _seconds(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    from ppscope.snapshot.stretch import seconds_of

    try:
        return seconds_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _stretch(command: Callable[..., None]) -> Callable[..., None]:
    """The two options that choose a part of a recording."""
    until = click.option(
        "--until",
        "until_s",
        metavar="TIME",
        callback=_seconds,
        help="Where in the recording to end; its end without it.",
    )
    start = click.option(
        "--from",
        "from_s",
        metavar="TIME",
        callback=_seconds,
        help="Where in the recording to begin: 90, 1:30, 62:03, or -2:00 for two minutes before its end. Without it, ten minutes"
        " before the end, one where spans are exact.",
    )
    return start(until(command))


@main.command()
@_PID
@click.option("-o", "--output", type=_OUT, required=True, help="The recording to write, usually NAME.pps.")
@click.option("--seconds", type=Number(min=0.1), help="Stop after so long; without it, ctrl-c stops.")
@click.option(
    "--max-size",
    "max_mb",
    type=Number(min=1),
    default=256.0,
    show_default=True,
    help="Megabytes on disk; beyond them the oldest part goes.",
)
@click.option(
    "--rotate",
    "rotate_s",
    type=Number(min=1),
    default=600.0,
    show_default=True,
    help="Seconds after which a part is closed as NAME.0001.pps and a new one begun.",
)
@_redact_paths
@_rate_that_gives_way
def record(
    pid: int | None,
    output: Path,
    seconds: float | None,
    max_mb: float,
    rotate_s: float,
    redact_paths: bool,
    rate_hz: float | None,
) -> None:
    """Record the server that PID belongs to; `ppscope open` shows the recording."""
    from ppscope.commands.record import record as run

    size = int(max_mb * 1e6)
    sys.exit(
        run(pid, output, seconds=seconds, max_bytes=size, rotate_s=rotate_s, rate_hz=rate_hz, redact_paths=redact_paths)
    )


@main.command("open")
@click.argument("file", type=_OUT)
@click.option("--json", "as_json", is_flag=True, help="Print the embedded data instead of showing it.")
@_stretch
@_redact_paths
@_ascii
def open_command(
    file: Path, as_json: bool, from_s: float | None, until_s: float | None, redact_paths: bool, ascii_only: bool
) -> None:
    """Show a snapshot (.html) or a recording (.pps) in the screen of `ppscope attach`.

    A recording of any length, with the closed parts beside it: the keys of the view go through all of it. Figures and findings are
    those of the minute before the right edge of the lanes. --json prints the last ten minutes (one where spans are
    exact) unless --from says otherwise.

    The page that `ppscope trace -o` writes opens too; a comparison does not, but the two files it was made from do.
    """
    from ppscope.commands.live import prefers_ascii
    from ppscope.commands.open_file import open_file as run
    from ppscope.snapshot.stretch import Asked

    plain = ascii_only or prefers_ascii()
    sys.exit(run(file, Asked(from_s, until_s), as_json=as_json, ascii_only=plain, redact_paths=redact_paths))


@main.command(context_settings={"allow_interspersed_args": False})
@click.option("--gpu-timing", is_flag=True, help="Also time every forward on the GPU, by CUDA events.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- CMD...", shell_complete=_words)
def launch(command: tuple[str, ...], gpu_timing: bool) -> None:
    """Start SGLang with the exact probe loaded; nothing is installed.

    Ends with the exit code of CMD. `ppscope attach` then shows every micro-batch as it ran.
    """
    from ppscope.commands.launch import launch as run

    sys.exit(run(command, gpu_timing=gpu_timing))


@main.command()
@_PID
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object instead of text.")
def doctor(pid: int | None, json_wanted: bool) -> None:
    """Can I attach here? Checks every precondition and names the command that mends it.

    With PID, or with the only server of this machine, its own preconditions are checked too.
    """
    from ppscope.commands.doctor import doctor as run

    sys.exit(run(pid, json_wanted=json_wanted))


@main.command()
@_PID
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.option(
    "--seconds",
    type=Number(0.5, 600),
    default=5.0,
    show_default=True,
    help=_LOOK,
)
@_rate
def check(pid: int | None, as_json: bool, seconds: float, rate_hz: float) -> None:
    """What is wrong with the server that PID belongs to, and what to change; no screen."""
    from ppscope.commands.check import check as run

    sys.exit(run(pid, as_json=as_json, seconds=seconds, rate_hz=rate_hz))


@main.command()
@click.argument("paths", nargs=-1, required=True, type=PathName(), metavar="FILE|DIR...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a screen.")
@click.option("--text", "as_text", is_flag=True, help="Text instead of a screen, as where there is no terminal.")
@click.option("-o", "--output", type=_OUT, help="Write an HTML page instead.")
@_ascii
def trace(paths: tuple[str, ...], as_json: bool, as_text: bool, output: Path | None, ascii_only: bool) -> None:
    """What torch profiler traces say: launches, replays, steps, the bubble of each stage.

    Files of all ranks of a run belong together: name their folder.
    """
    from ppscope.commands.live import prefers_ascii
    from ppscope.commands.trace import trace as run

    plain = ascii_only or prefers_ascii()
    sys.exit(run(paths, as_json=as_json, as_text=as_text, output=output, ascii_only=plain))


@main.command()
@_PID
@click.option(
    "--source", type=PathName(), metavar="DIR", help="The sglang package folder to read, instead of the server's own."
)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Judge as if a setting had this value.")
@click.option("--all", "show_all", is_flag=True, help="Show every rule that is not decided, and what would decide it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def rules(pid: int | None, source: str | None, changes: tuple[str, ...], as_json: bool, show_all: bool) -> None:
    """Every rule of an installed SGLang that turns a CUDA graph off, and which fire for these settings.

    With --source no server is needed: ppscope rules --source DIR --set attention_backend=triton --set pp_size=8
    """
    settings = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{change!r} is not KEY=VALUE", param_hint="--set")
        settings[key] = value
    from ppscope.commands.rules import rules as run

    sys.exit(run(pid, source=source, settings=settings, as_json=as_json, show_all=show_all))


@main.command()
@_PID
@click.option("-o", "--output", type=_OUT, help="The page to write; ppscope-MODEL-TIME.html without it.")
@click.option("--seconds", type=Number(0.5, 600), default=10.0, show_default=True, help=_LOOK)
@_redact_paths
@_rate
def snapshot(pid: int | None, output: Path | None, seconds: float, redact_paths: bool, rate_hz: float) -> None:
    """Write what is seen of the server that PID belongs to as one HTML page that needs nothing else."""
    from ppscope.commands.snapshot import snapshot as run

    sys.exit(run(pid, output, seconds=seconds, rate_hz=rate_hz, redact_paths=redact_paths))


@main.command()
@click.argument("before", type=_OUT)
@click.argument("after", type=_OUT)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.option("-o", "--output", type=_OUT, help="Write an HTML page with both timelines on one scale.")
@_stretch
@_redact_paths
def compare(
    before: Path,
    after: Path,
    as_json: bool,
    output: Path | None,
    from_s: float | None,
    until_s: float | None,
    redact_paths: bool,
) -> None:
    """What a change did: two snapshots or recordings of one model under one load.

    Of a recording the last ten minutes count (one where spans are exact), or what --from and --until say of both. Two parts of one
    recording are compared as pages: ppscope export RUN.pps --to html --from 0 --until 2:00 -o before.html. Ends with 3 when the two
    cannot be compared, and says why.
    """
    from ppscope.commands.compare import compare as run
    from ppscope.snapshot.stretch import Asked

    asked = Asked(from_s, until_s)
    sys.exit(run(before, after, as_json=as_json, output=output, redact_paths=redact_paths, asked=asked))


@main.command()
@click.argument("file", type=_OUT)
@click.option(
    "--to",
    "kind",
    type=click.Choice(["html", "perfetto", "speedscope", "folded", "gpu-csv", "gpu-json"]),
    required=True,
    help="html: the page of `ppscope snapshot`. perfetto: lanes and GPU counters, for ui.perfetto.dev. speedscope: sampled stacks over"
    " time, for speedscope.app. folded: sampled stacks summed up, for flame graphs. gpu-csv: power, utilisation and clocks of every GPU,"
    " for a spreadsheet. gpu-json: the same as JSON.",
)
@click.option("-o", "--output", type=_OUT, help="The file to write; stdout without it.")
@_stretch
@_redact_paths
def export(
    file: Path, kind: str, output: Path | None, from_s: float | None, until_s: float | None, redact_paths: bool
) -> None:
    """A snapshot or recording as a page, a Perfetto or speedscope file, folded stacks, or the GPU readings as CSV or JSON.

    Of a recording the last ten minutes (one where spans are exact), or what --from and --until say.
    """
    from ppscope.commands.export import export as run
    from ppscope.snapshot.stretch import Asked

    sys.exit(run(file, kind, output, Asked(from_s, until_s), redact_paths=redact_paths))

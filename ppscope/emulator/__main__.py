"""Start an emulated server: `python -m ppscope.emulator --scenario serial --pp 8`."""

from __future__ import annotations

import argparse
import sys

from ppscope.emulator.bootstrap import become_launcher
from ppscope.emulator.options import Options
from ppscope.emulator.scenarios import SCENARIOS
from ppscope.emulator.supervisor import Supervisor


def _stage_and_seconds(text: str) -> tuple[float, int]:
    seconds, separator, stage = text.partition(":")
    if not separator:
        raise argparse.ArgumentTypeError("expected SECONDS:STAGE")
    return float(seconds), int(stage)


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the command line's values; argparse ends the process with status 2 on a wrong one."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m ppscope.emulator", description="An emulated SGLang server."
    )
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), default="serial")
    parser.add_argument("--pp", type=int, default=8, help="pipeline stages, 2 to 32")
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel ranks of each stage, 1 to 8")
    parser.add_argument("--port", type=int, default=0, help="HTTP port on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--seconds", type=float, help="end by itself after so long")
    parser.add_argument("--load-seconds", type=float, help="how long the stages take to start")
    parser.add_argument("--kill-stage-after", type=_stage_and_seconds, metavar="SECONDS:STAGE", help="kill one stage")
    parser.add_argument("--restart-after", type=float, metavar="SECONDS", help="end and start again, once")
    parser.add_argument("--hang-http", metavar="PATH", help="never answer this path")
    parser.add_argument("--no-gpus", action="store_true", help="do not tell of emulated GPUs, so that NVML is asked")
    parser.add_argument("--die-with-parent", action="store_true", help="end when standard input closes")
    args = parser.parse_args(argv)
    if not 2 <= args.pp <= 32 or not 1 <= args.tp <= 8:
        parser.error("--pp must be 2 to 32 and --tp 1 to 8")
    if args.kill_stage_after and not 0 <= args.kill_stage_after[1] < args.pp:
        parser.error(f"--kill-stage-after: there is no stage {args.kill_stage_after[1]}")
    return args


def options_of(args: argparse.Namespace) -> Options:
    """Return the options of a parsed command line; the private folder is not made yet."""
    load_seconds = SCENARIOS[args.scenario].load_seconds if args.load_seconds is None else args.load_seconds
    killed = args.kill_stage_after
    return Options(
        scenario_name=args.scenario,
        pp_size=args.pp,
        tp_size=args.tp,
        port=args.port,
        folder="",
        seconds=args.seconds,
        load_seconds=load_seconds,
        kill_stage=killed[1] if killed else None,
        kill_after_s=killed[0] if killed else 0.0,
        hang_path=args.hang_http,
        end_with_stdin=args.die_with_parent,
        gpus_told=not args.no_gpus,
    )


def without(argv: list[str], valued: tuple[str, ...], flags: tuple[str, ...]) -> list[str]:
    """Return a command line without some options and their values."""
    kept: list[str] = []
    skip = False
    for word in argv:
        if skip or word in flags or word.startswith(tuple(f"{name}=" for name in valued)):
            skip = False
        elif word in valued:
            skip = True
        else:
            kept.append(word)
    return kept


def main() -> None:
    """Become the launcher, or one that supervises it when a restart is wanted."""
    args = parse(sys.argv[1:])
    try:
        if args.restart_after is not None:
            argv = without(sys.argv[1:], ("--restart-after", "--port"), ("--die-with-parent",))
            supervisor = Supervisor(argv, args.port, args.restart_after, end_with_stdin=args.die_with_parent)
            sys.exit(supervisor.run())
        become_launcher(options_of(args))
    except OSError as error:
        sys.exit(f"ppscope emulator: cannot start: {error}")


if __name__ == "__main__":
    main()

"""What ppscope costs on this machine, beside its peers: one table.

    python -m tests.bench [--quick] [--only PART …] [-o docs/bench.md]

A part whose peer or server is absent says so and leaves its cells empty. What a part gave is kept in build/bench, so that one part can
be measured anew and joins the table of the others. A whole run takes about an hour, and means something only on a machine that
does nothing else.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.bench import probe, ranks64, screens, trace
from tests.bench.overhead import shared_cores, spare_core
from tests.bench.table import Measured, Skip, keep, kept, markdown, now
from tests.shared import ROOT

KEPT = ROOT / "build" / "bench"


def parts(quick: bool, python: str) -> dict[str, Callable[[], Measured]]:
    """Every part, in the order of the table."""
    return {
        "server": lambda: shared_cores((5, 3) if quick else (20, 3)),
        "spare-core": lambda: spare_core((5, 3) if quick else (40, 3)),
        **{name: partial(part, quick) for name, part in screens.PARTS.items()},
        "view64": lambda: ranks64.view(1.0 if quick else 10.0),
        "trace": lambda: trace.reading(100 if quick else 250, 1 if quick else 2, python),
        "probe": probe.span,
    }


def main() -> int:
    """Measure, write down, print; 1 when a part could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = parts(False, "")
    parser.add_argument("--only", nargs="+", choices=known, metavar="PART", default=list(known), help=", ".join(known))
    parser.add_argument("--quick", action="store_true", help="short: shows that it works, figures are rough")
    parser.add_argument("--trace-python", default=sys.executable, help="a Python with orjson and HolisticTraceAnalysis")
    parser.add_argument("-o", "--output", type=Path, help="write the table there as well")
    options = parser.parse_args()
    skipped = []
    for name in options.only:
        when = now()
        sys.stderr.write(f"{name} ({when}) …\n")
        try:
            measured = parts(options.quick, options.trace_python)[name]()
        except Skip as reason:
            skipped.append(f"skipped: {name}: {reason}")
            continue
        except Exception as error:  # noqa: BLE001  the other parts still take their time
            traceback.print_exc()
            skipped.append(f"failed: {name}: {type(error).__name__}: {error}")
            continue
        measured.when = when + (", quick" if options.quick else "")
        keep(KEPT, name, measured)
    table = markdown({name: found for name in known if (found := kept(KEPT, name)) is not None})
    sys.stdout.write(table + "".join(f"{line}\n" for line in skipped))
    if options.output is not None:
        options.output.write_text(table, encoding="utf-8")
    return 1 if skipped else 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs the tests that docs/faults.md names, and no others.

python -m tests.faults            once
python -m tests.faults --times 3  again and again, to the first failure
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys

from tests.shared import ROOT

ROW = re.compile(r"^\|.*\| `(test_\w+)` \|$", re.MULTILINE)


def named() -> list[str]:
    """Names in the last column of the tables, each once."""
    return list(dict.fromkeys(ROW.findall((ROOT / "docs" / "faults.md").read_text(encoding="utf-8"))))


def nodes() -> list[str]:
    """The tests of these names as pytest wants them."""
    found = []
    sources = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    for name in named():
        definition = re.compile(rf"^(?:async )?def {name}\(", re.MULTILINE)
        found += [f"{path.relative_to(ROOT)}::{name}" for path, text in sources.items() if definition.search(text)]
    return found


def main() -> int:
    """Status of the first run that failed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1)
    times = parser.parse_args().times
    for turn in range(1, times + 1):
        if times > 1:
            print(f"-- run {turn} of {times}", flush=True)
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", *nodes()], cwd=ROOT, check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())

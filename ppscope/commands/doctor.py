"""`doctor`: can I attach here?"""

from __future__ import annotations

import json

from ppscope import exits, stdout
from ppscope.doctor.checks import judge, problems
from ppscope.doctor.gather import gather
from ppscope.doctor.report import as_json, as_text


def doctor(pid: int | None, *, json_wanted: bool) -> int:
    """Check every precondition and print the verdicts; returns 0, 1 with problems, or the code of an attach that finds no server."""
    facts, error = gather(pid)
    verdicts = judge(facts)
    if json_wanted:
        stdout.write_text(json.dumps(as_json(facts, verdicts), indent=2) + "\n")
    else:
        stdout.write_text(as_text(verdicts))
    if error is not None:
        return error.exit_code
    return exits.FINDINGS if problems(verdicts) else exits.OK

"""Process titles that SGLang's children give themselves, read back into ranks.

Titles of 0.5.6 to 0.5.23: `sglang::scheduler` and a suffix `_DP1_PP0_ATTN_CP0_MOE_DP0_TP2_EP2` in which a part appears only
when its size is above 1 (0.5.23 managers/scheduler.py 6279-6294), `sglang::detokenizer`, `sglang::detokenizer_router`,
`sglang::tokenizer_worker:PID` and `sglang::data_parallel_controller`. A launcher has one where another program starts several
servers: `sglang::server` (sglang_router's launch_server.py, one for each replica).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ppscope.records import RankKey

PREFIX = "sglang::"
LAUNCHER = "sglang::server"
COMM_LENGTH = 15
"""The kernel cuts a process name to this many bytes."""

_KINDS = {
    "scheduler": "scheduler",
    "detokenizer": "detokenizer",
    "detokenizer_router": "detokenizer_router",
    "tokenizer_worker": "tokenizer_worker",
    "data_parallel_controller": "dp_controller",
}
_PART = re.compile(r"_(DP|PP|ATTN_CP|MOE_DP|TP|EP)(\d{1,9})(?!\d)", re.ASCII)
_SCHEDULER = re.compile(r"scheduler((?:_(?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d{1,9}(?!\d))*)(.*)", re.ASCII | re.DOTALL)
_WORKER = re.compile(r"tokenizer_worker:(\d{1,10})", re.ASCII)


class Title(NamedTuple):
    """A title read. `kind` is `scheduler`, `detokenizer`, `detokenizer_router`, `tokenizer_worker`, `dp_controller` or `other`.

    Rank numbers are None where the title does not name them (their size is 1, or the title was cut). `truncated` says that
    the text ends early or is not understood to its end, so that ranks may be missing.
    """

    kind: str
    text: str
    dp: int | None = None
    pp: int | None = None
    attn_cp: int | None = None
    moe_dp: int | None = None
    tp: int | None = None
    ep: int | None = None
    worker_pid: int | None = None
    truncated: bool = False

    @property
    def key(self) -> RankKey | None:
        """Rank of a scheduler whose title is whole; None otherwise."""
        if self.kind != "scheduler" or self.truncated:
            return None
        return RankKey(self.dp or 0, self.pp or 0, self.tp or 0)


def parse_title(text: str) -> Title | None:
    """Read a process title or a name cut by the kernel; None when it is not one of SGLang's."""
    text = text.split("\0", 1)[0].rstrip(" \0\t\n")
    if not text.startswith(PREFIX):
        return None
    body = text[len(PREFIX) :]
    if match := _SCHEDULER.fullmatch(body):
        parts = {name: int(number) for name, number in _PART.findall(match[1])}
        return Title(
            "scheduler",
            text,
            dp=parts.get("DP"),
            pp=parts.get("PP"),
            attn_cp=parts.get("ATTN_CP"),
            moe_dp=parts.get("MOE_DP"),
            tp=parts.get("TP"),
            ep=parts.get("EP"),
            truncated=bool(match[2]),
        )
    if match := _WORKER.fullmatch(body):
        return Title("tokenizer_worker", text, worker_pid=int(match[1]))
    if body in _KINDS:
        return Title(_KINDS[body], text)
    if body:
        for name, kind in _KINDS.items():
            if name.startswith(body) or (name == "tokenizer_worker" and body.startswith(name)):
                return Title(kind, text, truncated=True)
    return Title("other", text, truncated=len(text) >= COMM_LENGTH)

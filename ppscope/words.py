"""What the figures and signs of the screen mean, as data: the help and the README are made from this table."""

from __future__ import annotations

from typing import NamedTuple


class Word(NamedTuple):
    """A figure or sign as the screen shows it, and what it says."""

    show: str
    means: str


WORDS: tuple[Word, ...] = (
    Word("≈8 running", "requests that run; with ≈ they were worked out, without it the server counts them"),
    Word("decode 92 %", "how many of the server's last passes were decode; the others were prefill"),
    Word("slots 1 of 8", "micro-batch slots that hold requests: no more stages than that can work at once"),
    Word("graphs", "whether CUDA graphs are replayed: as seen, else as the server resolved it, else as asked"),
    Word("util", "NVML's share of time with a kernel on the GPU, also one that only waits for another stage"),
    Word("host", "share of time the scheduler's thread was at work, by stacks; in a rank's row: its share of a core"),
    Word("busy", "share of time the stage itself was at work: by a burst, the probe or the server's metric; – without"),
    Word("0.8 cores idle", "so few that stacks are sampled less and come seconds later; --rate keeps a rate"),
    Word("▾ on the axis", "now: what is to the right of it is still to come"),
    Word("▾ by a name", "unfolded: what belongs to it is below"),
    Word("12 % own", "stacks: share of samples in the function itself; in front, with all that it calls"),
)


def as_markdown() -> str:
    """The table as Markdown rows, for the README."""
    rows = [f"| `{word.show}` | {word.means} |" for word in WORDS]
    return "\n".join(["| on the screen | what it says |", "|---|---|", *rows])

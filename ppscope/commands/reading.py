"""What open, compare and export share: a file is read, the stretch of it chosen, and what is wrong with either said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ppscope import exits
from ppscope.commands.progress import Progress
from ppscope.complain import complain
from ppscope.records import AnyRecord
from ppscope.snapshot.document import build
from ppscope.snapshot.files import named
from ppscope.snapshot.paths import shorten_paths
from ppscope.snapshot.read import Opened, UnreadableFile, read_file
from ppscope.snapshot.stretch import DEFAULT_S, EXACT_S, Asked, NotThere, choose, in_words


class Source(msgspec.Struct, frozen=True):
    """A file, and the stretch of it that is used; None: all of it."""

    opened: Opened
    stretch: tuple[int, int] | None

    def records(self, *, redact_paths: bool = False) -> list[AnyRecord]:
        """The records of the stretch."""
        records = list(self.opened.index.stretch(self.stretch))
        return shorten_paths(records) if redact_paths else records

    def document(self, *, redact_paths: bool = False) -> dict[str, Any]:
        """The embedded data, or what a snapshot of the stretch would embed."""
        if self.opened.document is not None and self.stretch is None and not redact_paths:
            return self.opened.document
        return build(self.records(redact_paths=redact_paths))


def read(path: Path, asked: Asked, *, bounded: bool = True) -> Source | int:
    """A file, or after a line that says why there is none the exit code; what is missing of a cut file is told too.

    `bounded`: of a long recording only the last part is used unless more is asked for, and that is said.
    """
    progress = Progress(0, 0)
    progress.say(f"reading {ascii(path.name)[1:-1]}")
    try:
        opened = read_file(path)
    except UnreadableFile as error:
        progress.clear()
        complain(str(error))
        return exits.CANNOT_ATTACH
    finally:
        progress.clear()
    if opened.damage:
        complain(f"{named(path)} is {opened.damage}")
    extent = opened.index.extent()
    try:
        most_s = EXACT_S if opened.index.exact else DEFAULT_S
        stretch = choose(extent, asked, most_s) if bounded or not asked.nothing else None
    except NotThere as error:
        complain(f"{named(path)} {error}")
        return exits.USAGE
    if opened.document is not None and asked.nothing:
        stretch = None
    if stretch is not None and asked.nothing:
        complain(
            f"{named(Path(path.name))}: {in_words(extent, stretch)} is used; --from and --until choose another part"
        )
    return Source(opened, stretch)

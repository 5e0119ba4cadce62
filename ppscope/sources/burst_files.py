"""Watching trace files grow: whose they are, and whether the gzip stream has come to its end."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable

from isal import isal_zlib

from ppscope.records import RankKey

_NAME = re.compile(r"-TP-(?P<tp>\d{1,6})(?P<parts>(?:-[A-Z]+-\d{1,6})*)\.trace\.json\.gz$")
_PART = re.compile(r"-([A-Z]+)-(\d{1,6})")
_READ_BYTES = 1 << 20
_GZIP_WINDOW_BITS = 31


def rank_of(name: str, token: str) -> RankKey | None:
    """The rank that a file of this burst belongs to (a part is left out where there is only one); None for other files."""
    match = _NAME.search(name) if name.startswith(token) else None
    if match is None:
        return None
    parts = {kind: int(number) for kind, number in _PART.findall(match["parts"])}
    return RankKey(parts.get("DP", 0), parts.get("PP", 0), int(match["tp"]))


class GrowingFile:
    """One trace file as it is being written; each byte is read once.

    `whole` is True once the gzip stream ended, `size_bytes` what was read of it. `problem` says why it cannot be read, None when it can.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.size_bytes = 0
        self.whole = False
        self.problem: str | None = None
        self._decoder = isal_zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)

    def look(self) -> bool:
        """Read what has come since the last look; True when anything did."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            self.problem = error.strerror or str(error)
            return False
        before = self.size_bytes
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                self.problem = "not a regular file"
                return False
            file.seek(self.size_bytes)
            while self.problem is None and (data := file.read(_READ_BYTES)):
                self.size_bytes += len(data)
                self._take(data)
        return self.size_bytes != before

    def _take(self, data: bytes) -> None:
        while data:
            if self.whole:
                # Another member of the same file.
                self._decoder = isal_zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
                self.whole = False
            try:
                while True:
                    text = self._decoder.decompress(data, _READ_BYTES)
                    data = self._decoder.unconsumed_tail
                    # Output may be left inside after the last of the input.
                    if self._decoder.eof or (not data and len(text) < _READ_BYTES):
                        break
            except isal_zlib.error as error:  # type: ignore[misc]
                self.problem = f"damaged gzip data ({error})"
                return
            self.whole = self._decoder.eof
            data = self._decoder.unused_data.lstrip(b"\0") if self.whole else b""


class BurstFiles:
    """The files of one burst, by rank, for those `expected` on this node."""

    def __init__(self, folder: str, token: str, expected: Iterable[RankKey]) -> None:
        self._folder = folder
        self._token = token
        self.expected = tuple(sorted(expected))
        self.files: dict[RankKey, GrowingFile] = {}

    def look(self) -> bool:
        """Look for files and for more of them; True when anything was new. Raises OSError when the folder cannot be listed."""
        news = False
        for name in os.listdir(self._folder):
            key = self._place(rank_of(name, self._token))
            if key is not None and key not in self.files:
                self.files[key] = GrowingFile(os.path.join(self._folder, name))
                news = True
        for file in self.files.values():
            if not file.whole and file.problem is None:
                news = file.look() or news
        return news

    def _place(self, found: RankKey | None) -> RankKey | None:
        """The expected rank that a file name means; with data-parallel attention a rank's number is not its group's."""
        if found is None or found in self.expected:
            return found
        same = [key for key in self.expected if (key.pp, key.tp) == (found.pp, found.tp)]
        return same[0] if len(same) == 1 else found

    @property
    def whole(self) -> dict[RankKey, str]:
        """Paths of the files that have come to their end."""
        return {key: file.path for key, file in sorted(self.files.items()) if file.whole}

    @property
    def settled(self) -> bool:
        """True when every expected rank's file is whole, or will never be."""
        return all(
            key in self.files and (self.files[key].whole or self.files[key].problem is not None)
            for key in self.expected
        )

    @property
    def complete(self) -> bool:
        """True when every expected rank's file is whole, so that nobody writes any more."""
        return len(self.whole.keys() & set(self.expected)) == len(self.expected)

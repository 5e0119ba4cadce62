"""From a stream of records to the values the screen draws; no Textual, no I/O of its own."""

from ppscope.session.session import Session

__all__ = ["Session"]

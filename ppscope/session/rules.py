"""The graph rules of the installed SGLang as they came on the wire, judged against the server's settings."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ppscope.diagnose.graph_rules import Answer, answers
from ppscope.diagnose.graph_world import World
from ppscope.records import Rules, Server
from ppscope.sources.rules_model import RuleBook

_Settings = Mapping[str, object]


class RulesState:
    """Keeps the book and the last answer: judging takes tens of milliseconds and the settings seldom change."""

    def __init__(self) -> None:
        self.book: RuleBook | None = None
        self.problem = ""
        self.path = ""
        self._asked: tuple[object, ...] | None = None
        self._answer: Answer | None = None

    def add(self, record: Rules) -> None:
        """Take in the rules; a book that cannot be decoded is no book."""
        self.book, self.problem, self.path = None, record.problem, record.path
        self._asked = None
        if not record.book:
            return
        try:
            self.book = msgspec.msgpack.decode(record.book, type=RuleBook)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
            self.problem = f"the rules in this stream cannot be read: {error}"

    def world(self, server: Server, requested: _Settings | None, resolved: _Settings | None) -> World | None:
        """The settings as the rules see them; None without a book."""
        if self.book is None:
            return None
        return World(self.book, requested=requested, resolved=resolved, device=server.device)

    def answer(self, server: Server, requested: _Settings | None, resolved: _Settings | None) -> Answer | None:
        """Whether decode graphs come on; None without a book or without the server's settings."""
        if self.book is None or (requested is None and resolved is None):
            return None
        asked = (id(self.book), id(requested), id(resolved), server.device)
        if asked != self._asked:
            world = self.world(server, requested, resolved)
            assert world is not None
            self._answer, self._asked = answers(world)[0], asked
        return self._answer

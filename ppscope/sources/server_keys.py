"""API keys: only those the user gave ppscope, and only to a port that was traced to the server."""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLES = ("PPSCOPE_API_KEY", "PPSCOPE_ADMIN_KEY")


class Keys:
    """The keys to try, one after another. Nothing is sent before the server asked for a key; keys are never shown or stored."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        given = [environment.get(name, "").strip() for name in VARIABLES]
        self._keys = [key for key in given if key and key.isascii() and key.isprintable()]
        self._tried = 0

    def key(self, port_owner: bool | None) -> str | None:
        """The key to send with the next request, or None."""
        return self._keys[self._tried - 1] if port_owner and 0 < self._tried <= len(self._keys) else None

    def refused(self, port_owner: bool | None) -> bool:
        """Take note of a 401 or 403; True when there is another key to try at once."""
        if not port_owner:
            return False
        self._tried += 1
        if self._tried <= len(self._keys):
            return True
        self._tried = 0
        return False

    def advice(self, port_owner: bool | None) -> tuple[str, str]:
        """Message and remedy for a server that wants a key which it did not get."""
        if not self._keys:
            return "the server wants an API key", f"set {VARIABLES[0]} in the environment of ppscope"
        if not port_owner:
            return (
                "the server wants an API key; none was sent, for its port could not be traced to it",
                "run as the server's user",
            )
        return (
            "the server refuses the API key",
            f"check {VARIABLES[0]}, and {VARIABLES[1]} where the server has an admin key",
        )

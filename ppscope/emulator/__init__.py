"""A small pipeline server with SGLang's outward surfaces, for the demo and tests. Nothing here measures; nothing of it is SGLang's code.

`start` gives a running server; `python -m ppscope.emulator` is the same by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ppscope.emulator.handle import EmulatedServer as EmulatedServer
    from ppscope.emulator.handle import EmulatorError as EmulatorError
    from ppscope.emulator.handle import start as start

__all__ = ["EmulatedServer", "EmulatorError", "start"]


def __getattr__(name: str) -> object:
    # Every stage imports this package; what only its callers need is left out of their start.
    if name in __all__:
        from ppscope.emulator import handle

        return getattr(handle, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

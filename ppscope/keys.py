"""Every key of the screen, as data: the bindings, the footer, the help, the README and the man page are made from this table."""

from __future__ import annotations

from typing import NamedTuple


class Key(NamedTuple):
    """One action and its keys.

    `keys` are Textual key names, `show` is what the reader sees. `footer` is a short word for the footer, empty to leave it out;
    `needs` names a condition without which the key is not bound: `burst`, `snapshot`, `candidates` or `palette`.
    """

    action: str
    keys: tuple[str, ...]
    show: str
    help: str
    group: str
    footer: str = ""
    needs: str = ""


MOVE, TIME, PANELS, DO = "Move", "Time", "Panels", "Do"

KEYS: tuple[Key, ...] = (
    Key("up", ("up", "k"), "↑ k", "previous stage, or line of the panel", MOVE),
    Key("down", ("down", "j"), "↓ j", "next stage, or line of the panel", MOVE, "move"),
    Key("page_up", ("pageup",), "PgUp", "a page up", MOVE),
    Key("page_down", ("pagedown",), "PgDn", "a page down", MOVE),
    Key(
        "deeper",
        ("enter",),
        "Enter",
        "deeper: stage, rank, span, stack, who calls a line; in the panel: the chosen row",
        MOVE,
        "deeper",
    ),
    Key("leave", ("escape",), "Esc", "back, or clear the filter", MOVE, "back"),
    Key("switch", ("tab", "shift+tab"), "Tab", "between the stages and the panel", MOVE, "panel"),
    Key("earlier", ("left", "h"), "← h", "back in time: ten minutes, or all of a recording", TIME),
    Key("later", ("right", "l"), "→ l", "forward in time", TIME, "time"),
    Key("oldest", ("home",), "Home", "the oldest instant kept", TIME),
    Key("zoom_in", ("plus", "equals_sign"), "+", "zoom in, down to single spans", TIME, "zoom"),
    Key("zoom_out", ("minus", "underscore"), "-", "zoom out", TIME),
    Key("live", ("0", "end"), "0 End", "back to now", TIME, "live"),
    Key("freeze", ("space",), "Space", "freeze the screen; collection goes on", TIME, "freeze"),
    Key("panel(1)", ("1",), "1", "findings", PANELS),
    Key("panel(2)", ("2",), "2", "launches", PANELS),
    Key("panel(3)", ("3",), "3", "stacks of the chosen rank", PANELS),
    Key("panel(4)", ("4",), "4", "GPUs", PANELS),
    Key("panel(5)", ("5",), "5", "server", PANELS),
    Key("findings", ("f",), "f", "open the findings", PANELS),
    Key("enlarge", ("z",), "z", "panel in full height, and back", PANELS, "enlarge"),
    Key(
        "filter", ("slash",), "/", "show only stages, ranks, stacks, launches and settings with this text", DO, "filter"
    ),
    Key("copy", ("y",), "y", "copy the finding or the stack (OSC 52, works over SSH)", DO, "copy"),
    Key("burst", ("p",), "p", "profile burst of the server", DO, "profile", needs="burst"),
    Key("snapshot", ("s",), "s", "save a snapshot; a live one is of the last minute", DO, "snapshot", needs="snapshot"),
    Key("attach", ("a",), "a", "attach to another server, once this one is gone", DO, "attach", needs="candidates"),
    Key("light", ("t",), "t", "light or dark", DO),
    Key("help", ("question_mark",), "?", "this help", DO, "help"),
    Key("command_palette", ("ctrl+p",), "^p", "command palette", DO, needs="palette"),
    Key("quit", ("q",), "q", "quit", DO, "quit"),
    Key(
        "suspend_process", ("ctrl+z",), "^z", "suspend; fg in the shell brings the screen back, collection goes on", DO
    ),
    Key("interrupt", ("ctrl+c",), "^c", "quit with exit code 130", DO),
)

FOOTER_GLYPHS = {"down": "↑↓", "later": "←→", "zoom_in": "+-", "live": "0"}
"""Shorter key names for the footer, where one word stands for a pair of keys."""


def as_markdown() -> str:
    """The table as Markdown rows, for the README."""
    rows = [f"| `{key.show}` | {key.help} |" for key in KEYS]
    return "\n".join(["| key | what |", "|---|---|", *rows])

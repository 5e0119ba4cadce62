"""The terminal: what it can show."""

from __future__ import annotations

from ppscope.doctor.facts import Check, Facts

SMALLEST = (80, 24)
_TMUX = "tmux set -as terminal-features ',*:RGB'  # then attach to it anew\nexport COLORTERM=truecolor"


def locale(facts: Facts) -> Check:
    """UTF-8 or ASCII."""
    encoding = facts.terminal.encoding
    if encoding.lower().replace("-", "").replace("_", "") in ("utf8", "utf8sig"):
        return Check("locale", "ok", "UTF-8")
    return Check(
        "locale", "info", f"the encoding is {encoding or 'not known'}: drawn in ASCII", "export LC_ALL=C.UTF-8"
    )


def size(facts: Facts) -> Check:
    """Room for the screen."""
    columns, lines = facts.terminal.columns, facts.terminal.lines
    if columns is None or lines is None:
        said = "stdout is not a terminal: `ppscope check` works without one, `ppscope attach` does not"
        return Check("terminal.size", "info", said)
    if not columns or not lines:
        said = "the terminal does not tell its size, as happens over a serial line or docker exec"
        return Check("terminal.size", "unknown", said, "stty cols 160 rows 50")
    if columns < SMALLEST[0] or lines < SMALLEST[1]:
        return Check(
            "terminal.size",
            "problem",
            f"{columns}×{lines} is too small",
            f"make it {SMALLEST[0]}×{SMALLEST[1]} or larger",
        )
    return Check("terminal.size", "ok", f"{columns}×{lines}")


def colours(facts: Facts) -> Check | None:
    """How many colours; every phase has a glyph of its own as well."""
    terminal = facts.terminal
    if terminal.columns is None:
        return None
    if terminal.no_color:
        return Check("terminal.colours", "info", "NO_COLOR is set: glyphs alone tell phases apart")
    if terminal.term in ("", "dumb", "unknown"):
        return Check(
            "terminal.colours",
            "problem",
            f"no screen can be drawn with TERM={terminal.term}",
            "export TERM=xterm-256color",
        )
    if terminal.colorterm in ("truecolor", "24bit"):
        return Check("terminal.colours", "ok", f"{terminal.term}, true colour")
    if "256" in terminal.term:
        return Check("terminal.colours", "ok", f"{terminal.term}, 256 colours")
    return Check(
        "terminal.colours",
        "info",
        f"{terminal.term}: 16 colours are used",
        "export TERM=xterm-256color where the terminal can",
    )


def tmux(facts: Facts) -> Check | None:
    """tmux passes on true colour only when told to."""
    terminal = facts.terminal
    if not terminal.tmux:
        return None
    if terminal.colorterm in ("truecolor", "24bit") or terminal.no_color:
        return Check("tmux", "ok", "inside tmux")
    return Check("tmux", "info", "inside tmux, which does not announce true colour", _TMUX)

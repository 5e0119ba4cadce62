"""What the shell offers where a command wants a pid, the servers of this machine, and where it wants a command."""

from __future__ import annotations

import os

from click.shell_completion import CompletionItem

from ppscope.target.processes import find_servers


def server_pids(incomplete: str) -> list[CompletionItem]:
    """Launcher pids that begin with what was typed; shells that show a help text show model and layout."""
    pids = ((str(server.launcher_pid), server.line().partition("  ")[2]) for server in find_servers())
    return [CompletionItem(pid, help=text) for pid, text in pids if pid.startswith(incomplete)]


def command_words(before: tuple[str, ...], incomplete: str) -> list[CompletionItem]:
    """The words of a command that ppscope starts: files, and programs on PATH for the first."""
    files = [CompletionItem(incomplete, type="file")]
    if before or not incomplete or "/" in incomplete:
        return files
    return [CompletionItem(name) for name in _programs(incomplete)] or files


def _programs(start: str) -> list[str]:
    found: set[str] = set()
    for folder in os.get_exec_path():
        try:
            names = [name for name in os.listdir(folder) if name.startswith(start)]
        except OSError:
            continue
        found.update(name for name in names if os.access(os.path.join(folder, name), os.X_OK))
    return sorted(found)

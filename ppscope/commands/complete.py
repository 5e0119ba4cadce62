"""What the shell offers where a command wants a pid: the servers of this machine."""

from __future__ import annotations

from click.shell_completion import CompletionItem

from ppscope.target.processes import find_servers


def server_pids(incomplete: str) -> list[CompletionItem]:
    """Launcher pids that begin with what was typed; shells that show a help text show model and layout."""
    pids = ((str(server.launcher_pid), server.line().partition("  ")[2]) for server in find_servers())
    return [CompletionItem(pid, help=text) for pid, text in pids if pid.startswith(incomplete)]

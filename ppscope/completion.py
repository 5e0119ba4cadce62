"""What bash, zsh and fish are told: one script each, and what they offer when tab is pressed.

Click's own scripts cut a help text at its first comma (fish), replace `--flag=va` by a value without its flag (zsh), know no value
after `--flag=` (bash), and need compinit to have run (zsh).
"""

from __future__ import annotations

import re

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, split_arg_string

_BASH = r"""%(complete_func)s() {
    local type value
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(COMP_WORDS=${COMP_LINE:0:COMP_POINT} %(complete_var)s=bash_complete "${1/#\~\//$HOME/}" 2> /dev/null)
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_ZSH = r"""#compdef %(prog_name)s

%(complete_func)s() {
    local type value help line="${(j: :)words[1,CURRENT]}"
    local -a described plain
    local command=${~words[1]}
    whence -p -- $command > /dev/null || command=%(prog_name)s
    [[ $PREFIX == --*=* ]] && compset -P 1 '*='
    while IFS= read -r type && IFS= read -r value && IFS= read -r help; do
        case $type in
            dir) _path_files -/ ;;
            file) _path_files -f ;;
            plain) if [[ -n $help ]]; then described+=("${value//:/\\:}:$help"); else plain+=("$value"); fi ;;
        esac
    done < <(COMP_WORDS=$line %(complete_var)s=zsh_complete $command 2> /dev/null)
    (( $#described )) && _describe -V '' described
    (( $#plain )) && compadd -V '' -a plain
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
    compdef %(complete_func)s %(prog_name)s
fi
"""

_FISH = r"""function %(complete_func)s
    set -l command (commandline -opc | string match -r '^(?:.*/)?%(prog_name)s$' | string replace -r '^~/' "$HOME/")
    set -q command[1]; or set command %(prog_name)s
    set -l flag (commandline -ct | string match -r '^--[^=]+=')
    for item in (COMP_WORDS=(commandline -cp | string collect) %(complete_var)s=fish_complete $command[1] 2> /dev/null)
        set -l parts (string split -m 1 , -- $item)
        switch $parts[1]
            case dir
                printf '%%s\n' "$flag"(__fish_complete_directories $parts[2])
            case file
                printf '%%s\n' "$flag"(__fish_complete_path $parts[2])
            case plain
                echo "$flag$parts[2]"
        end
    end
end

complete --no-files --keep-order --command %(prog_name)s --arguments '(%(complete_func)s)'
"""


def words_of(line: str) -> tuple[list[str], str]:
    """Arguments of a line that ends at the cursor, and the word that is being typed."""
    words = split_arg_string(f"{line}_")  # the mark shows whether the last word has begun, and is taken off again
    while len(words) > 1 and re.match(r"\w+=", words[0]):
        words.pop(0)
    return words[1:-1], words[-1][:-1]


class _Complete(ShellComplete):
    """Scripts pass the line up to the cursor; what is said of a command is its whole first sentence."""

    def get_completion_args(self) -> tuple[list[str], str]:
        import os

        return words_of(os.environ["COMP_WORDS"])

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        items = super().get_completions(list(args), incomplete)
        if not args and isinstance(self.cli, click.Group):
            for item in items:
                command = self.cli.commands.get(item.value)
                if command is not None:
                    item.help = (command.help or "").partition("\n\n")[0]
        return items


def _help(item: CompletionItem) -> str:
    return " ".join((item.help or "").split())


class _Bash(_Complete):
    name = "bash"
    source_template = _BASH

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value}"


class _Zsh(_Complete):
    name = "zsh"
    source_template = _ZSH

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type}\n{item.value}\n{_help(item)}"


class _Fish(_Complete):
    name = "fish"
    source_template = _FISH

    def format_completion(self, item: CompletionItem) -> str:
        told = f"{item.value}\t{_help(item)}" if item.type == "plain" else item.value
        return f"{item.type},{told}"


def install() -> None:
    """Take the place of click's own scripts."""
    for shell in (_Bash, _Zsh, _Fish):
        add_completion_class(shell)

"""Completion scripts for bash, zsh and fish, written out from the verbs: they ask nothing of Falaj while one types."""

import sys
from collections.abc import Mapping

from falaj.cli import COMMANDS, GLOBALS
from falaj.cli.frame import Frame
from falaj.cli.parsing import Parser, read
from falaj.cli.verbs import flags_of, typed, words_of
from falaj.desks import DESKS

Words = Mapping[str, Mapping[str, list[str]]]


def completion(frame: Frame, arguments: list[str]) -> int:
    """`falaj completion bash|zsh|fish`."""
    parser = Parser(prog="falaj completion", description="Print a completion script: source <(falaj completion bash)")
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])
    _, found = read(frame, parser, arguments)
    sys.stdout.write({"bash": bash, "zsh": zsh, "fish": fish}[found.shell](words()))
    return 0


def words() -> dict[str, dict[str, list[str]]]:
    """Desk, verb, flags."""
    return {name: {typed(verb): flags_of(verb) for verb in words_of(name)} for name in DESKS}


def bash(known: Words) -> str:
    """For `~/.bashrc`."""
    cases = []
    for desk, verbs in known.items():
        cases.append(f'    "{desk} ") words="{" ".join(verbs)}" ;;')
        cases += [f'    "{desk} {verb}") words="{" ".join(flags)}" ;;' for verb, flags in verbs.items()]
    top = " ".join([*known, *COMMANDS, *GLOBALS])
    return "\n".join(
        [
            "_falaj() {",
            '  local current="${COMP_WORDS[COMP_CWORD]}" desk="" verb="" words="" word',
            '  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
            '    case "$word" in -*) continue ;; esac',
            '    if [ -z "$desk" ]; then desk="$word"; elif [ -z "$verb" ]; then verb="$word"; fi',
            "  done",
            '  case "$desk $verb" in',
            f'    " ") words="{top}" ;;',
            *cases,
            "  esac",
            '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
            '  [ "${#COMPREPLY[@]}" -gt 0 ] || COMPREPLY=($(compgen -f -- "$current"))',
            "}",
            "complete -F _falaj falaj",
            "",
        ]
    )


def zsh(known: Words) -> str:
    """For a file named `_falaj` on `$fpath`, or to be sourced."""
    cases = []
    for desk, verbs in known.items():
        cases.append(f'    "{desk} ") options=({" ".join(verbs)}) ;;')
        cases += [f'    "{desk} {verb}") options=({" ".join(flags)}) ;;' for verb, flags in verbs.items()]
    return "\n".join(
        [
            "#compdef falaj",
            "_falaj() {",
            "  local desk='' verb='' word",
            "  local -a options",
            "  for word in ${words[2,CURRENT-1]}; do",
            '    [[ "$word" == -* ]] && continue',
            '    if [[ -z "$desk" ]]; then desk="$word"; elif [[ -z "$verb" ]]; then verb="$word"; fi',
            "  done",
            '  case "$desk $verb" in',
            f'    " ") options=({" ".join([*known, *COMMANDS, *GLOBALS])}) ;;',
            *cases,
            "  esac",
            "  compadd -- $options || _files",
            "}",
            '[[ "${funcstack[1]}" == _falaj ]] && _falaj "$@" || compdef _falaj falaj',
            "",
        ]
    )


def fish(known: Words) -> str:
    """For `~/.config/fish/completions/falaj.fish`."""
    tops = [(name, desk.summary) for name, desk in DESKS.items()] + [
        (name, summary) for name, (_, summary) in COMMANDS.items()
    ]
    lines = [
        f"complete -c falaj -f -n __fish_use_subcommand -a {name} -d '{_quoted(summary)}'" for name, summary in tops
    ]
    for desk, verbs in known.items():
        unsaid = f"__fish_seen_subcommand_from {desk}; and not __fish_seen_subcommand_from {' '.join(verbs)}"
        lines += [f"complete -c falaj -f -n '{unsaid}' -a {verb}" for verb in verbs]
        for verb, flags in verbs.items():
            said = f"__fish_seen_subcommand_from {desk}; and __fish_seen_subcommand_from {verb}"
            lines += [f"complete -c falaj -n '{said}' -l {flag[2:]}" for flag in flags]
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")

"""Completion scripts for bash, zsh and fish, written out from the verbs: they ask nothing of Falaj while one types."""

import sys
from collections.abc import Mapping

from falaj.cli import COMMANDS, GLOBAL_FLAGS
from falaj.cli.argument_parsing import CommandParser, parse_arguments
from falaj.cli.cli_context import CliContext
from falaj.cli.operation_commands import list_operation_flags, list_operations_and_commands, to_typed_name
from falaj.services import SERVICES

FlagsByOperation = Mapping[str, Mapping[str, list[str]]]


def run_completion_command(context: CliContext, arguments: list[str]) -> int:
    """`falaj completion bash|zsh|fish`."""
    parser = CommandParser(
        prog="falaj completion", description="Print a completion script: source <(falaj completion bash)"
    )
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])
    _, parsed_arguments = parse_arguments(context, parser, arguments)
    sys.stdout.write(
        {"bash": make_bash_script, "zsh": make_zsh_script, "fish": make_fish_script}[parsed_arguments.shell](
            list_flags()
        )
    )
    return 0


def list_flags() -> dict[str, dict[str, list[str]]]:
    """Desk, verb, flags."""
    return {
        name: {
            to_typed_name(operation): list_operation_flags(operation)
            for operation in list_operations_and_commands(name)
        }
        for name in SERVICES
    }


def make_bash_script(flags_by_operation: FlagsByOperation) -> str:
    """For `~/.bashrc`."""
    cases = []
    for service_name, flag_lists in flags_by_operation.items():
        cases.append(f'    "{service_name} ") words="{" ".join(flag_lists)}" ;;')
        cases += [
            f'    "{service_name} {operation_name}") words="{" ".join(flags)}" ;;'
            for operation_name, flags in flag_lists.items()
        ]
    top = " ".join([*flags_by_operation, *COMMANDS, *GLOBAL_FLAGS])
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


def make_zsh_script(flags_by_operation: FlagsByOperation) -> str:
    """For a file named `_falaj` on `$fpath`, or to be sourced."""
    cases = []
    for service_name, flag_lists in flags_by_operation.items():
        cases.append(f'    "{service_name} ") options=({" ".join(flag_lists)}) ;;')
        cases += [
            f'    "{service_name} {operation_name}") options=({" ".join(flags)}) ;;'
            for operation_name, flags in flag_lists.items()
        ]
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
            f'    " ") options=({" ".join([*flags_by_operation, *COMMANDS, *GLOBAL_FLAGS])}) ;;',
            *cases,
            "  esac",
            "  compadd -- $options || _files",
            "}",
            '[[ "${funcstack[1]}" == _falaj ]] && _falaj "$@" || compdef _falaj falaj',
            "",
        ]
    )


def make_fish_script(flags_by_operation: FlagsByOperation) -> str:
    """For `~/.config/fish/completions/falaj.fish`."""
    top_words = [(name, service_name.summary) for name, service_name in SERVICES.items()] + [
        (name, summary) for name, (_, summary) in COMMANDS.items()
    ]
    lines = [
        f"complete -c falaj -f -n __fish_use_subcommand -a {name} -d '{_escape_single_quotes(summary)}'"
        for name, summary in top_words
    ]
    for service_name, flag_lists in flags_by_operation.items():
        service_condition = (
            f"__fish_seen_subcommand_from {service_name}; and not __fish_seen_subcommand_from {' '.join(flag_lists)}"
        )
        lines += [f"complete -c falaj -f -n '{service_condition}' -a {operation_name}" for operation_name in flag_lists]
        for operation_name, flags in flag_lists.items():
            operation_condition = (
                f"__fish_seen_subcommand_from {service_name}; and __fish_seen_subcommand_from {operation_name}"
            )
            lines += [f"complete -c falaj -n '{operation_condition}' -l {flag[2:]}" for flag in flags]
    return "\n".join([*lines, ""])


def _escape_single_quotes(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")

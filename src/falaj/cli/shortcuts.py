"""Short words for what people say often: `falaj reproduce` is `falaj catalog reproduce`."""

from dataclasses import replace

from falaj.cli.cli_context import CliContext
from falaj.cli.operation_commands import run_service_command


def run_reproduce_command(context: CliContext, arguments: list[str]) -> int:
    """`falaj reproduce MODEL`."""
    return run_service_command(replace(context, command="catalog"), ["reproduce", *arguments])


def run_optimize_command(context: CliContext, arguments: list[str]) -> int:
    """`falaj optimize MODEL --for cpu`: `--for` is `--aim`, and each way of `--how` is a flag of its own."""
    from falaj.study.optimize_command import OPTION_NAMES

    operation_arguments: list[str] = []
    remaining = list(arguments)
    while remaining:
        argument = remaining.pop(0)
        flag, equals_sign, value = argument.partition("=")
        if flag == "--for":
            operation_arguments.append(f"--aim{equals_sign}{value}")
        elif flag.startswith("--") and flag[2:] in OPTION_NAMES and (equals_sign or remaining):
            operation_arguments += ["--how", f"{flag[2:]}={value if equals_sign else remaining.pop(0)}"]
        else:
            operation_arguments.append(argument)
    return run_service_command(replace(context, command="catalog"), ["optimize", *operation_arguments])

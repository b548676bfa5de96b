"""Door 2: the `falaj` command. Groups are desks, commands are verbs, flags are parameters; little is written by hand.

Only the standard library is loaded until something is known about what was asked, so that help comes at once.
"""

import gc
import os
import sys

COMMANDS = {
    "up": ("falaj.cli.up:run_up_command", "Start the platform on this machine"),
    "gateway": ("falaj.cli.gateway:run_gateway_command", "Pass requests on to endpoints; falaj up keeps one by itself"),
    "agent": ("falaj.cli.agent:run_agent_command", "Run a zone's data plane beside its data; it only dials out"),
    "demo": ("falaj.cli.up:run_demo_command", "Tell the whole story on a throw-away platform"),
    "login": ("falaj.cli.login:run_login_command", "Sign in to a platform and remember it"),
    "logout": ("falaj.cli.login:run_logout_command", "Forget a platform's token"),
    "status": ("falaj.cli.status:run_status_command", "Who you are, where, and whether it is well"),
    "env": ("falaj.cli.status:run_env_command", "Print what curl, MLflow and Triton clients need"),
    "settings": ("falaj.cli.status:run_settings_command", "Every setting, its value and where it came from"),
    "doctor": ("falaj.cli.doctor:run_doctor_command", "Check the set-up and say what to fix"),
    "reproduce": (
        "falaj.cli.shortcuts:run_reproduce_command",
        "Train a model version again, and say whether it is the same",
    ),
    "optimize": (
        "falaj.cli.shortcuts:run_optimize_command",
        "Make a model smaller and faster within a bound, and publish it",
    ),
    "deploy": ("falaj.cli.deploy:run_deploy_command", "Render a deployment for a place, and check one that runs"),
    "upgrade": ("falaj.cli.upgrade:run_upgrade_command", "Say whether this version may join those that run"),
    "restore": ("falaj.cli.restore:run_restore_command", "Bring a backup into an empty store, and prove it"),
    "renew-token": ("falaj.cli.renew_token:run_renew_token_command", "Replace the token in a file by its next one"),
    "tls": ("falaj.cli.status:run_tls_command", "The local authority: show it, issue certificates"),
    "completion": ("falaj.cli.completion:run_completion_command", "Print a completion script for bash, zsh or fish"),
}
GLOBAL_FLAGS = {"--at": "ADDRESS", "--as": "NAME", "--ca": "FILE", "--json": "", "--purpose": "PURPOSE"}


def main(argv: list[str] | None = None) -> int:
    """Run one command; gives the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    owns_process = argv is None  # the process is ours, and ends with the command
    gc.disable()  # what is loaded stays: searching it for garbage while it is loaded finds none
    try:
        exit_code = _run_command(arguments, owns_process=owns_process)
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return 130
    except BrokenPipeError:
        # Whoever read our output has enough. Python would complain once more while closing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    if owns_process:
        _exit_fast(exit_code)
    return exit_code


def _exit_fast(exit_code: int) -> None:
    """End here, where nothing is left to do: taking apart what a command has loaded takes a tenth of its time.

    What asked to be called at the end is called. Where somebody still works, or watches, the usual way is taken.
    """
    import atexit
    import threading

    if any(thread is not threading.main_thread() and not thread.daemon for thread in threading.enumerate()):
        return
    if sys.gettrace() is not None or sys.getprofile() is not None or sys.flags.interactive:
        return
    atexit._run_exitfuncs()  # noqa: SLF001 - the interpreter itself ends with it
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _run_command(arguments: list[str], *, owns_process: bool) -> int:
    global_arguments, command, command_arguments = split_command(arguments)
    if command == "" or (command == "help" and not command_arguments):
        return _run_without_command(global_arguments)
    if command == "help":
        command, command_arguments = command_arguments[0], [*command_arguments[1:], "--help"]
    from falaj.services import SERVICES

    if command not in COMMANDS and command not in SERVICES:
        return _report_unknown_command(command)
    if owns_process and command in SERVICES:  # commands of our own may run for months
        from falaj.cli.light import start_light

        start_light()
    from falaj.cli.cli_context import run_in_context

    if command in COMMANDS:
        from importlib import import_module

        module, _, name = COMMANDS[command][0].partition(":")
        return run_in_context(getattr(import_module(module), name), command, global_arguments, command_arguments)
    from falaj.cli.operation_commands import run_service_command

    return run_in_context(run_service_command, command, global_arguments, command_arguments)


def split_command(arguments: list[str]) -> tuple[list[str], str, list[str]]:
    """Flags before the command, the command, and the rest."""
    position = 0
    while position < len(arguments) and arguments[position].startswith("-"):
        position += 2 if GLOBAL_FLAGS.get(arguments[position]) else 1
    if position >= len(arguments):
        return arguments, "", []
    return arguments[:position], arguments[position], arguments[position + 1 :]


def _run_without_command(global_arguments: list[str]) -> int:
    if "--version" in global_arguments or "-V" in global_arguments:
        from falaj import __version__

        sys.stdout.write(f"falaj {__version__}\n")
        return 0
    unknown_flags = [
        flag
        for flag in global_arguments
        if flag.startswith("-") and flag not in GLOBAL_FLAGS and flag not in ("-h", "--help")
    ]
    if unknown_flags:
        sys.stderr.write(f"error: there is no flag {unknown_flags[0]}\nhint: falaj --help\n")
        return 2
    sys.stdout.write(build_top_help())
    return 0


def build_top_help() -> str:
    """What `falaj --help` says."""
    from falaj.services import SERVICES

    rows = [(name, desk.summary) for name, desk in SERVICES.items()]
    commands = [(name, summary) for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: falaj [--at ADDRESS] [--json] <desk> <verb> [arguments]",
            "       falaj <command> [arguments]",
            "",
            "desks (falaj <desk> --help lists its verbs, with examples):",
            *(f"  {name:<11} {summary}" for name, summary in rows),
            "",
            "commands:",
            *(f"  {name:<11} {summary}" for name, summary in commands),
            "",
            "flags, before or after the command:",
            "  --at ADDRESS   a folder, or the URL of a platform (default: the last login, else ~/.falaj)",
            "  --as NAME      which of your logins to use; a token comes from FALAJ_TOKEN",
            "  --ca FILE      the authority that signed the platform's certificate",
            "  --purpose P    what for; labels may demand it",
            "  --json         machine-readable output",
            "  --version      print the version",
            "",
            "begin with: falaj up",
            "",
        ]
    )


def _report_unknown_command(command: str) -> int:
    from difflib import get_close_matches

    from falaj.services import SERVICES

    close_matches = get_close_matches(command, [*SERVICES, *COMMANDS], 1)
    hint = f"did you mean: falaj {close_matches[0]}" if close_matches else "falaj --help lists what there is"
    sys.stderr.write(f"error: there is no desk or command {command[:40]!r}\nhint: {hint}\n")
    return 2

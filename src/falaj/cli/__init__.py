"""Door 2: the `falaj` command. Groups are desks, commands are verbs, flags are parameters; little is written by hand.

Only the standard library is loaded until something is known about what was asked, so that help comes at once.
"""

import gc
import os
import sys

COMMANDS = {
    "up": ("falaj.cli.up:up", "Start the platform on this machine"),
    "gateway": ("falaj.cli.gateway:gateway", "Pass requests on to endpoints; falaj up keeps one by itself"),
    "agent": ("falaj.cli.agent:agent", "Run a zone's data plane beside its data; it only dials out"),
    "demo": ("falaj.cli.up:demo", "Tell the whole story on a throw-away platform"),
    "login": ("falaj.cli.login:login", "Sign in to a platform and remember it"),
    "logout": ("falaj.cli.login:logout", "Forget a platform's token"),
    "status": ("falaj.cli.status:status", "Who you are, where, and whether it is well"),
    "env": ("falaj.cli.status:env", "Print what curl, MLflow and Triton clients need"),
    "settings": ("falaj.cli.status:settings", "Every setting, its value and where it came from"),
    "doctor": ("falaj.cli.doctor:doctor", "Check the set-up and say what to fix"),
    "reproduce": ("falaj.cli.short:reproduce", "Train a model version again, and say whether it is the same"),
    "optimize": ("falaj.cli.short:optimize", "Make a model smaller and faster within a bound, and publish it"),
    "deploy": ("falaj.cli.deploy:deploy", "Render a deployment for a place, and check one that runs"),
    "upgrade": ("falaj.cli.upgrade:upgrade", "Say whether this version may join those that run"),
    "restore": ("falaj.cli.restore:restore", "Bring a backup into an empty store, and prove it"),
    "renew-token": ("falaj.cli.renew_token:renew_token", "Replace the token in a file by its next one"),
    "tls": ("falaj.cli.status:tls", "The local authority: show it, issue certificates"),
    "completion": ("falaj.cli.completion:completion", "Print a completion script for bash, zsh or fish"),
}
GLOBALS = {"--at": "ADDRESS", "--as": "NAME", "--ca": "FILE", "--json": "", "--purpose": "PURPOSE"}


def main(argv: list[str] | None = None) -> int:
    """Run one command; gives the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    alone = argv is None  # the process is ours, and ends with the command
    gc.disable()  # what is loaded stays: searching it for garbage while it is loaded finds none
    try:
        code = _run(arguments, alone=alone)
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return 130
    except BrokenPipeError:
        # Whoever read our output has enough. Python would complain once more while closing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    if alone:
        _leave(code)
    return code


def _leave(code: int) -> None:
    """End here, where nothing is left to do: taking apart what a command has loaded takes a tenth of its time.

    What asked to be called at the end is called. Where somebody still works, or watches, the usual way is taken.
    """
    import atexit
    import threading

    if any(each is not threading.main_thread() and not each.daemon for each in threading.enumerate()):
        return
    if sys.gettrace() is not None or sys.getprofile() is not None or sys.flags.interactive:
        return
    atexit._run_exitfuncs()  # noqa: SLF001 - the interpreter itself ends with it
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(arguments: list[str], *, alone: bool) -> int:
    before, command, after = split(arguments)
    if command == "" or (command == "help" and not after):
        return _no_command(before)
    if command == "help":
        command, after = after[0], [*after[1:], "--help"]
    from falaj.desks import DESKS

    if command not in COMMANDS and command not in DESKS:
        return _unknown(command)
    if alone and command in DESKS:  # commands of our own may run for months
        from falaj.cli.light import start_light

        start_light()
    from falaj.cli.frame import run

    if command in COMMANDS:
        from importlib import import_module

        module, _, name = COMMANDS[command][0].partition(":")
        return run(getattr(import_module(module), name), command, before, after)
    from falaj.cli.verbs import desk

    return run(desk, command, before, after)


def split(arguments: list[str]) -> tuple[list[str], str, list[str]]:
    """Flags before the command, the command, and the rest."""
    position = 0
    while position < len(arguments) and arguments[position].startswith("-"):
        position += 2 if GLOBALS.get(arguments[position]) else 1
    if position >= len(arguments):
        return arguments, "", []
    return arguments[:position], arguments[position], arguments[position + 1 :]


def _no_command(before: list[str]) -> int:
    if "--version" in before or "-V" in before:
        from falaj import __version__

        sys.stdout.write(f"falaj {__version__}\n")
        return 0
    wrong = [flag for flag in before if flag.startswith("-") and flag not in GLOBALS and flag not in ("-h", "--help")]
    if wrong:
        sys.stderr.write(f"error: there is no flag {wrong[0]}\nhint: falaj --help\n")
        return 2
    sys.stdout.write(top_help())
    return 0


def top_help() -> str:
    """What `falaj --help` says."""
    from falaj.desks import DESKS

    rows = [(name, desk.summary) for name, desk in DESKS.items()]
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


def _unknown(command: str) -> int:
    from difflib import get_close_matches

    from falaj.desks import DESKS

    near = get_close_matches(command, [*DESKS, *COMMANDS], 1)
    hint = f"did you mean: falaj {near[0]}" if near else "falaj --help lists what there is"
    sys.stderr.write(f"error: there is no desk or command {command[:40]!r}\nhint: {hint}\n")
    return 2

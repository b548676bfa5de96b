"""The frame around every command: common flags, where to connect, and how an error reaches a person or a program."""

import errno
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from falaj.core.data import dataclass
from falaj.core.errors import FalajError, Invalid

RunCommand = Callable[["CliContext", list[str]], int]


@dataclass(frozen=True, slots=True)
class CliContext:
    """What the common flags said."""

    command: str
    at: str = ""
    name: str = ""
    ca: str = ""
    purpose: str = ""
    as_json: bool = False

    def later(self, flag_values: Mapping[str, Any]) -> "CliContext":
        """The same with what flags after the command said."""
        return CliContext(**{**{name: getattr(self, name) for name in (*COMMON_FLAGS, "command")}, **flag_values})

    def login(self) -> "tuple[str, str, str]":
        """Address, token and authority: by flag, then environment, then the last login; else the local folder."""
        from falaj.cli.login import find_login

        saved_login = find_login(self.at or os.environ.get("FALAJ_URL", ""), self.name)
        address = self.at or os.environ.get("FALAJ_URL", "") or saved_login.address
        if address.startswith(("http://", "https://")):
            return address, os.environ.get("FALAJ_TOKEN", "") or saved_login.fresh_token(), self.ca or saved_login.ca
        return address, os.environ.get("FALAJ_TOKEN", ""), ""

    def folder(self, reason: str, hint: str) -> str:
        """The folder of a house that a command itself stands on; Invalid for the address of another platform."""
        if self.at.startswith(("http://", "https://")):
            raise Invalid(reason, hint)
        return self.at

    def connect(self) -> Any:
        """The platform that this command speaks to."""
        address, token, ca = self.login()
        if address.startswith(("http://", "https://")):  # who asks another machine has no need of a house here
            from falaj.plugins import load_plugin

            return load_plugin("remote", "http")(address, token=token, ca=ca, purpose=self.purpose)
        from falaj.server import connect

        return connect(address, token=token, purpose=self.purpose)


_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_PATH_ERRORS = (errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.ELOOP)
COMMON_FLAGS = ("at", "name", "ca", "purpose", "as_json")
"""What the flags that every command takes are called here."""


def run_in_context(command: RunCommand, name: str, global_arguments: list[str], command_arguments: list[str]) -> int:
    """Run a command in its frame; errors become a message, a hint and their class's exit code."""
    as_json = "--json" in global_arguments or "--json" in command_arguments
    try:
        context = CliContext(name)
        if global_arguments:
            from falaj.cli.argument_parsing import CommandParser, parse_arguments

            context, _ = parse_arguments(context, CommandParser(prog="falaj", add_help=False), global_arguments)
        return command(context, command_arguments)
    except OSError as error:
        if error.filename is None:
            raise
        # A path that nobody looked at before: too long, not ours to read, on a disk that is full.
        message = f"{error.filename!r:.200}: {error.strerror}"
        reported_error = (Invalid if error.errno in _PATH_ERRORS else FalajError)(
            message, "check the path, and the disk that it is on"
        )
    except FalajError as error:
        reported_error = error
    print_error(reported_error, as_json=as_json)
    return reported_error.exit_code


def print_error(error: FalajError, *, as_json: bool) -> None:
    """An error on standard error, in red where there are colours."""
    if as_json:
        sys.stderr.write(json.dumps(error.wire()) + "\n")
        return
    has_colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    red, dim, plain = ("\033[31m", "\033[2m", "\033[0m") if has_colour else ("", "", "")
    sys.stderr.write(f"{red}error: {escape_terminal_text(error.message)}{plain}\n")
    if error.hint:
        sys.stderr.write(f"{dim}hint: {escape_terminal_text(error.hint)}{plain}\n")


def escape_terminal_text(text: str) -> str:
    """What others wrote, without what a terminal obeys: orders to it, and signs that turn the direction of a line."""
    return _CONTROL_CHARACTERS.sub(lambda match: ascii(match[0])[1:-1], text)

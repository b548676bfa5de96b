"""The frame around every command: common flags, where to connect, and how an error reaches a person or a program."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from falaj.core.data import dataclass
from falaj.core.errors import FalajError, Invalid

Run = Callable[["Frame", list[str]], int]


@dataclass(frozen=True, slots=True)
class Frame:
    """What the common flags said."""

    command: str
    at: str = ""
    name: str = ""
    ca: str = ""
    purpose: str = ""
    as_json: bool = False

    def login(self) -> "tuple[str, str, str]":
        """Address, token and authority: by flag, then environment, then the last login; else the local folder."""
        from falaj.cli.login import remembered

        known = remembered(self.at or os.environ.get("FALAJ_URL", ""), self.name)
        address = self.at or os.environ.get("FALAJ_URL", "") or known.address
        if address.startswith(("http://", "https://")):
            return address, os.environ.get("FALAJ_TOKEN", "") or known.fresh_token(), self.ca or known.ca
        return address, os.environ.get("FALAJ_TOKEN", ""), ""

    def connect(self) -> Any:
        """The platform that this command speaks to."""
        from falaj.platform import connect

        address, token, ca = self.login()
        if address.startswith(("http://", "https://")):
            return connect(address, token=token, ca=ca, purpose=self.purpose)
        return connect(address, token=token, purpose=self.purpose)


class Parser(argparse.ArgumentParser):
    """argparse with our errors and our exit code."""

    def __init__(self, *, formatter: "type[argparse.HelpFormatter]" = argparse.HelpFormatter, **said: Any) -> None:
        # Every flag that is added asks for the width; left to itself, argparse loads three compressors to find it.
        super().__init__(formatter_class=partial(formatter, width=columns() - 2), **said)

    def error(self, message: str) -> NoReturn:
        raise Invalid(message, f"{self.prog} --help")


def columns() -> int:
    """How many signs a line of the terminal has."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said):
        return int(said)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):
        return 80


COMMON = ("at", "name", "ca", "purpose", "as_json")


def common(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the flags that every command takes. They are kept apart, so that a verb may have an `at` of its own."""
    add = parser.add_argument_group("common flags").add_argument
    unset = argparse.SUPPRESS
    add("--at", dest="common_at", default=unset, metavar="ADDRESS", help="a folder, or the URL of a platform")
    add("--as", dest="common_name", default=unset, metavar="NAME", help="which of your logins to use")
    add("--ca", dest="common_ca", default=unset, metavar="FILE", help="the authority of the platform's certificate")
    add("--purpose", dest="common_purpose", default=unset, metavar="PURPOSE", help="what for; labels may demand it")
    add("--json", dest="common_as_json", action="store_true", default=unset, help="machine-readable output")
    return parser


def read(
    frame: Frame, parser: argparse.ArgumentParser, arguments: list[str], *, plain: bool = True
) -> tuple[Frame, argparse.Namespace]:
    """Parse a command's arguments; common flags among them join those that came before the command."""
    found = common(parser).parse_args(arguments) if plain else parser.parse_intermixed_args(arguments)
    late = {name: getattr(found, f"common_{name}") for name in COMMON if hasattr(found, f"common_{name}")}
    return Frame(**{**{name: getattr(frame, name) for name in (*COMMON, "command")}, **late}), found


def run(command: Run, name: str, before: list[str], after: list[str]) -> int:
    """Run a command in its frame; errors become a message, a hint and their class's exit code."""
    as_json = "--json" in before or "--json" in after
    try:
        frame = Frame(name)
        if before:
            frame, _ = read(frame, Parser(prog="falaj", add_help=False), before)
        return command(frame, after)
    except FalajError as error:
        say(error, as_json=as_json)
        return error.exit_code


def say(error: FalajError, *, as_json: bool) -> None:
    """An error on standard error, in red where there are colours."""
    if as_json:
        sys.stderr.write(json.dumps(error.wire()) + "\n")
        return
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    red, dim, plain = ("\033[31m", "\033[2m", "\033[0m") if colour else ("", "", "")
    sys.stderr.write(f"{red}error: {error.message}{plain}\n")
    if error.hint:
        sys.stderr.write(f"{dim}hint: {error.hint}{plain}\n")

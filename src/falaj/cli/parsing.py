"""What argparse reads: commands that are written by hand, help, and whatever is not typed plainly."""

import argparse
import os
import sys
from functools import partial
from typing import Any, NoReturn

from falaj.cli.frame import COMMON, Frame
from falaj.core.errors import Invalid


class Parser(argparse.ArgumentParser):
    """argparse with our errors and our exit code."""

    def __init__(self, *, formatter: "type[argparse.HelpFormatter]" = argparse.HelpFormatter, **said: Any) -> None:
        # Every flag that is added asks for the width; left to itself, argparse loads three compressors to find it.
        super().__init__(formatter_class=partial(formatter, width=columns() - 2), **said)

    def error(self, message: str) -> NoReturn:
        flag, _, rest = message.removeprefix("argument ").partition(": ")
        if rest == "expected one argument":
            raise Invalid(f"{flag} has no value", f"a value that begins with a dash is written {flag.split('/')[0]}=-…")
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
    return frame.later(late), found

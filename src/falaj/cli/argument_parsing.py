"""What argparse reads: commands that are written by hand, help, and whatever is not typed plainly."""

import argparse
import os
import sys
from functools import partial
from typing import Any, NoReturn

from falaj.cli.cli_context import COMMON_FLAGS, CliContext
from falaj.core.errors import Invalid


class CommandParser(argparse.ArgumentParser):
    """argparse with our errors and our exit code."""

    def __init__(
        self, *, formatter_class: "type[argparse.HelpFormatter]" = argparse.HelpFormatter, **parser_options: Any
    ) -> None:
        # Every flag that is added asks for the width; left to itself, argparse loads three compressors to find it.
        super().__init__(formatter_class=partial(formatter_class, width=get_terminal_width() - 2), **parser_options)

    def error(self, message: str) -> NoReturn:
        flag, _, problem = message.removeprefix("argument ").partition(": ")
        if problem == "expected one argument":
            raise Invalid(f"{flag} has no value", f"a value that begins with a dash is written {flag.split('/')[0]}=-…")
        raise Invalid(message, f"{self.prog} --help")


def get_terminal_width() -> int:
    """How many signs a line of the terminal has."""
    columns_text = os.environ.get("COLUMNS", "")
    if columns_text.isdecimal() and int(columns_text):
        return int(columns_text)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):
        return 80


def add_common_flags(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the flags that every command takes. They are kept apart, so that a verb may have an `at` of its own."""
    add_argument = parser.add_argument_group("common flags").add_argument
    no_default = argparse.SUPPRESS
    add_argument(
        "--at", dest="common_at", default=no_default, metavar="ADDRESS", help="a folder, or the URL of a platform"
    )
    add_argument("--as", dest="common_name", default=no_default, metavar="NAME", help="which of your logins to use")
    add_argument(
        "--ca", dest="common_ca", default=no_default, metavar="FILE", help="the authority of the platform's certificate"
    )
    add_argument(
        "--purpose", dest="common_purpose", default=no_default, metavar="PURPOSE", help="what for; labels may demand it"
    )
    add_argument(
        "--json", dest="common_as_json", action="store_true", default=no_default, help="machine-readable output"
    )
    return parser


def parse_arguments(
    context: CliContext, parser: argparse.ArgumentParser, arguments: list[str], *, is_plain: bool = True
) -> tuple[CliContext, argparse.Namespace]:
    """Parse a command's arguments; common flags among them join those that came before the command."""
    parsed_arguments = (
        add_common_flags(parser).parse_args(arguments) if is_plain else parser.parse_intermixed_args(arguments)
    )
    late_flags = {
        name: getattr(parsed_arguments, f"common_{name}")
        for name in COMMON_FLAGS
        if hasattr(parsed_arguments, f"common_{name}")
    }
    return context.later(late_flags), parsed_arguments

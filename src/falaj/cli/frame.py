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

    def later(self, said: Mapping[str, Any]) -> "Frame":
        """The same with what flags after the command said."""
        return Frame(**{**{name: getattr(self, name) for name in (*COMMON, "command")}, **said})

    def login(self) -> "tuple[str, str, str]":
        """Address, token and authority: by flag, then environment, then the last login; else the local folder."""
        from falaj.cli.login import remembered

        known = remembered(self.at or os.environ.get("FALAJ_URL", ""), self.name)
        address = self.at or os.environ.get("FALAJ_URL", "") or known.address
        if address.startswith(("http://", "https://")):
            return address, os.environ.get("FALAJ_TOKEN", "") or known.fresh_token(), self.ca or known.ca
        return address, os.environ.get("FALAJ_TOKEN", ""), ""

    def folder(self, why: str, hint: str) -> str:
        """The folder of a house that a command itself stands on; Invalid for the address of another platform."""
        if self.at.startswith(("http://", "https://")):
            raise Invalid(why, hint)
        return self.at

    def connect(self) -> Any:
        """The platform that this command speaks to."""
        address, token, ca = self.login()
        if address.startswith(("http://", "https://")):  # who asks another machine has no need of a house here
            from falaj.plugins import plugin

            return plugin("remote", "http")(address, token=token, ca=ca, purpose=self.purpose)
        from falaj.platform import connect

        return connect(address, token=token, purpose=self.purpose)


_ORDERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_PATHS = (errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.ELOOP)
COMMON = ("at", "name", "ca", "purpose", "as_json")
"""What the flags that every command takes are called here."""


def run(command: Run, name: str, before: list[str], after: list[str]) -> int:
    """Run a command in its frame; errors become a message, a hint and their class's exit code."""
    as_json = "--json" in before or "--json" in after
    try:
        frame = Frame(name)
        if before:
            from falaj.cli.parsing import Parser, read

            frame, _ = read(frame, Parser(prog="falaj", add_help=False), before)
        return command(frame, after)
    except OSError as error:
        if error.filename is None:
            raise
        # A path that nobody looked at before: too long, not ours to read, on a disk that is full.
        wrong = f"{error.filename!r:.200}: {error.strerror}"
        told = (Invalid if error.errno in _PATHS else FalajError)(wrong, "check the path, and the disk that it is on")
    except FalajError as error:
        told = error
    say(told, as_json=as_json)
    return told.exit_code


def say(error: FalajError, *, as_json: bool) -> None:
    """An error on standard error, in red where there are colours."""
    if as_json:
        sys.stderr.write(json.dumps(error.wire()) + "\n")
        return
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    red, dim, plain = ("\033[31m", "\033[2m", "\033[0m") if colour else ("", "", "")
    sys.stderr.write(f"{red}error: {harmless(error.message)}{plain}\n")
    if error.hint:
        sys.stderr.write(f"{dim}hint: {harmless(error.hint)}{plain}\n")


def harmless(text: str) -> str:
    """What others wrote, without what a terminal obeys: orders to it, and signs that turn the direction of a line."""
    return _ORDERS.sub(lambda found: ascii(found[0])[1:-1], text)

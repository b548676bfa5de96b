"""Signing in: the token of each platform, kept in a file that only its owner reads."""

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from falaj.cli.frame import Frame
from falaj.core.data import dataclass
from falaj.core.errors import Invalid, Unauthenticated


@dataclass(frozen=True, slots=True)
class Login:
    """One remembered platform."""

    address: str = ""
    name: str = ""
    token: str = ""
    ca: str = ""
    expires: float = 0.0
    refresh: str = ""
    provider: Mapping[str, str] = field(default_factory=dict)
    """How the platform describes its identity provider."""

    def fresh_token(self) -> str:
        """The token, renewed at the identity provider when it is about to end."""
        if not self.refresh or self.expires - time.time() > 60:
            return self.token
        from falaj.cli.browser import renewed

        made = renewed(self)
        remember(made)
        return made.token


def login(frame: Frame, arguments: list[str]) -> int:
    """`falaj login URL`: with the identity provider in a browser, with an enrolment code, or with a token."""
    from falaj.cli.parsing import Parser, read

    parser = Parser(prog="falaj login", description="Sign in to a platform and remember it.")
    parser.add_argument("address", metavar="URL", nargs="?", default="", help="for example https://falaj.bank.example")
    parser.add_argument("--list", action="store_true", help="show the remembered logins, the default first")
    parser.add_argument("--use", default="", metavar="NAME", help="make a remembered login the default")
    parser.add_argument("--token", action="store_true", help="ask for a token even where a browser could be used")
    parser.add_argument("--code", default="", help="redeem an enrolment code; - reads it from standard input")
    frame, found = read(frame, parser, arguments)
    if found.list or found.use:
        return _show_logins(frame, found.use)
    if not found.address.startswith(("http://", "https://")):
        raise Invalid("only a URL needs a login", "a folder on this machine is yours already: falaj --at FOLDER status")
    from falaj.api.client import RemotePlatform

    ca = str(Path(frame.ca).expanduser().resolve()) if frame.ca else ""
    with RemotePlatform(found.address, ca=ca) as there:
        how, address = there.get("/v1/login"), there.address
        issued = there.people.enroll(_read_code(found.code)) if found.code else None
    if issued is not None:
        login = Login(address, frame.name, issued.token, ca)
        remember(login)  # the code is spent: the token must not be lost to a failure below
    elif how.get("provider") and not found.token and not os.environ.get("FALAJ_TOKEN"):
        from falaj.cli.browser import signed_in

        login = signed_in(Login(address, frame.name, ca=ca, provider=how["provider"]))
    else:
        login = Login(address, frame.name, _ask_token(), ca)
    with RemotePlatform(address, token=login.token, ca=ca) as there:
        there.get("/status")  # raises Unauthenticated: an unknown token is not remembered
    remember(login)
    sys.stdout.write(f"signed in to {address}\n")
    if issued is not None and issued.confirmation:
        sys.stdout.write(
            f"Labelled data, and roles that approve, wait until a second person has confirmed you: tell a security\n"
            f"officer the fingerprint {issued.fingerprint}; they run: falaj approvals give {issued.confirmation}\n"
        )
    return 0


def _show_logins(frame: Frame, name: str) -> int:
    """List the remembered logins, after the one called `name` (or `address`) became the default."""
    logins = _load()
    if name:
        chosen = [login for login in logins if name in (login.name, login.address)]
        if not chosen:
            raise Invalid(f"--use: expected the name or address of a login, got {name!r:.80}", "falaj login --list")
        remember(chosen[0])
        logins = _load()
    rows = [{"default": not index, "name": login.name, "address": login.address} for index, login in enumerate(logins)]
    if frame.as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return 0
    for row in rows:
        sys.stdout.write(f"{'*' if row['default'] else ' '} {row['name'] or '-':<20} {row['address']}\n")
    if not rows:
        sys.stdout.write("there is no login yet: falaj login URL\n")
    return 0


def logout(frame: Frame, arguments: list[str]) -> int:
    """`falaj logout [URL]`."""
    from falaj.cli.parsing import Parser, read

    parser = Parser(prog="falaj logout", description="Forget a platform's token.")
    parser.add_argument("address", metavar="URL", nargs="?", default="", help="the last one when absent")
    frame, found = read(frame, parser, arguments)
    known = remembered(found.address or frame.at, frame.name)
    if not known.token:
        raise Unauthenticated("there is no such login", "falaj status shows where you are")
    rest = [login for login in _load() if (login.address, login.name) != (known.address, known.name)]
    _save(rest)
    sys.stdout.write(f"signed out of {known.address}\n")
    return 0


def remembered(address: str = "", name: str = "") -> Login:
    """The newest login for that address (or any), or an empty one."""
    wanted = address.rstrip("/")
    for known in _load():
        if (not wanted or known.address == wanted) and (not name or known.name == name):
            return known
    if name:
        raise Invalid(f"you have no login named {name!r}", "falaj login URL --as NAME makes one")
    return Login(address)


def remember(made: Login) -> None:
    """Keep a login, as the newest."""
    _save([made, *(known for known in _load() if (known.address, known.name) != (made.address, made.name))])


def credentials() -> Path:
    """The file, in the user's configuration folder."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "falaj" / "credentials.json"


def _load() -> list[Login]:
    path = credentials()
    try:
        if path.stat().st_mode & 0o077:
            raise Invalid(f"{path} can be read by others", f"chmod 600 {path}")
        held: Any = json.loads(path.read_text(encoding="utf-8"))
        return [Login(**one) for one in held["logins"]]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise Invalid(f"{path} cannot be read", "remove it and sign in again") from error


def _save(logins: list[Login]) -> None:
    path = credentials()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump({"logins": [asdict(one) for one in logins]}, file, indent=1)
    beside.replace(path)


def _read_code(given: str) -> str:
    return sys.stdin.readline().strip() if given == "-" else given


def _ask_token() -> str:
    given = os.environ.get("FALAJ_TOKEN", "")
    if not given and sys.stdin.isatty():
        from getpass import getpass

        given = getpass("token: ")
    elif not given:
        given = sys.stdin.readline()
    if not given.strip():
        raise Invalid("no token was given", "set FALAJ_TOKEN, or write the token on standard input")
    return given.strip()

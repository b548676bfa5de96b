"""Signing in: the token of each platform, kept in a file that only its owner reads."""

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from falaj.cli.cli_context import CliContext
from falaj.core.data import dataclass
from falaj.core.errors import Invalid, Unauthenticated


@dataclass(frozen=True, slots=True)
class SavedLogin:
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
        from falaj.cli.browser_login import renew_login

        renewed_login = renew_login(self)
        save_login(renewed_login)
        return renewed_login.token


def run_login_command(context: CliContext, arguments: list[str]) -> int:
    """`falaj login URL`: with the identity provider in a browser, with an enrolment code, or with a token."""
    from falaj.cli.argument_parsing import CommandParser, parse_arguments

    parser = CommandParser(prog="falaj login", description="Sign in to a platform and remember it.")
    parser.add_argument("address", metavar="URL", nargs="?", default="", help="for example https://falaj.bank.example")
    parser.add_argument("--list", action="store_true", help="show the remembered logins, the default first")
    parser.add_argument("--use", default="", metavar="NAME", help="make a remembered login the default")
    parser.add_argument("--token", action="store_true", help="ask for a token even where a browser could be used")
    parser.add_argument("--code", default="", help="redeem an enrolment code; - reads it from standard input")
    context, parsed_arguments = parse_arguments(context, parser, arguments)
    if parsed_arguments.list or parsed_arguments.use:
        return _show_logins(context, parsed_arguments.use)
    if not parsed_arguments.address.startswith(("http://", "https://")):
        raise Invalid("only a URL needs a login", "a folder on this machine is yours already: falaj --at FOLDER status")
    from falaj.api.remote_client import RemoteClient

    ca = str(Path(context.ca).expanduser().resolve()) if context.ca else ""
    with RemoteClient(parsed_arguments.address, ca=ca) as client:
        login_info, address = client.get("/v1/login"), client.address
        issued = client.people.enroll(_read_code(parsed_arguments.code)) if parsed_arguments.code else None
    if issued is not None:
        saved_login = SavedLogin(address, context.name, issued.token, ca)
        save_login(saved_login)  # the code is spent: the token must not be lost to a failure below
    elif login_info.get("provider") and not parsed_arguments.token and not os.environ.get("FALAJ_TOKEN"):
        from falaj.cli.browser_login import sign_in_by_browser

        saved_login = sign_in_by_browser(SavedLogin(address, context.name, ca=ca, provider=login_info["provider"]))
    else:
        saved_login = SavedLogin(address, context.name, _read_token(), ca)
    with RemoteClient(address, token=saved_login.token, ca=ca) as client:
        client.get("/status")  # raises Unauthenticated: an unknown token is not remembered
    save_login(saved_login)
    sys.stdout.write(f"signed in to {address}\n")
    if issued is not None and issued.confirmation:
        sys.stdout.write(
            f"Labelled data, and roles that approve, wait until a second person has confirmed you: tell a security\n"
            f"officer the fingerprint {issued.fingerprint}; they run: falaj approvals give {issued.confirmation}\n"
        )
    return 0


def _show_logins(context: CliContext, name: str) -> int:
    """List the remembered logins, after the one called `name` (or `address`) became the default."""
    logins = _load_logins()
    if name:
        matching_logins = [login for login in logins if name in (login.name, login.address)]
        if not matching_logins:
            raise Invalid(f"--use: expected the name or address of a login, got {name!r:.80}", "falaj login --list")
        save_login(matching_logins[0])
        logins = _load_logins()
    rows = [{"default": not index, "name": login.name, "address": login.address} for index, login in enumerate(logins)]
    if context.as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return 0
    for row in rows:
        sys.stdout.write(f"{'*' if row['default'] else ' '} {row['name'] or '-':<20} {row['address']}\n")
    if not rows:
        sys.stdout.write("there is no login yet: falaj login URL\n")
    return 0


def run_logout_command(context: CliContext, arguments: list[str]) -> int:
    """`falaj logout [URL]`."""
    from falaj.cli.argument_parsing import CommandParser, parse_arguments

    parser = CommandParser(prog="falaj logout", description="Forget a platform's token.")
    parser.add_argument("address", metavar="URL", nargs="?", default="", help="the last one when absent")
    context, parsed_arguments = parse_arguments(context, parser, arguments)
    saved_login = find_login(parsed_arguments.address or context.at, context.name)
    if not saved_login.token:
        raise Unauthenticated("there is no such login", "falaj status shows where you are")
    other_logins = [
        login for login in _load_logins() if (login.address, login.name) != (saved_login.address, saved_login.name)
    ]
    _save_logins(other_logins)
    sys.stdout.write(f"signed out of {saved_login.address}\n")
    return 0


def find_login(address: str = "", name: str = "") -> SavedLogin:
    """The newest login for that address (or any), or an empty one."""
    wanted_address = address.rstrip("/")
    for saved_login in _load_logins():
        if (not wanted_address or saved_login.address == wanted_address) and (not name or saved_login.name == name):
            return saved_login
    if name:
        raise Invalid(f"you have no login named {name!r}", "falaj login URL --as NAME makes one")
    return SavedLogin(address)


def save_login(new_login: SavedLogin) -> None:
    """Keep a login, as the newest."""
    _save_logins(
        [
            new_login,
            *(
                saved_login
                for saved_login in _load_logins()
                if (saved_login.address, saved_login.name) != (new_login.address, new_login.name)
            ),
        ]
    )


def get_credentials_path() -> Path:
    """The file, in the user's configuration folder."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "falaj" / "credentials.json"


def _load_logins() -> list[SavedLogin]:
    path = get_credentials_path()
    try:
        if path.stat().st_mode & 0o077:
            raise Invalid(f"{path} can be read by others", f"chmod 600 {path}")
        stored: Any = json.loads(path.read_text(encoding="utf-8"))
        return [SavedLogin(**login_fields) for login_fields in stored["logins"]]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise Invalid(f"{path} cannot be read", "remove it and sign in again") from error


def _save_logins(logins: list[SavedLogin]) -> None:
    path = get_credentials_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft_path = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(os.open(draft_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump({"logins": [asdict(login) for login in logins]}, file, indent=1)
    draft_path.replace(path)


def _read_code(code_argument: str) -> str:
    return sys.stdin.readline().strip() if code_argument == "-" else code_argument


def _read_token() -> str:
    token = os.environ.get("FALAJ_TOKEN", "")
    if not token and sys.stdin.isatty():
        from getpass import getpass

        token = getpass("token: ")
    elif not token:
        token = sys.stdin.readline()
    if not token.strip():
        raise Invalid("no token was given", "set FALAJ_TOKEN, or write the token on standard input")
    return token.strip()

"""Redis users that can read the online features of one tenant and nothing else; replicas sign in as them.

The platform's own account creates them (`ACL SETUSER`) on every server that takes writes. Redis forgets users at
a restart unless it has an `aclfile`, and a server that becomes primary does not know them: the platform creates them
again every minute.
"""

import contextlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from falaj.backends.redis_servers import RedisServers
from falaj.core.errors import Denied
from falaj.core.online_rows import READER_PASSWORD_VARIABLE

_READER_COMMANDS = (
    "+mget", "+get", "+ping", "+select", "+command", "+asking", "+readonly", "+cluster|slots", "+cluster|shards",
    "+cluster|nodes",
)  # fmt: skip
_ACCOUNT_HINT = (
    "let the platform's Redis account run ACL SETUSER and ACL GETUSER, or write {tenant} into the address and give "
    "each tenant a user of its own; see docs/features.md"
)


def admit_reader(servers: RedisServers, prefix: str, password_digest: str) -> str:
    """Create the reader of a prefix, or add a password to it; give its name. Denied where it would be no wall.

    `password_digest` is the SHA-256 of the password, so that this process does not need the password itself. Without
    a digest no client can sign in as the reader: the call only checks that the reader can be created.
    """
    user, passwords = f"{prefix}reader", [f"#{password_digest}"] if password_digest else []
    # Up to the bucket: a prefix may be the beginning of another tenant's.
    rules = ("on", "resetkeys", f"~{prefix}{{*", "resetchannels", "-@all", *_READER_COMMANDS, *passwords)
    try:
        accounts = servers.everywhere("ACL GETUSER", "default")
        if any(_is_open(account) for account in accounts):
            raise Denied(
                "Redis: its default user needs no password, so every process that reaches it reads all tenants",
                "give the default user a password (requirepass), or switch it off",
            )
        servers.everywhere("ACL SETUSER", user, *rules)
    except (NoPermissionError, AuthenticationError, ResponseError):
        raise Denied("Redis: the platform's account may not create a user for each tenant", _ACCOUNT_HINT) from None
    with contextlib.suppress(RedisError):  # a server without an aclfile
        servers.everywhere("ACL SAVE")
    return user


def dismiss_reader(servers: RedisServers, prefix: str, password_digest: str) -> None:
    """Remove a password of the reader of a prefix, where there is one."""
    with contextlib.suppress(ResponseError):  # a reader, or a password, that is not there
        servers.everywhere("ACL SETUSER", f"{prefix}reader", f"!{password_digest}")


def make_reader_address(url: str, user: str) -> str:
    """The address that a replica opens: the tenant's prefix, the reader's name, and where its password will be."""
    parts = urlsplit(url)
    servers = parts.netloc.rpartition("@")[2]
    options = dict(parse_qsl(parts.query)) | {"password": f"env:{READER_PASSWORD_VARIABLE}"}
    query = urlencode(options, safe=":/")
    return urlunsplit(parts._replace(netloc=f"{quote(user, safe='')}@{servers}", query=query))


def _is_open(account: Any) -> bool:
    """Whether a user signs in without a password; replies differ by version of client and protocol."""
    if account is None:
        return False
    pairs = account.items() if isinstance(account, Mapping) else zip(account[::2], account[1::2], strict=False)
    flags = next((value for name, value in pairs if name in ("flags", b"flags")), ())
    flag_names = {flag.decode() if isinstance(flag, bytes) else str(flag) for flag in flags}
    return "on" in flag_names and "nopass" in flag_names

"""LocalIdentity: tokens that this installation made itself, `fj_<id>_<secret>`. No password exists anywhere."""

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from falaj.core.context import Actor
from falaj.core.errors import Unauthenticated

_TOKEN_PATTERN = re.compile(r"fj_([0-9a-z]{16})_([A-Za-z0-9_-]{43})")


class LocalIdentityProvider:
    """Reads a token and asks the people desk, by id and hash, whose it is; the secret itself goes no further."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        del url
        self._find_actor: Callable[[str, str, float], Actor | None] = options["find"]

    def whois(self, token: str, now: float) -> Actor | None:
        """The actor, or None when the token is not one of ours."""
        if not token.startswith("fj_"):
            return None
        match = _TOKEN_PATTERN.fullmatch(token)
        digest = hashlib.sha256(match[2].encode()).hexdigest() if match else ""
        actor = self._find_actor(match[1], digest, now) if match else None
        if actor is None:
            raise Unauthenticated(
                "the token is unknown, has ended or was revoked", "ask your administrator for a new one"
            )
        return actor

    def close(self) -> None:
        """Nothing is held."""

"""Who may call a server that stands by itself: bearers of tokens whose SHA-256 it was told."""

import hashlib
from collections.abc import Iterable

from falaj.core.errors import Unauthenticated

_MAX_CACHED_TOKENS = 4096


class TokenKeys:
    """`check` raises Unauthenticated unless the value of an Authorization header names a token that may call."""

    __slots__ = ("_accepted", "_hashes", "_is_open_to_all")

    def __init__(self, hashes: Iterable[str] = (), *, open_to_all: bool = False) -> None:
        self._hashes = frozenset(token_hash.lower() for token_hash in hashes)
        self._is_open_to_all = open_to_all
        self._accepted: set[bytes] = set()
        """Values that were right before; never those that were wrong, so strangers cannot fill it."""

    def check(self, authorization: bytes | None) -> None:
        if self._is_open_to_all or authorization in self._accepted:
            return
        if not authorization:
            raise Unauthenticated("no token came with the request", "send Authorization: Bearer TOKEN")
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer" or hashlib.sha256(token.strip()).hexdigest() not in self._hashes:
            raise Unauthenticated("this token may not call here", "ask whoever runs the server for one")
        if len(self._accepted) < _MAX_CACHED_TOKENS:
            self._accepted.add(authorization)

    def allow(self, authorization: bytes | None) -> bool:
        """Whether `check` accepts it."""
        try:
            self.check(authorization)
        except Unauthenticated:
            return False
        return True

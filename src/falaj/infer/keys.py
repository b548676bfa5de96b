"""Who may call a server that stands by itself: bearers of tokens whose SHA-256 it was told."""

import hashlib
from collections.abc import Iterable

from falaj.core.errors import Unauthenticated

_MOST_KNOWN = 4096


class Keys:
    """`check` raises Unauthenticated unless the value of an Authorization header names a token that may call."""

    __slots__ = ("_hashes", "_known", "_open")

    def __init__(self, hashes: Iterable[str] = (), *, open_to_all: bool = False) -> None:
        self._hashes = frozenset(one.lower() for one in hashes)
        self._open = open_to_all
        self._known: set[bytes] = set()
        """Values that were right before; never those that were wrong, so strangers cannot fill it."""

    def check(self, authorization: bytes | None) -> None:
        if self._open or authorization in self._known:
            return
        if not authorization:
            raise Unauthenticated("no token came with the request", "send Authorization: Bearer TOKEN")
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer" or hashlib.sha256(token.strip()).hexdigest() not in self._hashes:
            raise Unauthenticated("this token may not call here", "ask whoever runs the server for one")
        if len(self._known) < _MOST_KNOWN:
            self._known.add(authorization)

    def allow(self, authorization: bytes | None) -> bool:
        """Whether `check` accepts it."""
        try:
            self.check(authorization)
        except Unauthenticated:
            return False
        return True

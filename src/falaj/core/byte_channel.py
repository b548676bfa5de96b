"""Transfer: bulk bytes beside the verbs. A verb gives a ticket; bytes move under it; a verb takes the receipts.

A ticket names its holder and opens nothing for anybody else. A receipt says that the house holds bytes which its bearer
sent for one thing, so that a later verb may build on them: nobody can claim bytes by knowing their digest.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from falaj.core.data import dataclass


@dataclass(frozen=True, slots=True)
class UploadReceipt:
    """Proof that `size` bytes of `digest` lie in the ticket's zone, sent for the ticket's thing."""

    digest: str
    size: int
    mac: str


class ByteChannel(Protocol):
    """The byte channel of a platform, the same in process and over HTTP."""

    def put(self, ticket: str, chunks: Iterable[bytes]) -> UploadReceipt:
        """Send bytes, at best up to 16 MiB at once; durable on return. Bytes that are there already cost nothing."""
        ...

    def bundle(self, ticket: str, receipts: tuple[UploadReceipt, ...]) -> UploadReceipt:
        """Tie what was sent (at most 4096 pieces) into one thing that is kept, or goes, as a whole."""
        ...

    def get(self, ticket: str, digest: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Bytes, or a range of them, of what the ticket opens; every piece authenticated."""
        ...

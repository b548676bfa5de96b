"""The byte channel's words, which both sides know: its paths, its header, and what is asked for."""

from falaj.core.data import dataclass
from falaj.core.transfer import Receipt

PUT, BUNDLE, GET = "/v1/bytes/put", "/v1/bytes/bundle", "/v1/bytes/get"
TICKET_HEADER = b"falaj-ticket"
PIECE_BYTES = 64 << 20
"""The longest piece; senders cut at 16 MiB."""
BLOCK = 1 << 20
"""Bytes worth a system call."""


@dataclass(frozen=True, slots=True)
class Tied:
    """What is to be kept together."""

    ticket: str
    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which bytes a caller wants."""

    ticket: str
    digest: str
    start: int = 0
    stop: int | None = None

"""The byte channel's words, which both sides know: its paths, its header, and what is asked for."""

from falaj.core.byte_channel import UploadReceipt
from falaj.core.data import dataclass

PUT_PATH, BUNDLE_PATH, GET_PATH = "/v1/bytes/put", "/v1/bytes/bundle", "/v1/bytes/get"
TICKET_HEADER = b"falaj-ticket"
MAX_PIECE_BYTES = 64 << 20
"""The longest piece; senders cut at 16 MiB."""
BLOCK_BYTES = 1 << 20
"""Bytes worth a system call."""


@dataclass(frozen=True, slots=True)
class BundleRequest:
    """What is to be kept together."""

    ticket: str
    receipts: tuple[UploadReceipt, ...]


@dataclass(frozen=True, slots=True)
class PieceRequest:
    """Which bytes a caller wants."""

    ticket: str
    digest: str
    start: int = 0
    stop: int | None = None

"""Collects the pieces of a body that arrives. A peer may send single bytes, and an object costs 33 bytes more."""

_SMALL_BYTES = 256
"""Pieces of fewer bytes are joined to the one before."""
_JOINED_BYTES = 4096
"""What pieces are joined to; each of them copies no more than this."""


def append_piece(pieces: list[bytes], piece: bytes) -> None:
    """Append a piece, so that the list takes little more memory than the pieces have bytes."""
    if len(piece) < _SMALL_BYTES and pieces and len(pieces[-1]) < _JOINED_BYTES:
        pieces[-1] += piece
    else:
        pieces.append(piece)

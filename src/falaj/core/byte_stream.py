"""Stream: large bytes on their way through a verb. On the wire it is the body itself, never part of the JSON."""

from collections.abc import Iterable, Iterator


class ByteStream:
    """Chunks of bytes, readable once, with the size where it is known."""

    def __init__(self, chunks: Iterable[bytes], size: int | None = None) -> None:
        self._chunks = iter(chunks)
        self.size = size

    def __iter__(self) -> Iterator[bytes]:
        return self._chunks

    def read(self) -> bytes:
        """All that is left, in memory; for small things."""
        return b"".join(self._chunks)

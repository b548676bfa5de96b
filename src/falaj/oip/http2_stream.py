"""One call on an HTTP/2 connection, and how its bytes become messages."""

import struct
from collections import deque
from collections.abc import Callable, Iterator

from falaj.core.errors import Invalid, QuotaExceeded
from falaj.oip.byte_budget import ByteReservation
from falaj.oip.hpack_cache import CallHead
from falaj.oip.pieces import append_piece

_unpack_prefix = struct.Struct(">BI").unpack
CancelCall = Callable[[], None]


class Http2Stream:
    """One call."""

    __slots__ = (
        "began", "calls", "cancels", "deadline", "early", "gone", "half", "head", "held", "id", "messages", "only",
        "opened", "out", "principal", "reservation", "room", "sizes", "touched", "trailers", "unacked", "waiting",
    )  # fmt: skip

    def __init__(self, id_: int, call_head: CallHead, send_window: int, deadline: float, now: float) -> None:
        self.id, self.head, self.deadline, self.touched, self.began = id_, call_head, deadline, now, now
        self.room = send_window
        """What the client lets us send."""
        self.half = self.gone = self.opened = False
        """The client has sent all; nobody waits for it any more; its headers are answered."""
        self.messages: MessageReader | None = None
        self.only: tuple[bool, bytes] | None = None
        """The message of a call that has one (and whether it is compressed), until all of the call is here."""
        self.held = self.unacked = self.calls = self.waiting = 0
        """Bytes of messages that are not whole; bytes we have not said to go on after; messages so far; those that
        have not got their last answer."""
        self.reservation: ByteReservation | None = None
        """What is counted for its messages, where those of the connection that are not whole are not small."""
        self.early: list[bytes] | None = None
        """Pieces that came before the door decided about the caller; `half` says whether the last is among them."""
        self.sizes: dict[int, int] | None = None
        """Bytes counted for each of its messages that has not got its last answer, where some are counted."""
        self.principal: str | None = None
        """Whose messages they are, once the door was asked; empty for those that need no token."""
        self.cancels: dict[int, CancelCall] = {}
        self.out: deque[memoryview] = deque()
        self.trailers = b""
        """The last frame, sent when `out` is."""

    def cancel(self) -> None:
        """Nobody waits for it any more: its work ends, its bytes go."""
        self.gone = True
        cancels, self.cancels = self.cancels, {}
        self.messages = self.only = self.early = None
        self.out.clear()
        for cancel in cancels.values():
            cancel()


class MessageReader:
    """Pieces of a stream, put together to messages. `held` is what has come of the one that is not whole."""

    __slots__ = ("_chunks", "_coding", "_compressed_flag", "_max_bytes", "_message_bytes", "_prefix", "held")

    def __init__(self, coding: bytes, max_bytes: int) -> None:
        self._coding, self._max_bytes = coding, max_bytes
        self._chunks: list[bytes] = []
        self._prefix = b""
        self._compressed_flag, self._message_bytes, self.held = 0, -1, 0

    @property
    def within(self) -> bool:
        """Whether a message has begun that is not whole."""
        return self._message_bytes >= 0 or bool(self._prefix)

    def feed(self, piece: bytes) -> Iterator[tuple[bool, bytes]]:
        """The messages that are whole now, and whether they are compressed. Raises for one that cannot be."""
        offset = 0
        while True:
            if self._message_bytes < 0:
                prefix_bytes = len(self._prefix)
                self._prefix += piece[offset : offset + 5 - prefix_bytes]
                offset += len(self._prefix) - prefix_bytes
                if len(self._prefix) < 5:
                    return
                self._start_message()
            part = piece[offset : offset + self._message_bytes - self.held]
            offset += len(part)
            append_piece(self._chunks, part)
            self.held += len(part)
            if self.held < self._message_bytes:
                return
            yield self._complete_message()

    def _start_message(self) -> None:
        self._compressed_flag, self._message_bytes = _unpack_prefix(self._prefix)
        self._prefix = b""
        if self._message_bytes > self._max_bytes:
            raise QuotaExceeded(f"a message of {self._message_bytes} bytes", f"{self._max_bytes} at most")
        if self._compressed_flag > 1 or (self._compressed_flag and self._coding == b"identity"):
            raise Invalid("the message is compressed, and not said how", "send grpc-encoding: gzip, or no flag")

    def _complete_message(self) -> tuple[bool, bytes]:
        message = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        flag, self._compressed_flag, self._message_bytes, self.held, self._chunks = self._compressed_flag, 0, -1, 0, []
        return bool(flag), message

"""One call on an HTTP/2 connection, and how its bytes become messages."""

import struct
from collections import deque
from collections.abc import Callable, Iterator

from falaj.core.errors import Invalid, QuotaExceeded
from falaj.oip.budget import Reservation
from falaj.oip.hpack_cache import Head
from falaj.oip.pieces import append_piece

_PREFIX = struct.Struct(">BI").unpack
Cancel = Callable[[], None]


class Stream:
    """One call."""

    __slots__ = (
        "began", "calls", "cancels", "deadline", "early", "gone", "half", "head", "held", "id", "messages", "only",
        "opened", "out", "principal", "reservation", "room", "sizes", "touched", "trailers", "unacked", "waiting",
    )  # fmt: skip

    def __init__(self, id_: int, head: Head, room: int, deadline: float, now: float) -> None:
        self.id, self.head, self.deadline, self.touched, self.began = id_, head, deadline, now, now
        self.room = room
        """What the client lets us send."""
        self.half = self.gone = self.opened = False
        """The client has sent all; nobody waits for it any more; its headers are answered."""
        self.messages: Messages | None = None
        self.only: tuple[bool, bytes] | None = None
        """The message of a call that has one (and whether it is compressed), until all of the call is here."""
        self.held = self.unacked = self.calls = self.waiting = 0
        """Bytes of messages that are not whole; bytes we have not said to go on after; messages so far; those that
        have not got their last answer."""
        self.reservation: Reservation | None = None
        """What is counted for its messages, where those of the connection that are not whole are not small."""
        self.early: list[bytes] | None = None
        """Pieces that came before the door decided about the caller; `half` says whether the last is among them."""
        self.sizes: dict[int, int] | None = None
        """Bytes counted for each of its messages that has not got its last answer, where some are counted."""
        self.principal: str | None = None
        """Whose messages they are, once the door was asked; empty for those that need no token."""
        self.cancels: dict[int, Cancel] = {}
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


class Messages:
    """Pieces of a stream, put together to messages. `held` is what has come of the one that is not whole."""

    __slots__ = ("_chunks", "_coding", "_flag", "_most", "_need", "_prefix", "held")

    def __init__(self, coding: bytes, most: int) -> None:
        self._coding, self._most = coding, most
        self._chunks: list[bytes] = []
        self._prefix = b""
        self._flag, self._need, self.held = 0, -1, 0

    @property
    def within(self) -> bool:
        """Whether a message has begun that is not whole."""
        return self._need >= 0 or bool(self._prefix)

    def feed(self, piece: bytes) -> Iterator[tuple[bool, bytes]]:
        """The messages that are whole now, and whether they are compressed. Raises for one that cannot be."""
        at = 0
        while True:
            if self._need < 0:
                begun = len(self._prefix)
                self._prefix += piece[at : at + 5 - begun]
                at += len(self._prefix) - begun
                if len(self._prefix) < 5:
                    return
                self._begin()
            part = piece[at : at + self._need - self.held]
            at += len(part)
            append_piece(self._chunks, part)
            self.held += len(part)
            if self.held < self._need:
                return
            yield self._whole()

    def _begin(self) -> None:
        self._flag, self._need = _PREFIX(self._prefix)
        self._prefix = b""
        if self._need > self._most:
            raise QuotaExceeded(f"a message of {self._need} bytes", f"{self._most} at most")
        if self._flag > 1 or (self._flag and self._coding == b"identity"):
            raise Invalid("the message is compressed, and not said how", "send grpc-encoding: gzip, or no flag")

    def _whole(self) -> tuple[bool, bytes]:
        message = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        flag, self._flag, self._need, self.held, self._chunks = self._flag, 0, -1, 0, []
        return bool(flag), message

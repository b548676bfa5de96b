"""HTTP/2 as bytes: the kinds of frames, how ours are written, and what one connection may take."""

import struct
import time
from dataclasses import dataclass

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 2, 3
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 5, 6, 7, 8, 9, 11
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME, MAX_HEADERS = range(1, 7)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LARGEST_WINDOW, LARGEST_FRAME = (1 << 31) - 1, (1 << 24) - 1
PLAIN_WINDOW, PLAIN_FRAME, PLAIN_TABLE = (1 << 16) - 1, 1 << 14, 4096
"""What holds until the other side says otherwise."""

_HEAD = struct.Struct(">HBBBI")
read_head = _HEAD.unpack_from
"""Two parts of the length (the upper 16 bits, the lower 8), kind, flags, stream."""
_BEFORE_MESSAGE = struct.Struct(">HBBBIBI")
_PAIR = struct.Struct(">HI")
word = struct.Struct(">I").pack


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame, whole."""
    size = len(payload)
    return _HEAD.pack(size >> 8, size & 255, kind, flags, stream) + payload


def before_message(stream: int, size: int) -> bytes:
    """The head of a DATA frame that holds one whole gRPC message of this size, and the message's own prefix."""
    whole = size + 5
    return _BEFORE_MESSAGE.pack(whole >> 8, whole & 255, DATA, 0, stream, 0, size)


def settings(pairs: "dict[int, int]") -> bytes:
    """Our SETTINGS."""
    return frame(SETTINGS, 0, 0, b"".join(_PAIR.pack(*pair) for pair in pairs.items()))


def read_settings(payload: bytes) -> tuple[dict[int, int], int]:
    """What the other side sets, and the code of the error in it (0: none)."""
    found = dict(_PAIR.iter_unpack(payload))
    if found.get(ENABLE_PUSH, 0) > 1 or not PLAIN_FRAME <= found.get(MAX_FRAME, PLAIN_FRAME) <= LARGEST_FRAME:
        return found, PROTOCOL_ERROR
    return found, FLOW_CONTROL_ERROR if found.get(INITIAL_WINDOW, 0) > LARGEST_WINDOW else NO_ERROR


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may take."""

    body_bytes: int = 64 << 20
    """Of one message, also after it is decompressed."""
    held_bytes: int = 128 << 20
    """Of all messages of a connection that have not come whole."""
    head_bytes: int = 16 << 10
    streams: int = 512
    frame_bytes: int = 1 << 16
    window_bytes: int = 1 << 20
    """What may be sent on a stream before we say to go on."""
    connection_bytes: int = 8 << 20
    connections: int = 4096
    peer_connections: int = 2048
    """Connections of one address; of IPv6, of one /64 network."""
    anonymous_bytes: int = 1 << 14
    """Of a message that needs no token, also after it is decompressed."""
    head_s: float = 10.0
    """For the preface to come, for a header block to be whole, and for a frame."""
    idle_s: float = 30.0
    """Without a byte in the middle of a message."""
    whole_s: float = 600.0
    """For the request of a call that has one to arrive."""
    keep_s: float = 1800.0
    """Without any call."""
    unauthenticated_keep_s: float = 60.0
    """The same on a connection whose last caller was not authenticated."""
    noise: int = 1000
    noise_per_s: float = 100.0
    """Frames that cost us and bring no call (resets, pings, settings, empty ones): at once, and for how long."""


class Patience:
    """How many frames that bring nothing a client may still send. Every call that is answered adds one."""

    __slots__ = ("_at", "_most", "_per_s", "left")

    def __init__(self, most: int, per_s: float) -> None:
        self._most, self._per_s = most, per_s
        self.left, self._at = float(most), time.monotonic()

    def lost(self) -> bool:
        """Counts one more; True when that was too many."""
        self.left = min(self.left, self._most) - 1.0
        if self.left >= 0:
            return False
        now = time.monotonic()
        self.left = min(self._most, self.left + (now - self._at) * self._per_s)
        self._at = now
        return self.left < 0

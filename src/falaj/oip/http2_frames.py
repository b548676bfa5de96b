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
MAX_WINDOW, MAX_FRAME_BYTES = (1 << 31) - 1, (1 << 24) - 1
DEFAULT_WINDOW, DEFAULT_FRAME_BYTES, DEFAULT_TABLE_BYTES = (1 << 16) - 1, 1 << 14, 4096
"""What holds until the other side says otherwise."""

_FRAME_HEAD = struct.Struct(">HBBBI")
read_head = _FRAME_HEAD.unpack_from
"""Two parts of the length (the upper 16 bits, the lower 8), kind, flags, stream."""
_MESSAGE_FRAME_HEAD = struct.Struct(">HBBBIBI")
_SETTING = struct.Struct(">HI")
pack_uint32 = struct.Struct(">I").pack


def encode_frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame, whole."""
    size = len(payload)
    return _FRAME_HEAD.pack(size >> 8, size & 255, kind, flags, stream) + payload


def encode_message_head(stream: int, size: int) -> bytes:
    """The head of a DATA frame that holds one whole gRPC message of this size, and the message's own prefix."""
    frame_bytes = size + 5
    return _MESSAGE_FRAME_HEAD.pack(frame_bytes >> 8, frame_bytes & 255, DATA, 0, stream, 0, size)


def encode_settings(values: "dict[int, int]") -> bytes:
    """Our SETTINGS."""
    return encode_frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*setting) for setting in values.items()))


def decode_settings(payload: bytes) -> tuple[dict[int, int], int]:
    """What the other side sets, and the code of the error in it (0: none)."""
    values = dict(_SETTING.iter_unpack(payload))
    if (
        values.get(ENABLE_PUSH, 0) > 1
        or not DEFAULT_FRAME_BYTES <= values.get(MAX_FRAME, DEFAULT_FRAME_BYTES) <= MAX_FRAME_BYTES
    ):
        return values, PROTOCOL_ERROR
    return values, FLOW_CONTROL_ERROR if values.get(INITIAL_WINDOW, 0) > MAX_WINDOW else NO_ERROR


@dataclass(frozen=True, slots=True)
class Http2Limits:
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


class NoiseLimiter:
    """How many frames that bring nothing a client may still send. Every call that is answered adds one."""

    __slots__ = ("_max_burst", "_per_s", "_updated_at", "left")

    def __init__(self, max_burst: int, per_s: float) -> None:
        self._max_burst, self._per_s = max_burst, per_s
        self.left, self._updated_at = float(max_burst), time.monotonic()

    def lost(self) -> bool:
        """Counts one more; True when that was too many."""
        self.left = min(self.left, self._max_burst) - 1.0
        if self.left >= 0:
            return False
        now = time.monotonic()
        self.left = min(self._max_burst, self.left + (now - self._updated_at) * self._per_s)
        self._updated_at = now
        return self.left < 0

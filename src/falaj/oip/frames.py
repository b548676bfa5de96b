"""Frames of the hop: a length, a kind, a stream, and what belongs to it. Many of them go out in one write.

Lengths are looked at before anything is kept, and whatever is not a frame we know ends the connection.
"""

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Any

from falaj.core.errors import Corrupt, Invalid
from falaj.oip.calls import NO_HEADERS, Call, GrpcCall, GrpcReply, Reply
from falaj.oip.pieces import append_piece

HELLO, CHALLENGE, PROOF, WELCOME, ASK_REST, ASK_GRPC, REPLY_REST, REPLY_GRPC, CANCEL, DRAIN, PING, PONG, CONTROL = (
    range(1, 14)
)
ASK_LOT, REPLY_LOT = 14, 15
"""Several of one kind at once, between those who both know them; see lot_frames."""
VERSION = 1
NONCE_BYTES = 32
SHY_BYTES = 1024
"""What a frame may hold of somebody who has not proved anything yet."""
MOST_BYTES = 80 << 20
MOST_OPEN = 16_384
"""Requests of one connection that are not answered; more is a flood."""
TEXT_BYTES = 4096
REPLICA_ITEMS = 1024
"""Items of a word of a replica; what it counted is one text."""
_ITEM_SIGNS = (b",", b"[", b"{")
_JOIN_BYTES = 256 << 10
_HEAD = Struct("<IBI")
head = _HEAD.pack
"""How a frame begins: the length of what follows, the kind, the stream."""
_ASK_REST, _ASK_GRPC = Struct("<IBIBHH"), Struct("<IBIIBH")
_REPLY_REST, _REPLY_GRPC = Struct("<IBIHIBH"), Struct("<IBIBBHH")
# The same without the head of the frame, as they are read.
_IN_ASK_REST, _IN_ASK_GRPC, _IN_REPLY_REST, _IN_REPLY_GRPC = (
    Struct("<BHH"), Struct("<IBH"), Struct("<HIBH"), Struct("<BBHH"),
)  # fmt: skip
_KNOWN = 512
_NAME = b"falaj-request\0"
"""The first header of a request that has a name. It is another one each time, so it is not remembered."""
_NAMED = len(_NAME)
_read: dict[bytes, dict[bytes, bytes]] = {}


class Packed(dict[bytes, bytes]):
    """Headers that many requests share: they are packed once."""

    __slots__ = ("block",)

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        super().__init__(headers)
        self.block = pack_headers(self)


class Frames(asyncio.Protocol):
    """One connection of the hop, either side: cuts what comes into frames, gathers what goes."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._allowed, self.most_bytes = SHY_BYTES, most_bytes
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kept: list[bytes] = []
        self._kept_bytes, self._need = 0, _HEAD.size
        self._out: list[bytes] = []
        self._due = False
        self.heard_at = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is there; nothing is known of them."""
        self._transport, self._loop = transport, asyncio.get_running_loop()  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more comes or goes."""
        del exc
        self._transport = None
        self._out, self._kept = [], []

    def frame(self, kind: int, stream: int, data: bytes) -> None:
        """One frame came. Corrupt or Invalid ends the connection."""
        raise NotImplementedError

    def proven(self) -> None:
        """The other side is who it should be: its frames may be large."""
        self._allowed = self.most_bytes

    def end(self) -> None:
        """Close at once; what is not answered yet is lost."""
        if self._transport is not None:
            self._transport.abort()

    def put(self, kind: int, stream: int = 0, data: bytes = b"") -> None:
        """Send one frame with whatever else this turn of the loop sends."""
        self.send((_HEAD.pack(len(data), kind, stream), data))

    def send(self, parts: Iterable[bytes]) -> None:
        """The pieces of frames that are packed already."""
        if self._due or self.soon():
            self._out += parts

    def soon(self) -> bool:
        """See to it that what this turn of the loop gathers goes out at its end; False where nobody is there."""
        if self._loop is None or self._transport is None:
            return False
        if not self._due:
            self._due = True
            self._loop.call_soon(self._flush)
        return True

    def _flush(self) -> None:
        self._due = False
        out, self._out = self._out, []
        if self._transport is None or not out:
            return
        if len(out) > 1 and sum(map(len, out)) > _JOIN_BYTES:
            self._transport.writelines(out)
        else:
            self._transport.write(b"".join(out))

    def data_received(self, data: bytes) -> None:
        """Cut frames; a piece of one is kept until the rest is here, and joined once."""
        self.heard_at = time.monotonic()
        if self._kept:
            append_piece(self._kept, data)
            self._kept_bytes += len(data)
            if self._kept_bytes < self._need:
                return
            data, self._kept = b"".join(self._kept), []
        at, size, head, length = 0, len(data), _HEAD.size, 0
        read, frame = _HEAD.unpack_from, self.frame
        try:
            while size - at >= head:
                length, kind, stream = read(data, at)
                if length > self._allowed:
                    raise Invalid(f"a frame of {length} bytes", f"{self._allowed} at most")
                begin = at + head
                if size - begin < length:
                    break
                at = begin + length
                frame(kind, stream, data[begin:at])
                if self._transport is None:
                    return
        except (Corrupt, Invalid):
            self.end()
            return
        if at < size:
            self._need = head if size - at < head else head + length
            self._kept, self._kept_bytes = [data[at:]], size - at


def ask_rest(call: Call, stream: int, most_bytes: int = MOST_BYTES) -> tuple[bytes, ...]:
    """An HTTP request as a frame."""
    method, path, body = call.method, call.path, call.body
    block = _block(call.name, call.headers) if call.headers or not call.name else _NAME + call.name
    a, b, c = len(method), len(path), len(block)
    length = 5 + a + b + c + len(body)
    if b > 0xFFFF or a > 0xFF or c > 0xFFFF or length > most_bytes:
        raise Invalid("the request is too long to be passed on", f"{most_bytes} bytes at most")
    return _ASK_REST.pack(length, ASK_REST, stream, a, b, c), method, path, block, body


class Stub:
    """What frames of HTTP requests that have one head share: all but the stream, the name and the body."""

    __slots__ = ("begin", "end", "shared", "size")

    def __init__(self, method: bytes, path: bytes, headers: Mapping[bytes, bytes], name_bytes: int) -> None:
        """Of requests whose names have so many bytes. A frame is its head, `begin`, the name, `end` and the body."""
        block = pack_headers(headers)
        self.end = b"\0" + block if headers else b""
        a, b, c = len(method), len(path), _NAMED + name_bytes + len(self.end)
        if b > 0xFFFF or a > 0xFF or c > 0xFFFF:
            raise Invalid("the request is too long to be passed on", "send shorter headers")
        self.begin = _IN_ASK_REST.pack(a, b, c) + method + path + _NAME
        self.size = 5 + a + b + c
        self.shared = _IN_ASK_REST.pack(a, b, len(block)) + method + path + block
        """What several of them have in common, in a frame of several."""


def read_ask_rest(data: bytes) -> Call:
    """And back. Whoever sent it has proved who they are."""
    if len(data) < 5:
        raise Corrupt(*_CUT)
    method, path, block = _IN_ASK_REST.unpack_from(data)
    a = 5 + method
    b = a + path
    c = b + block
    if c > len(data):
        raise Corrupt("a request is shorter than it says", "this is a fault of the sender")
    name, headers = _read_name(data[b:c]) if block else (b"", NO_HEADERS)
    return Call(data[5:a], data[a:b], headers, data[c:], trusted=True, name=name)


def reply_rest(reply: Reply, stream: int, most_bytes: int = MOST_BYTES) -> tuple[bytes, ...]:
    """An HTTP answer as a frame."""
    kind, parts = reply.kind, reply.parts
    block = pack_headers(dict(reply.headers)) if reply.headers else b""
    a, b = len(kind), len(block)
    length = 9 + a + b + (len(parts[0]) if len(parts) == 1 else sum(map(len, parts)))
    if length > most_bytes:
        raise _too_long(length, most_bytes)
    return _REPLY_REST.pack(length, REPLY_REST, stream, reply.status, reply.json_bytes, a, b), kind, block, *parts


def read_reply_rest(data: bytes) -> Reply:
    """And back."""
    if len(data) < 9:
        raise Corrupt(*_CUT)
    status, json_bytes, kind, block = _IN_REPLY_REST.unpack_from(data)
    a = 9 + kind
    b = a + block
    if b > len(data):
        raise Corrupt("an answer is shorter than it says", "this is a fault of the sender")
    headers = tuple(read_headers(data[a:b]).items()) if block else ()
    return Reply(status, (data[b:],), data[9:a], json_bytes, headers)


def ask_grpc(call: GrpcCall, stream: int, most_bytes: int = MOST_BYTES) -> tuple[bytes, ...]:
    """A message of a gRPC call as a frame; clocks differ, so the time that is left travels."""
    block = _block(call.name, call.metadata)
    method = call.method.encode()
    if len(method) > 0xFF or len(block) > 0xFFFF:
        raise Invalid("the method's name is too long", "see the protocol for the names")
    left_ms = 0
    if call.deadline:
        left_ms = min(0xFFFFFFFF, max(1, int((call.deadline - time.monotonic()) * 1000) + 1))
    length = 7 + len(method) + len(block) + len(call.message)
    if length > most_bytes:
        raise _too_long(length, most_bytes)
    return _ASK_GRPC.pack(length, ASK_GRPC, stream, left_ms, len(method), len(block)), method, block, call.message


def read_ask_grpc(data: bytes) -> GrpcCall:
    """And back."""
    if len(data) < 7:
        raise Corrupt(*_CUT)
    left_ms, method, block = _IN_ASK_GRPC.unpack_from(data)
    a = 7 + method
    b = a + block
    if b > len(data):
        raise Corrupt("a call is shorter than it says", "this is a fault of the sender")
    deadline = time.monotonic() + left_ms / 1000 if left_ms else 0.0
    name, headers = _read_name(data[a:b]) if block else (b"", NO_HEADERS)
    return GrpcCall(_text(data[7:a]), data[b:], headers, deadline, trusted=True, name=name)


def reply_grpc(reply: GrpcReply, stream: int, most_bytes: int = MOST_BYTES) -> tuple[bytes, ...]:
    """An answer to a gRPC call as a frame."""
    text = reply.text.encode()[:TEXT_BYTES] if reply.text else b""
    block = pack_headers(dict(reply.metadata)) if reply.metadata else b""
    length = 6 + len(text) + len(block) + len(reply.message)
    if length > most_bytes:
        raise _too_long(length, most_bytes)
    head = _REPLY_GRPC.pack(length, REPLY_GRPC, stream, reply.code, reply.last, len(text), len(block))
    return head, text, block, reply.message


def read_reply_grpc(data: bytes) -> GrpcReply:
    """And back."""
    if len(data) < 6:
        raise Corrupt(*_CUT)
    code, last, text, block = _IN_REPLY_GRPC.unpack_from(data)
    a = 6 + text
    b = a + block
    if b > len(data):
        raise Corrupt("an answer is shorter than it says", "this is a fault of the sender")
    headers = tuple(read_headers(data[a:b]).items()) if block else ()
    said = data[6:a].decode(errors="replace") if text else ""
    return GrpcReply(data[b:], code=code, text=said, last=bool(last), metadata=headers)


def pack_headers(headers: Mapping[bytes, bytes]) -> bytes:
    """Names and values between NULs."""
    found = b"\0".join(part for pair in headers.items() for part in pair)
    if headers and (found.count(0) != 2 * len(headers) - 1 or len(found) > 0xFFFF):
        raise Invalid("headers are too long, or hold a NUL", "send fewer")
    return found


def read_headers(block: bytes) -> Mapping[bytes, bytes]:
    """And back; what comes back is shared and not to be changed."""
    found = _read.get(block)
    if found is None:
        parts = block.split(b"\0")
        if len(parts) % 2:
            raise Corrupt("a header has no value", "this is a fault of the sender")
        found = dict(zip(parts[::2], parts[1::2], strict=True))
        if len(_read) >= _KNOWN:
            _read.clear()
        _read[block] = found
    return found


def _block(name: bytes, headers: Mapping[bytes, bytes]) -> bytes:
    if not headers:
        return _NAME + name if name else b""
    packed = headers.block if headers.__class__ is Packed else pack_headers(headers)
    return _NAME + name + b"\0" + packed if name else packed


def _read_name(block: bytes) -> tuple[bytes, Mapping[bytes, bytes]]:
    """The name of a request, where it has one, and its headers."""
    if block[:_NAMED] != _NAME:
        return b"", read_headers(block)
    name = block[_NAMED:]
    if 0 not in name:
        return name, NO_HEADERS
    name, _, rest = name.partition(b"\0")
    return name, read_headers(rest)


def proof(key: bytes, side: bytes, *nonces: bytes) -> bytes:
    """That one knows the key, for this connection and this direction only."""
    return hmac.digest(key, b"falaj hop 1 " + side + b"".join(nonces), hashlib.sha256)


def plain(data: bytes, most_items: int = 0) -> dict[str, Any]:
    """A word that is an object in JSON. `most_items`: of whom is not trusted, so that reading it takes little more
    memory and time than its bytes; 0 is no bound."""
    if most_items and sum(map(data.count, _ITEM_SIGNS)) > most_items:
        raise Corrupt(f"a word of more than {most_items} items", "this is a fault of the sender")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Corrupt("a word that is not JSON", "this is a fault of the sender") from error
    if not isinstance(found, dict):
        raise Corrupt("a word that is no object", "this is a fault of the sender")
    return found


def same(shown: bytes, wanted: bytes) -> bool:
    """Compared without telling how much of it is right."""
    return hmac.compare_digest(shown, wanted)


def _too_long(length: int, most_bytes: int) -> Invalid:
    """The other side would end the connection, and with it everybody else's requests."""
    return Invalid(f"{length} bytes are too many for one message", f"{most_bytes} at most")


_CUT = "a frame ends in its head", "this is a fault of the sender"


def _text(data: bytes) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError as error:
        raise Corrupt("a name is no text", "this is a fault of the sender") from error

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

from falaj.core.errors import CorruptData, Invalid
from falaj.oip.handler_calls import NO_HEADERS, GrpcCall, GrpcReply, HttpCall, HttpReply
from falaj.oip.pieces import append_piece

(
    HELLO,
    CHALLENGE,
    PROOF,
    WELCOME,
    HTTP_REQUEST,
    GRPC_REQUEST,
    HTTP_REPLY,
    GRPC_REPLY,
    CANCEL,
    DRAIN,
    PING,
    PONG,
    CONTROL,
) = range(1, 14)
HTTP_REQUEST_GROUP, HTTP_REPLY_GROUP = 14, 15
"""Several of one kind at once, between those who both know them; see lot_frames."""
PROTOCOL_VERSION = 1
NONCE_BYTES = 32
MAX_UNPROVEN_BYTES = 1024
"""What a frame may hold of somebody who has not proved anything yet."""
MAX_FRAME_BYTES = 80 << 20
MAX_OPEN_STREAMS = 16_384
"""Requests of one connection that are not answered; more is a flood."""
MAX_TEXT_BYTES = 4096
REPLICA_ITEMS = 1024
"""Items of a word of a replica; what it counted is one text."""
_ITEM_SIGNS = (b",", b"[", b"{")
_MAX_JOINED_BYTES = 256 << 10
_FRAME_HEAD = Struct("<IBI")
pack_frame_head = _FRAME_HEAD.pack
"""How a frame begins: the length of what follows, the kind, the stream."""
_HTTP_REQUEST_HEAD, _GRPC_REQUEST_HEAD = Struct("<IBIBHH"), Struct("<IBIIBH")
_HTTP_REPLY_HEAD, _GRPC_REPLY_HEAD = Struct("<IBIHIBH"), Struct("<IBIBBHH")
# The same without the head of the frame, as they are read.
_HTTP_REQUEST_FIELDS, _GRPC_REQUEST_FIELDS, _HTTP_REPLY_FIELDS, _GRPC_REPLY_FIELDS = (
    Struct("<BHH"), Struct("<IBH"), Struct("<HIBH"), Struct("<BBHH"),
)  # fmt: skip
_MAX_CACHED_BLOCKS = 512
_REQUEST_NAME_HEADER = b"falaj-request\0"
"""The first header of a request that has a name. It is another one each time, so it is not remembered."""
_REQUEST_NAME_LENGTH = len(_REQUEST_NAME_HEADER)
_header_cache: dict[bytes, dict[bytes, bytes]] = {}


class PackedHeaders(dict[bytes, bytes]):
    """Headers that many requests share: they are packed once."""

    __slots__ = ("block",)

    def __init__(self, headers: Mapping[bytes, bytes]) -> None:
        super().__init__(headers)
        self.block = pack_headers(self)


class FrameProtocol(asyncio.Protocol):
    """One connection of the hop, either side: cuts what comes into frames, gathers what goes."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._allowed_bytes, self.most_bytes = MAX_UNPROVEN_BYTES, max_frame_bytes
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending_chunks: list[bytes] = []
        self._pending_bytes, self._needed_bytes = 0, _FRAME_HEAD.size
        self._outgoing: list[bytes] = []
        self._is_flush_scheduled = False
        self.heard_at = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is there; nothing is known of them."""
        self._transport, self._loop = transport, asyncio.get_running_loop()  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more comes or goes."""
        del exc
        self._transport = None
        self._outgoing, self._pending_chunks = [], []

    def frame(self, kind: int, stream: int, data: bytes) -> None:
        """One frame came. Corrupt or Invalid ends the connection."""
        raise NotImplementedError

    def proven(self) -> None:
        """The other side is who it should be: its frames may be large."""
        self._allowed_bytes = self.most_bytes

    def end(self) -> None:
        """Close at once; what is not answered yet is lost."""
        if self._transport is not None:
            self._transport.abort()

    def put(self, kind: int, stream: int = 0, data: bytes = b"") -> None:
        """Send one frame with whatever else this turn of the loop sends."""
        self.send((_FRAME_HEAD.pack(len(data), kind, stream), data))

    def send(self, parts: Iterable[bytes]) -> None:
        """The pieces of frames that are packed already."""
        if self._is_flush_scheduled or self.soon():
            self._outgoing += parts

    def soon(self) -> bool:
        """See to it that what this turn of the loop gathers goes out at its end; False where nobody is there."""
        if self._loop is None or self._transport is None:
            return False
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush_outgoing)
        return True

    def _flush_outgoing(self) -> None:
        self._is_flush_scheduled = False
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is None or not outgoing:
            return
        if len(outgoing) > 1 and sum(map(len, outgoing)) > _MAX_JOINED_BYTES:
            self._transport.writelines(outgoing)
        else:
            self._transport.write(b"".join(outgoing))

    def data_received(self, data: bytes) -> None:
        """Cut frames; a piece of one is kept until the rest is here, and joined once."""
        self.heard_at = time.monotonic()
        if self._pending_chunks:
            append_piece(self._pending_chunks, data)
            self._pending_bytes += len(data)
            if self._pending_bytes < self._needed_bytes:
                return
            data, self._pending_chunks = b"".join(self._pending_chunks), []
        offset, size, head_bytes, length = 0, len(data), _FRAME_HEAD.size, 0
        read_head, handle_frame = _FRAME_HEAD.unpack_from, self.frame
        try:
            while size - offset >= head_bytes:
                length, kind, stream = read_head(data, offset)
                if length > self._allowed_bytes:
                    raise Invalid(f"a frame of {length} bytes", f"{self._allowed_bytes} at most")
                payload_start = offset + head_bytes
                if size - payload_start < length:
                    break
                offset = payload_start + length
                handle_frame(kind, stream, data[payload_start:offset])
                if self._transport is None:
                    return
        except (CorruptData, Invalid):
            self.end()
            return
        if offset < size:
            self._needed_bytes = head_bytes if size - offset < head_bytes else head_bytes + length
            self._pending_chunks, self._pending_bytes = [data[offset:]], size - offset


def encode_http_request(call: HttpCall, stream: int, max_frame_bytes: int = MAX_FRAME_BYTES) -> tuple[bytes, ...]:
    """An HTTP request as a frame."""
    method, path, body = call.method, call.path, call.body
    header_block = (
        _pack_named_headers(call.name, call.headers)
        if call.headers or not call.name
        else _REQUEST_NAME_HEADER + call.name
    )
    method_length, path_length, block_length = len(method), len(path), len(header_block)
    length = 5 + method_length + path_length + block_length + len(body)
    if path_length > 0xFFFF or method_length > 0xFF or block_length > 0xFFFF or length > max_frame_bytes:
        raise Invalid("the request is too long to be passed on", f"{max_frame_bytes} bytes at most")
    return (
        _HTTP_REQUEST_HEAD.pack(length, HTTP_REQUEST, stream, method_length, path_length, block_length),
        method,
        path,
        header_block,
        body,
    )


class RequestTemplate:
    """What frames of HTTP requests that have one head share: all but the stream, the name and the body."""

    __slots__ = ("begin", "end", "shared", "size")

    def __init__(self, method: bytes, path: bytes, headers: Mapping[bytes, bytes], name_length: int) -> None:
        """Of requests whose names have so many bytes. A frame is its head, `begin`, the name, `end` and the body."""
        header_block = pack_headers(headers)
        self.end = b"\0" + header_block if headers else b""
        method_length, path_length, block_length = (
            len(method),
            len(path),
            _REQUEST_NAME_LENGTH + name_length + len(self.end),
        )
        if path_length > 0xFFFF or method_length > 0xFF or block_length > 0xFFFF:
            raise Invalid("the request is too long to be passed on", "send shorter headers")
        self.begin = (
            _HTTP_REQUEST_FIELDS.pack(method_length, path_length, block_length) + method + path + _REQUEST_NAME_HEADER
        )
        self.size = 5 + method_length + path_length + block_length
        self.shared = (
            _HTTP_REQUEST_FIELDS.pack(method_length, path_length, len(header_block)) + method + path + header_block
        )
        """What several of them have in common, in a frame of several."""


def decode_http_request(data: bytes) -> HttpCall:
    """And back. Whoever sent it has proved who they are."""
    if len(data) < 5:
        raise CorruptData(*_TRUNCATED_FRAME)
    method_length, path_length, block_length = _HTTP_REQUEST_FIELDS.unpack_from(data)
    method_end = 5 + method_length
    path_end = method_end + path_length
    block_end = path_end + block_length
    if block_end > len(data):
        raise CorruptData("a request is shorter than it says", "this is a fault of the sender")
    name, headers = _split_request_name(data[path_end:block_end]) if block_length else (b"", NO_HEADERS)
    return HttpCall(data[5:method_end], data[method_end:path_end], headers, data[block_end:], trusted=True, name=name)


def encode_http_reply(reply: HttpReply, stream: int, max_frame_bytes: int = MAX_FRAME_BYTES) -> tuple[bytes, ...]:
    """An HTTP answer as a frame."""
    content_type, parts = reply.kind, reply.parts
    header_block = pack_headers(dict(reply.headers)) if reply.headers else b""
    type_length, block_length = len(content_type), len(header_block)
    length = 9 + type_length + block_length + (len(parts[0]) if len(parts) == 1 else sum(map(len, parts)))
    if length > max_frame_bytes:
        raise _too_long_error(length, max_frame_bytes)
    return (
        _HTTP_REPLY_HEAD.pack(length, HTTP_REPLY, stream, reply.status, reply.json_bytes, type_length, block_length),
        content_type,
        header_block,
        *parts,
    )


def decode_http_reply(data: bytes) -> HttpReply:
    """And back."""
    if len(data) < 9:
        raise CorruptData(*_TRUNCATED_FRAME)
    status, json_bytes, type_length, block_length = _HTTP_REPLY_FIELDS.unpack_from(data)
    type_end = 9 + type_length
    block_end = type_end + block_length
    if block_end > len(data):
        raise CorruptData("an answer is shorter than it says", "this is a fault of the sender")
    headers = tuple(read_headers(data[type_end:block_end]).items()) if block_length else ()
    return HttpReply(status, (data[block_end:],), data[9:type_end], json_bytes, headers)


def encode_grpc_request(call: GrpcCall, stream: int, max_frame_bytes: int = MAX_FRAME_BYTES) -> tuple[bytes, ...]:
    """A message of a gRPC call as a frame; clocks differ, so the time that is left travels."""
    header_block = _pack_named_headers(call.name, call.metadata)
    method = call.method.encode()
    if len(method) > 0xFF or len(header_block) > 0xFFFF:
        raise Invalid("the method's name is too long", "see the protocol for the names")
    remaining_ms = 0
    if call.deadline:
        remaining_ms = min(0xFFFFFFFF, max(1, int((call.deadline - time.monotonic()) * 1000) + 1))
    length = 7 + len(method) + len(header_block) + len(call.message)
    if length > max_frame_bytes:
        raise _too_long_error(length, max_frame_bytes)
    return (
        _GRPC_REQUEST_HEAD.pack(length, GRPC_REQUEST, stream, remaining_ms, len(method), len(header_block)),
        method,
        header_block,
        call.message,
    )


def decode_grpc_request(data: bytes) -> GrpcCall:
    """And back."""
    if len(data) < 7:
        raise CorruptData(*_TRUNCATED_FRAME)
    remaining_ms, method_length, block_length = _GRPC_REQUEST_FIELDS.unpack_from(data)
    method_end = 7 + method_length
    block_end = method_end + block_length
    if block_end > len(data):
        raise CorruptData("a call is shorter than it says", "this is a fault of the sender")
    deadline = time.monotonic() + remaining_ms / 1000 if remaining_ms else 0.0
    name, headers = _split_request_name(data[method_end:block_end]) if block_length else (b"", NO_HEADERS)
    return GrpcCall(_decode_ascii(data[7:method_end]), data[block_end:], headers, deadline, trusted=True, name=name)


def encode_grpc_reply(reply: GrpcReply, stream: int, max_frame_bytes: int = MAX_FRAME_BYTES) -> tuple[bytes, ...]:
    """An answer to a gRPC call as a frame."""
    text = reply.text.encode()[:MAX_TEXT_BYTES] if reply.text else b""
    header_block = pack_headers(dict(reply.metadata)) if reply.metadata else b""
    length = 6 + len(text) + len(header_block) + len(reply.message)
    if length > max_frame_bytes:
        raise _too_long_error(length, max_frame_bytes)
    frame_head = _GRPC_REPLY_HEAD.pack(length, GRPC_REPLY, stream, reply.code, reply.last, len(text), len(header_block))
    return frame_head, text, header_block, reply.message


def decode_grpc_reply(data: bytes) -> GrpcReply:
    """And back."""
    if len(data) < 6:
        raise CorruptData(*_TRUNCATED_FRAME)
    code, is_last, text_length, block_length = _GRPC_REPLY_FIELDS.unpack_from(data)
    text_end = 6 + text_length
    block_end = text_end + block_length
    if block_end > len(data):
        raise CorruptData("an answer is shorter than it says", "this is a fault of the sender")
    headers = tuple(read_headers(data[text_end:block_end]).items()) if block_length else ()
    status_text = data[6:text_end].decode(errors="replace") if text_length else ""
    return GrpcReply(data[block_end:], code=code, text=status_text, last=bool(is_last), metadata=headers)


def pack_headers(headers: Mapping[bytes, bytes]) -> bytes:
    """Names and values between NULs."""
    block = b"\0".join(part for header in headers.items() for part in header)
    if headers and (block.count(0) != 2 * len(headers) - 1 or len(block) > 0xFFFF):
        raise Invalid("headers are too long, or hold a NUL", "send fewer")
    return block


def read_headers(block: bytes) -> Mapping[bytes, bytes]:
    """And back; what comes back is shared and not to be changed."""
    headers = _header_cache.get(block)
    if headers is None:
        parts = block.split(b"\0")
        if len(parts) % 2:
            raise CorruptData("a header has no value", "this is a fault of the sender")
        headers = dict(zip(parts[::2], parts[1::2], strict=True))
        if len(_header_cache) >= _MAX_CACHED_BLOCKS:
            _header_cache.clear()
        _header_cache[block] = headers
    return headers


def _pack_named_headers(name: bytes, headers: Mapping[bytes, bytes]) -> bytes:
    if not headers:
        return _REQUEST_NAME_HEADER + name if name else b""
    packed = headers.block if headers.__class__ is PackedHeaders else pack_headers(headers)
    return _REQUEST_NAME_HEADER + name + b"\0" + packed if name else packed


def _split_request_name(block: bytes) -> tuple[bytes, Mapping[bytes, bytes]]:
    """The name of a request, where it has one, and its headers."""
    if block[:_REQUEST_NAME_LENGTH] != _REQUEST_NAME_HEADER:
        return b"", read_headers(block)
    name = block[_REQUEST_NAME_LENGTH:]
    if 0 not in name:
        return name, NO_HEADERS
    name, _, header_block = name.partition(b"\0")
    return name, read_headers(header_block)


def compute_proof(key: bytes, side: bytes, *nonces: bytes) -> bytes:
    """That one knows the key, for this connection and this direction only."""
    return hmac.digest(key, b"falaj hop 1 " + side + b"".join(nonces), hashlib.sha256)


def decode_json_object(data: bytes, most_items: int = 0) -> dict[str, Any]:
    """A word that is an object in JSON. `most_items`: of whom is not trusted, so that reading it takes little more
    memory and time than its bytes; 0 is no bound."""
    if most_items and sum(map(data.count, _ITEM_SIGNS)) > most_items:
        raise CorruptData(f"a word of more than {most_items} items", "this is a fault of the sender")
    try:
        decoded = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptData("a word that is not JSON", "this is a fault of the sender") from error
    if not isinstance(decoded, dict):
        raise CorruptData("a word that is no object", "this is a fault of the sender")
    return decoded


def is_same_digest(received: bytes, expected: bytes) -> bool:
    """Compared without telling how much of it is right."""
    return hmac.compare_digest(received, expected)


def _too_long_error(length: int, max_frame_bytes: int) -> Invalid:
    """The other side would end the connection, and with it everybody else's requests."""
    return Invalid(f"{length} bytes are too many for one message", f"{max_frame_bytes} at most")


_TRUNCATED_FRAME = "a frame ends in its head", "this is a fault of the sender"


def _decode_ascii(data: bytes) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError as error:
        raise CorruptData("a name is no text", "this is a fault of the sender") from error

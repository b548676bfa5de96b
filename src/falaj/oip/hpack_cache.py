"""The headers of gRPC calls. A client sends the same block of bytes with nearly every call: as long as HPACK's table
stands still, a block that was read before means the same again, and is looked up.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from urllib.parse import quote

from hpack import Decoder, HPACKError
from hpack.hpack import encode_integer
from hpack.table import HeaderTable

from falaj.core.errors import CorruptData, Invalid
from falaj.oip.grpc_health import HEALTH_PREFIX
from falaj.oip.grpc_messages import SERVICE_NAME
from falaj.oip.handler_calls import GRPC_STATUS_CODES, UNIMPLEMENTED

STREAM_INFER_METHOD = "ModelStreamInfer"
_MAX_CACHED_HEADS, _MAX_CACHED_BLOCK_BYTES = 256, 4096
_NAME_PATTERN = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE_PATTERN = re.compile(rb"[^\x00\r\n]*")
_AUTHORITY_PATTERN = re.compile(rb"[A-Za-z0-9._~:%\[\]-]{1,255}")
_PATH_PATTERN = re.compile(rb"/([A-Za-z0-9_.]{1,200})/([A-Za-z0-9_]{1,100})")
_TIMEOUT_PATTERN = re.compile(rb"([0-9]{1,8})([HMSmun])")
_TIMEOUT_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_FORBIDDEN_HEADERS = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_PSEUDO_HEADERS = frozenset((b":method", b":scheme", b":path", b":authority"))
_SINGLE_HEADERS = frozenset((b"authorization", b"content-type", b"grpc-encoding", b"grpc-timeout", b"host", b"te"))
ACCEPTED_CODINGS = (b"identity", b"gzip", b"deflate")
_MAX_TEXT_CHARS = 1000
_SAFE_CHARS = "".join(chr(code_point) for code_point in range(0x20, 0x7F) if code_point != 0x25)
_METHOD_PREFIXES = {SERVICE_NAME: "", "grpc.health.v1.Health": HEALTH_PREFIX}


class CallHead:
    """What the headers of a call say. Shared by all calls that send them, so nobody changes it."""

    __slots__ = ("code", "coding", "fault", "health", "lead", "metadata", "method", "status", "streaming", "timeout_s")

    def __init__(self, metadata: Mapping[bytes, bytes]) -> None:
        self.metadata = metadata
        self.method = self.fault = ""
        """`fault` says why there is no such call; with `status` 0 it is one of gRPC's."""
        self.code = UNIMPLEMENTED
        self.status = 0
        """Of HTTP, where the request is none of gRPC's at all."""
        self.coding = metadata.get(b"grpc-encoding", b"identity")
        self.timeout_s = 0.0
        self.streaming = self.health = False
        self.lead: object = None
        """What the door made of it."""


class _ChangeCountingTable(HeaderTable):
    """HPACK's table, that tells when it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def add(self, name: bytes, value: bytes) -> None:
        self.changes += 1
        super().add(name, value)


class CallHeadCache:
    """The header blocks of one connection."""

    __slots__ = ("_decoder", "_table", "known")

    def __init__(self, head_bytes: int) -> None:
        self._decoder = Decoder(head_bytes)
        self._table = _ChangeCountingTable()
        self._decoder.header_table = self._table
        self.known: dict[bytes, CallHead] = {}

    def read(self, block: bytes) -> CallHead | None:
        """The head in a block; None where it breaks HTTP's rules. Corrupt when the connection cannot go on."""
        headers, is_changed = self._decode_block(block)
        call_head = _parse_head(headers)
        if call_head is not None and not is_changed and len(block) <= _MAX_CACHED_BLOCK_BYTES:
            if len(self.known) >= _MAX_CACHED_HEADS:
                self.known.clear()
            self.known[block] = call_head
        return call_head

    def skip(self, block: bytes) -> bool:
        """Read a block that nobody wants, for the table's sake; whether it could be a trailer."""
        return all(not name.startswith(b":") for name, _ in self._decode_block(block)[0])

    def _decode_block(self, block: bytes) -> tuple[list[tuple[bytes, bytes]], bool]:
        changes_before = self._table.changes
        if len(block) > self._decoder.max_header_list_size:
            raise CorruptData("a block of headers is too large", "send fewer")
        try:
            headers = [(bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)]
        except (HPACKError, IndexError) as error:
            raise CorruptData("a block of headers cannot be read", "connect again") from error
        # A block that sets the table's size says so in its first byte.
        is_changed = self._table.changes != changes_before or (block[:1] >= b"\x20" and block[:1] < b"\x40")
        if is_changed:
            self.known.clear()
        return headers, is_changed


def _parse_head(headers: list[tuple[bytes, bytes]]) -> CallHead | None:
    pseudo: dict[bytes, bytes] = {}
    metadata: dict[bytes, bytes] = {}
    for name, value in headers:
        if name[:1] == b":":
            if name not in _PSEUDO_HEADERS or name in pseudo or metadata:
                return None
            pseudo[name] = value
        elif not _NAME_PATTERN.fullmatch(name) or not _VALUE_PATTERN.fullmatch(value) or name in _FORBIDDEN_HEADERS:
            return None
        elif name in metadata:
            if name in _SINGLE_HEADERS:
                return None
            metadata[name] += b"," + value
        else:
            metadata[name] = value
    authority = pseudo.get(b":authority", metadata.get(b"host", b""))
    if len(pseudo) < 3 + (b":authority" in pseudo) or not _AUTHORITY_PATTERN.fullmatch(authority):
        return None
    if metadata.pop(b"te", b"trailers") != b"trailers" or pseudo[b":scheme"] not in (b"http", b"https"):
        return None
    return _classify_call(CallHead(metadata), pseudo)


def _classify_call(call_head: CallHead, pseudo: Mapping[bytes, bytes]) -> CallHead:
    """Which call it is, or why it is none."""
    method, is_health = parse_call_path(pseudo[b":path"])
    timeout = call_head.metadata.get(b"grpc-timeout")
    timeout_match = _TIMEOUT_PATTERN.fullmatch(timeout) if timeout is not None else None
    if pseudo[b":method"] != b"POST":
        call_head.status = 405
    elif not re.match(rb"application/grpc(\+proto)?($|;)", call_head.metadata.get(b"content-type", b"")):
        call_head.status = 415
    elif not method:
        call_head.fault = f"there is no such service (call {SERVICE_NAME})"
    elif timeout is not None and timeout_match is None:
        call_head.code, call_head.fault = (
            GRPC_STATUS_CODES["invalid"],
            "grpc-timeout is no time (digits and one of H, M, S, m, u, n)",
        )
    elif call_head.coding not in ACCEPTED_CODINGS:
        call_head.fault = "grpc-encoding is none that is read here (use identity, gzip or deflate)"
    else:
        call_head.method, call_head.streaming, call_head.health = method, method == STREAM_INFER_METHOD, is_health
        call_head.timeout_s = (
            max(int(timeout_match[1]) * _TIMEOUT_UNITS[timeout_match[2]], 1e-6) if timeout_match else 0.0
        )
    return call_head


def parse_call_path(path: bytes) -> tuple[str, bool]:
    """The method a path names (none: empty), and whether it is one of grpc.health.v1."""
    match = _PATH_PATTERN.fullmatch(path)
    prefix = _METHOD_PREFIXES.get(match[1].decode()) if match else None
    return (prefix + match[2].decode(), bool(prefix)) if match and prefix is not None else ("", False)


def encode_headers(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Headers as HPACK, without any table: the same ones are always the same bytes."""
    return b"".join(_encode_literal(name, value) for name, value in headers)


@lru_cache(256)
def _encode_literal(name: bytes, value: bytes) -> bytes:
    if not _NAME_PATTERN.fullmatch(name.lstrip(b":")) or not _VALUE_PATTERN.fullmatch(value):
        raise Invalid("a header of an answer cannot be sent", "no line breaks in it")
    return b"\x00" + encode_integer(len(name), 7) + name + encode_integer(len(value), 7) + value


def encode_status_text(text: str) -> bytes:
    """A text for grpc-message: printable ASCII, the rest as %XX."""
    return quote(text[:_MAX_TEXT_CHARS], safe=_SAFE_CHARS).encode()

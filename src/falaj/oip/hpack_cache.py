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

from falaj.core.errors import Corrupt, Invalid
from falaj.oip.calls import CODES, UNIMPLEMENTED
from falaj.oip.health import PREFIX
from falaj.oip.messages import SERVICE

STREAMING = "ModelStreamInfer"
_MOST_KNOWN, _KNOWN_BYTES = 256, 4096
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE = re.compile(rb"[^\x00\r\n]*")
_AUTHORITY = re.compile(rb"[A-Za-z0-9._~:%\[\]-]{1,255}")
_PATH = re.compile(rb"/([A-Za-z0-9_.]{1,200})/([A-Za-z0-9_]{1,100})")
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_FORBIDDEN = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
_ONCE = frozenset((b"authorization", b"content-type", b"grpc-encoding", b"grpc-timeout", b"host", b"te"))
CODINGS = (b"identity", b"gzip", b"deflate")
_LONGEST_TEXT = 1000
_PLAIN = "".join(chr(one) for one in range(0x20, 0x7F) if one != 0x25)
_SERVICES = {SERVICE: "", "grpc.health.v1.Health": PREFIX}


class Head:
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


class _Table(HeaderTable):
    """HPACK's table, that tells when it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def add(self, name: bytes, value: bytes) -> None:
        self.changes += 1
        super().add(name, value)


class Heads:
    """The header blocks of one connection."""

    __slots__ = ("_decoder", "_table", "known")

    def __init__(self, head_bytes: int) -> None:
        self._decoder = Decoder(head_bytes)
        self._table = _Table()
        self._decoder.header_table = self._table
        self.known: dict[bytes, Head] = {}

    def read(self, block: bytes) -> Head | None:
        """The head in a block; None where it breaks HTTP's rules. Corrupt when the connection cannot go on."""
        found, changed = self._decode(block)
        head = _head(found)
        if head is not None and not changed and len(block) <= _KNOWN_BYTES:
            if len(self.known) >= _MOST_KNOWN:
                self.known.clear()
            self.known[block] = head
        return head

    def skip(self, block: bytes) -> bool:
        """Read a block that nobody wants, for the table's sake; whether it could be a trailer."""
        return all(not name.startswith(b":") for name, _ in self._decode(block)[0])

    def _decode(self, block: bytes) -> tuple[list[tuple[bytes, bytes]], bool]:
        before = self._table.changes
        if len(block) > self._decoder.max_header_list_size:
            raise Corrupt("a block of headers is too large", "send fewer")
        try:
            found = [(bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)]
        except (HPACKError, IndexError) as error:
            raise Corrupt("a block of headers cannot be read", "connect again") from error
        # A block that sets the table's size says so in its first byte.
        changed = self._table.changes != before or (block[:1] >= b"\x20" and block[:1] < b"\x40")
        if changed:
            self.known.clear()
        return found, changed


def _head(found: list[tuple[bytes, bytes]]) -> Head | None:
    pseudo: dict[bytes, bytes] = {}
    metadata: dict[bytes, bytes] = {}
    for name, value in found:
        if name[:1] == b":":
            if name not in _PSEUDO or name in pseudo or metadata:
                return None
            pseudo[name] = value
        elif not _NAME.fullmatch(name) or not _VALUE.fullmatch(value) or name in _FORBIDDEN:
            return None
        elif name in metadata:
            if name in _ONCE:
                return None
            metadata[name] += b"," + value
        else:
            metadata[name] = value
    authority = pseudo.get(b":authority", metadata.get(b"host", b""))
    if len(pseudo) < 3 + (b":authority" in pseudo) or not _AUTHORITY.fullmatch(authority):
        return None
    if metadata.pop(b"te", b"trailers") != b"trailers" or pseudo[b":scheme"] not in (b"http", b"https"):
        return None
    return _judged(Head(metadata), pseudo)


def _judged(head: Head, pseudo: Mapping[bytes, bytes]) -> Head:
    """Which call it is, or why it is none."""
    method, healthy = service_of(pseudo[b":path"])
    timeout = head.metadata.get(b"grpc-timeout")
    within = _TIMEOUT.fullmatch(timeout) if timeout is not None else None
    if pseudo[b":method"] != b"POST":
        head.status = 405
    elif not re.match(rb"application/grpc(\+proto)?($|;)", head.metadata.get(b"content-type", b"")):
        head.status = 415
    elif not method:
        head.fault = f"there is no such service (call {SERVICE})"
    elif timeout is not None and within is None:
        head.code, head.fault = CODES["invalid"], "grpc-timeout is no time (digits and one of H, M, S, m, u, n)"
    elif head.coding not in CODINGS:
        head.fault = "grpc-encoding is none that is read here (use identity, gzip or deflate)"
    else:
        head.method, head.streaming, head.health = method, method == STREAMING, healthy
        head.timeout_s = max(int(within[1]) * _UNITS[within[2]], 1e-6) if within else 0.0
    return head


def service_of(path: bytes) -> tuple[str, bool]:
    """The method a path names (none: empty), and whether it is one of grpc.health.v1."""
    found = _PATH.fullmatch(path)
    prefix = _SERVICES.get(found[1].decode()) if found else None
    return (prefix + found[2].decode(), bool(prefix)) if found and prefix is not None else ("", False)


def block(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Headers as HPACK, without any table: the same ones are always the same bytes."""
    return b"".join(_literal(name, value) for name, value in headers)


@lru_cache(256)
def _literal(name: bytes, value: bytes) -> bytes:
    if not _NAME.fullmatch(name.lstrip(b":")) or not _VALUE.fullmatch(value):
        raise Invalid("a header of an answer cannot be sent", "no line breaks in it")
    return b"\x00" + encode_integer(len(name), 7) + name + encode_integer(len(value), 7) + value


def message_text(text: str) -> bytes:
    """A text for grpc-message: printable ASCII, the rest as %XX."""
    return quote(text[:_LONGEST_TEXT], safe=_PLAIN).encode()

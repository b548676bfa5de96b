"""What really went over a link: TCP streams put together from frames, and TLS 1.3 opened with the client's key log.

So a test does not only see that bytes are encrypted, which they always are, but reads what was said.
"""

import hashlib
import hmac
import struct
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_SUITES = {0x1301: ("sha256", 16), 0x1302: ("sha384", 32)}
_SYN, _ACK = 2, 16


class Way(NamedTuple):
    """One direction of a connection."""

    source: str
    source_port: int
    target: str
    target_port: int

    @property
    def back(self) -> "Way":
        return Way(self.target, self.target_port, self.source, self.source_port)


class Traffic(NamedTuple):
    """All that was heard."""

    streams: dict[Way, bytes]
    opened: list[Way]
    """Connections by who asked for them."""
    others: int
    """IP packets that were not TCP."""
    size_bytes: int
    unread: int
    """Bytes of connections whose beginning was not heard: nobody can say what they were."""


def assemble(frames: list[bytes]) -> Traffic:
    """Put TCP streams together; what was sent twice counts once."""
    parts: dict[Way, dict[int, bytes]] = defaultdict(dict)
    begins: dict[Way, int] = {}
    opened: list[Way] = []
    others = size = unread = 0
    for frame in frames:
        if frame[12:14] != b"\x08\x00":
            continue
        size += len(frame)
        head = (frame[14] & 15) * 4
        if frame[23] != 6:
            others += 1
            continue
        source, target = (".".join(map(str, frame[at : at + 4])) for at in (26, 30))
        tcp = frame[14 + head : 14 + int.from_bytes(frame[16:18], "big")] or frame[14 + head :]
        ports, (sequence,) = struct.unpack_from(">HH", tcp), struct.unpack_from(">I", tcp, 4)
        way = Way(source, ports[0], target, ports[1])
        flags, data = tcp[13], tcp[(tcp[12] >> 4) * 4 :]
        if flags & _SYN:
            begins[way] = (sequence + 1) % 2**32
            if not flags & _ACK and way not in opened:
                opened.append(way)
        elif data and way in begins:
            at = (sequence - begins[way]) % 2**32
            if len(data) > len(parts[way].get(at, b"")):
                parts[way][at] = data
        elif data:
            unread += len(data)
    return Traffic({way: _joined(parts[way]) for way in begins}, opened, others, size, unread)


def read(traffic: Traffic, key_log: Path) -> dict[Way, bytes]:
    """The plain content of every TLS connection in both directions."""
    secrets: dict[tuple[str, str], bytes] = {}
    for line in key_log.read_text().splitlines():
        if not line.startswith("#") and line.count(" ") == 2:
            label, random, secret = line.split()
            secrets[label, random] = bytes.fromhex(secret)
    plain: dict[Way, bytes] = {}
    for way in traffic.opened:
        asked, said = traffic.streams.get(way, b""), traffic.streams.get(way.back, b"")
        if len(asked) < 43 or len(said) < 80:
            continue  # it never came to a handshake
        random = asked[11:43].hex()
        session = said[43]
        suite = int.from_bytes(said[44 + session : 46 + session], "big")
        for side, stream, where in (("CLIENT", asked, way), ("SERVER", said, way.back)):
            keys = [
                secrets.get((f"{side}_{name}", random)) for name in ("HANDSHAKE_TRAFFIC_SECRET", "TRAFFIC_SECRET_0")
            ]
            assert all(keys), f"the key log knows nothing of {way}"
            plain[where] = _open(stream, [key for key in keys if key], suite)
    return plain


def _joined(parts: dict[int, bytes]) -> bytes:
    whole = bytearray()
    for at in sorted(parts):
        assert at <= len(whole), "a part of a stream was not heard"
        whole[at : at + len(parts[at])] = parts[at]
    return bytes(whole)


def _open(stream: bytes, secrets: list[bytes], suite: int) -> bytes:
    plain, at, turn, number = bytearray(), 0, 0, 0
    while at + 5 <= len(stream) and turn < len(secrets):
        head, length = stream[at : at + 5], int.from_bytes(stream[at + 3 : at + 5], "big")
        data = stream[at + 5 : at + 5 + length]
        if head[0] == 23 and len(data) == length:
            opened = _record(secrets[turn], suite, number, head, data)
            if opened is None:
                turn, number = turn + 1, 0
                assert turn < len(secrets), f"record at {at} of {len(stream)} does not open"
                continue
            plain += opened
            number += 1
        at += 5 + length
    return bytes(plain)


def _record(secret: bytes, suite: int, number: int, head: bytes, data: bytes) -> bytes | None:
    hashed, size = _SUITES[suite]
    key, nonce = (_expand(hashed, secret, label, length) for label, length in (("key", size), ("iv", 12)))
    mixed = (int.from_bytes(nonce, "big") ^ number).to_bytes(12, "big")
    try:
        inner = AESGCM(key).decrypt(mixed, data, head).rstrip(b"\0")
    except InvalidTag:
        return None
    return inner[:-1] if inner[-1:] == b"\x17" else b""


def _expand(hashed: str, secret: bytes, label: str, length: int) -> bytes:
    full = f"tls13 {label}".encode()
    info = length.to_bytes(2, "big") + bytes([len(full)]) + full + b"\0"
    return hmac.new(secret, info + b"\1", getattr(hashlib, hashed)).digest()[:length]

"""Bodies that travel compressed: gzip and deflate, both ways, within a bound."""

import zlib

from falaj.oip.calls import JSON, Reply
from falaj.oip.rest import refusal

INLINE_BYTES = 1 << 20
"""What is larger is done in a thread: a small bomb must not stop the loop."""
_WORTH_BYTES = 1024
_WINDOWS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}


def inflate(body: bytes, coding: bytes, most: int) -> "bytes | Reply":
    """The body as it was before it was compressed, or the answer that it was not."""
    unpacking = zlib.decompressobj(_WINDOWS[coding])
    try:
        plain = unpacking.decompress(body, most + 1)
    except zlib.error:
        return refusal(400, f"the body is no {coding.decode()}", "compress it again, or send it as it is")
    if len(plain) > most:
        return refusal(413, f"the body holds more than {most} bytes", "send less at once")
    if not unpacking.eof or unpacking.unused_data:
        return refusal(400, f"the {coding.decode()} of the body ends too early or too late", "send all of it, once")
    return plain


def chosen(accepts: bytes, reply: Reply) -> bytes:
    """How an answer is compressed: as the client asks, where it asks for nothing else or where it pays.

    Errors go as they are: Triton's client reads them before it looks at how they are coded.
    """
    if reply.status >= 400 or any(name == b"content-encoding" for name, _ in reply.headers):
        return b""
    if accepts in (b"gzip", b"deflate"):
        return accepts
    if reply.kind != JSON or sum(map(len, reply.parts)) < _WORTH_BYTES:
        return b""
    return next((one for one in (b"gzip", b"deflate") if _takes(accepts, one)), b"")


def deflate(reply: Reply, coding: bytes) -> Reply:
    """The same answer, compressed."""
    packing = zlib.compressobj(1, zlib.DEFLATED, _WINDOWS[coding])
    packed = [packing.compress(part) for part in reply.parts]
    parts = (b"".join([*packed, packing.flush()]),)
    headers = (*reply.headers, (b"content-encoding", coding), (b"vary", b"accept-encoding"))
    return Reply(reply.status, parts, reply.kind, reply.json_bytes, headers, reply.lines)


def _takes(accepts: bytes, coding: bytes) -> bool:
    for one in accepts.split(b","):
        name, _, quality = one.partition(b";")
        if name.strip() == coding:
            return quality.replace(b" ", b"").rstrip(b"0") not in (b"q=", b"q=0.")
    return False

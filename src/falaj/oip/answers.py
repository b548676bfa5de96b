"""HTTP/1.1 answers as bytes: few headers, and nothing in them that could end one."""

from collections.abc import Sequence
from http import HTTPStatus

from falaj.oip.calls import Reply
from falaj.oip.lot_frames import Told
from falaj.oip.requests import Head

_JOINED_BYTES = 64 << 10
"""What is larger is written as it is rather than copied once more."""
_MOST_LEADS = 256
_STATUS = {one.value: b"HTTP/1.1 %d %b\r\n" % (one.value, one.phrase.encode()) for one in HTTPStatus}
_LEADS: dict[tuple[int, bytes], bytes] = {}


def render(reply: Reply, head: Head, last: bool, out: list[bytes]) -> None:
    """An answer as it is written, for the request with this head."""
    parts = reply.parts
    size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
    lead = _LEADS.get((reply.status, reply.kind)) or _lead(reply.status, reply.kind)
    lines = reply.lines
    if reply.json_bytes:
        lines += b"inference-header-content-length: %d\r\n" % reply.json_bytes
    if last or reply.headers or not head.modern:
        lines += _fields(reply, head, last)
    begin = b"%b%d\r\n%b\r\n" % (lead, size, lines)
    if head.method == b"HEAD":
        out.append(begin)
    elif size < _JOINED_BYTES:
        out.append(begin + parts[0] if len(parts) == 1 else b"".join((begin, *parts)))
    else:
        out.append(begin)
        out.extend(parts)


def whole(told: Told, before: bytes, names: Sequence[bytes], after: bytes) -> list[bytes]:
    """Answers with these names between such lines, as they are written to requests that ask for nothing special."""
    lead = _LEADS.get((told.status, told.kind)) or _lead(told.status, told.kind)
    if told.json_bytes:
        after += b"inference-header-content-length: %d\r\n" % told.json_bytes
    both = zip(names, told.bodies, strict=True)
    return [b"%b%d\r\n%b%b%b\r\n%b" % (lead, len(body), before, name, after, body) for name, body in both]


def _lead(status: int, kind: bytes) -> bytes:
    lead = b"%bcontent-type: %b\r\ncontent-length: " % (_STATUS[status], kind)
    if len(_LEADS) < _MOST_LEADS:
        _LEADS[status, kind] = lead
    return lead


def _fields(reply: Reply, head: Head, last: bool) -> bytes:
    fields = b""
    for name, value in reply.headers:
        fields += b"%b: %b\r\n" % (name, value.translate(None, b"\r\n\0"))
    if last:
        return fields + b"connection: close\r\n"
    return fields if head.modern else fields + b"connection: keep-alive\r\n"

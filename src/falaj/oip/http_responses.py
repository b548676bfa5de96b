"""HTTP/1.1 answers as bytes: few headers, and nothing in them that could end one."""

from collections.abc import Sequence
from http import HTTPStatus

from falaj.oip.handler_calls import HttpReply
from falaj.oip.http1_parser import RequestHead
from falaj.oip.lot_frames import Told

_MAX_JOINED_BYTES = 64 << 10
"""What is larger is written as it is rather than copied once more."""
_MAX_CACHED_HEADS = 256
_STATUS_LINES = {
    http_status.value: b"HTTP/1.1 %d %b\r\n" % (http_status.value, http_status.phrase.encode())
    for http_status in HTTPStatus
}
_RESPONSE_HEADS: dict[tuple[int, bytes], bytes] = {}


def render_response(reply: HttpReply, head: RequestHead, is_last: bool, chunks: list[bytes]) -> None:
    """An answer as it is written, for the request with this head."""
    parts = reply.parts
    size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
    status_head = _RESPONSE_HEADS.get((reply.status, reply.kind)) or _render_status_head(reply.status, reply.kind)
    header_lines = reply.lines
    if reply.json_bytes:
        header_lines += b"inference-header-content-length: %d\r\n" % reply.json_bytes
    if is_last or reply.headers or not head.modern:
        header_lines += _render_fields(reply, head, is_last)
    head_bytes = b"%b%d\r\n%b\r\n" % (status_head, size, header_lines)
    if head.method == b"HEAD":
        chunks.append(head_bytes)
    elif size < _MAX_JOINED_BYTES:
        chunks.append(head_bytes + parts[0] if len(parts) == 1 else b"".join((head_bytes, *parts)))
    else:
        chunks.append(head_bytes)
        chunks.extend(parts)


def render_group(
    group_reply: Told, fields_before: bytes, request_names: Sequence[bytes], fields_after: bytes
) -> list[bytes]:
    """Answers with these names between such lines, as they are written to requests that ask for nothing special."""
    status_head = _RESPONSE_HEADS.get((group_reply.status, group_reply.kind)) or _render_status_head(
        group_reply.status, group_reply.kind
    )
    if group_reply.json_bytes:
        fields_after += b"inference-header-content-length: %d\r\n" % group_reply.json_bytes
    named_bodies = zip(request_names, group_reply.bodies, strict=True)
    return [
        b"%b%d\r\n%b%b%b\r\n%b" % (status_head, len(body), fields_before, name, fields_after, body)
        for name, body in named_bodies
    ]


def _render_status_head(status: int, content_type: bytes) -> bytes:
    status_head = b"%bcontent-type: %b\r\ncontent-length: " % (_STATUS_LINES[status], content_type)
    if len(_RESPONSE_HEADS) < _MAX_CACHED_HEADS:
        _RESPONSE_HEADS[status, content_type] = status_head
    return status_head


def _render_fields(reply: HttpReply, head: RequestHead, is_last: bool) -> bytes:
    fields = b""
    for name, value in reply.headers:
        fields += b"%b: %b\r\n" % (name, value.translate(None, b"\r\n\0"))
    if is_last:
        return fields + b"connection: close\r\n"
    return fields if head.modern else fields + b"connection: keep-alive\r\n"

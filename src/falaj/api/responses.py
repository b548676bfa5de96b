"""Answers: the one way anything leaves over HTTP. One error renderer, one set of security headers, no insides."""

import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, NamedTuple

import msgspec

from falaj.api.whole import write_whole
from falaj.core.errors import FalajError
from falaj.core.event import generate_id

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON_TYPE, BYTES_TYPE, EVENT_STREAM_TYPE, METRICS_TEXT_TYPE = (
    b"application/json",
    b"application/octet-stream",
    b"text/event-stream",
    b"text/plain; version=0.0.4; charset=utf-8",
)
REQUEST_HEADER = b"falaj-request"
# No page of ours frames or is embedded: the API speaks to programs. Nothing is cached: answers belong to one caller.
SECURITY_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"strict-transport-security", b"max-age=31536000"),
    (b"x-content-type-options", b"nosniff"),
)
_SECURITY_HEADER_LINES = b"".join(b"%s: %s\r\n" % pair for pair in SECURITY_HEADERS)
BROWSER_HEADERS = frozenset(
    {
        b"cookie",
        b"origin",
        b"referer",
        b"sec-fetch-dest",
        b"sec-fetch-mode",
        b"sec-fetch-site",
        b"upgrade-insecure-requests",
    }
)
"""What browsers say of themselves; programs say none of it."""
_encode = msgspec.json.encode
_log = logging.getLogger(__name__)


class HttpResponse(NamedTuple):
    """A whole answer, small enough to be held."""

    status: int
    body: bytes
    request: str
    kind: bytes = JSON_TYPE
    headers: tuple[tuple[bytes, bytes], ...] = ()


def is_program_request(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request with a JSON body can be no browser's: it shows its token, which no page, form or link of
    another's can have a browser do, and has nothing that browsers add. Its answer is read and never rendered."""
    return b"authorization" in headers and headers.keys().isdisjoint(BROWSER_HEADERS)


class HttpError(Exception):
    """An error with an HTTP status narrower than its class's, or with headers of its own."""

    def __init__(self, error: FalajError, status: int = 0, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(str(error))
        self.error = error
        self.status = status or error.status
        self.headers = headers


def build_headers(response: HttpResponse, size: int) -> Headers:
    """The headers of an answer of so many bytes."""
    own_header_names = {name for name, _ in response.headers}
    return [
        (b"content-type", response.kind),
        (b"content-length", b"%d" % size),
        (REQUEST_HEADER, response.request.encode()),
        *(pair for pair in SECURITY_HEADERS if pair[0] not in own_header_names),
        *response.headers,
    ]


def format_header_lines(response: HttpResponse) -> bytes:
    """The same as they are written."""
    if response.headers:
        return b"".join([b"%s: %s\r\n" % pair for pair in build_headers(response, len(response.body))])
    return format_program_header_lines(response) + _SECURITY_HEADER_LINES


def format_program_header_lines(response: HttpResponse) -> bytes:
    """The same for a program: what only browsers heed costs its parser more than all the rest."""
    lines = b"content-type: %s\r\ncontent-length: %d\r\n%s: %s\r\n"
    return lines % (response.kind, len(response.body), REQUEST_HEADER, response.request.encode())


async def send_response(send: Send, response: HttpResponse) -> None:
    """Status, headers and body, all at once."""
    if not response.headers and write_whole(send, response.status, format_header_lines(response), response.body):
        return
    await send(
        {
            "type": "http.response.start",
            "status": response.status,
            "headers": build_headers(response, len(response.body)),
        }
    )
    await send({"type": "http.response.body", "body": response.body})


def render_error(error: BaseException, request_id: str = "") -> HttpResponse:
    """The one error renderer. What is not ours is logged with an id, and the id is all the caller gets."""
    request_id = request_id or generate_id()
    if isinstance(error, HttpError):
        return HttpResponse(error.status, _encode(error.error.wire()), request_id, headers=error.headers)
    if isinstance(error, FalajError) and error.code != FalajError.code:
        extra_headers = ((b"retry-after", b"1"),) if error.retry and error.status in (429, 503) else ()
        extra_headers = ((b"www-authenticate", b"Bearer"),) if error.status == 401 else extra_headers
        return HttpResponse(error.status, _encode(error.wire()), request_id, headers=extra_headers)
    _log.error("unexpected error", exc_info=error, extra={"request": request_id})
    return HttpResponse(500, encode_internal_error(request_id), request_id)


def encode_internal_error(request_id: str) -> bytes:
    """What a caller learns of an error that is ours."""
    return _encode(
        {
            "code": "error",
            "message": "something broke on our side",
            "hint": f"tell your operator this id: {request_id}",
            "ref": "",
        }
    )

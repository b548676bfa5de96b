"""Answers: the one way anything leaves over HTTP. One error renderer, one set of security headers, no insides."""

import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, NamedTuple

import msgspec

from falaj.api.whole import write_whole
from falaj.core.errors import FalajError
from falaj.core.event import new_id

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON, BYTES, EVENTS, TEXT = (
    b"application/json",
    b"application/octet-stream",
    b"text/event-stream",
    b"text/plain; version=0.0.4; charset=utf-8",
)
REQUEST_HEADER = b"falaj-request"
# No page of ours frames or is embedded: the API speaks to programs. Nothing is cached: answers belong to one caller.
SECURITY: tuple[tuple[bytes, bytes], ...] = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"strict-transport-security", b"max-age=31536000"),
    (b"x-content-type-options", b"nosniff"),
)
_SECURITY = b"".join(b"%s: %s\r\n" % pair for pair in SECURITY)
BROWSER = frozenset(
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


class Answer(NamedTuple):
    """A whole answer, small enough to be held."""

    status: int
    body: bytes
    request: str
    kind: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


def is_program(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request with a JSON body can be no browser's: it shows its token, which no page, form or link of
    another's can have a browser do, and has nothing that browsers add. Its answer is read and never rendered."""
    return b"authorization" in headers and headers.keys().isdisjoint(BROWSER)


class Refusal(Exception):
    """An error with an HTTP status narrower than its class's, or with headers of its own."""

    def __init__(self, error: FalajError, status: int = 0, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(str(error))
        self.error = error
        self.status = status or error.status
        self.headers = headers


def head(answer: Answer, size: int) -> Headers:
    """The headers of an answer of so many bytes."""
    own = {name for name, _ in answer.headers}
    return [
        (b"content-type", answer.kind),
        (b"content-length", b"%d" % size),
        (REQUEST_HEADER, answer.request.encode()),
        *(pair for pair in SECURITY if pair[0] not in own),
        *answer.headers,
    ]


def head_lines(answer: Answer) -> bytes:
    """The same as they are written."""
    if answer.headers:
        return b"".join([b"%s: %s\r\n" % pair for pair in head(answer, len(answer.body))])
    return bare_lines(answer) + _SECURITY


def bare_lines(answer: Answer) -> bytes:
    """The same for a program: what only browsers heed costs its parser more than all the rest."""
    lines = b"content-type: %s\r\ncontent-length: %d\r\n%s: %s\r\n"
    return lines % (answer.kind, len(answer.body), REQUEST_HEADER, answer.request.encode())


async def send_answer(send: Send, answer: Answer) -> None:
    """Status, headers and body, all at once."""
    if not answer.headers and write_whole(send, answer.status, head_lines(answer), answer.body):
        return
    await send({"type": "http.response.start", "status": answer.status, "headers": head(answer, len(answer.body))})
    await send({"type": "http.response.body", "body": answer.body})


def render(error: BaseException, request: str = "") -> Answer:
    """The one error renderer. What is not ours is logged with an id, and the id is all the caller gets."""
    request = request or new_id()
    if isinstance(error, Refusal):
        return Answer(error.status, _encode(error.error.wire()), request, headers=error.headers)
    if isinstance(error, FalajError) and error.code != FalajError.code:
        extra = ((b"retry-after", b"1"),) if error.retry and error.status in (429, 503) else ()
        extra = ((b"www-authenticate", b"Bearer"),) if error.status == 401 else extra
        return Answer(error.status, _encode(error.wire()), request, headers=extra)
    _log.error("unexpected error", exc_info=error, extra={"request": request})
    return Answer(500, opaque(request), request)


def opaque(request: str) -> bytes:
    """What a caller learns of an error that is ours."""
    return _encode(
        {
            "code": "error",
            "message": "something broke on our side",
            "hint": f"tell your operator this id: {request}",
            "ref": "",
        }
    )

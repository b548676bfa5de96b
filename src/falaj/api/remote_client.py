"""The remote client: the same desks, signatures and errors as in process, over HTTPS."""

import json
import os
import random
import ssl
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx

import falaj
from falaj.api.argument_decoding import ARGUMENTS_HEADER, RECONNECT_COMMENT, encode_arguments_header
from falaj.api.byte_channel_protocol import (
    BLOCK_BYTES,
    BUNDLE_PATH,
    GET_PATH,
    PUT_PATH,
    TICKET_HEADER,
    BundleRequest,
    PieceRequest,
)
from falaj.client import ServiceProxy
from falaj.core import tracing
from falaj.core.argument_binding import union_members
from falaj.core.byte_channel import UploadReceipt
from falaj.core.byte_stream import ByteStream
from falaj.core.client_command import NullProgress, ProgressReporter
from falaj.core.errors import CorruptData, FalajError, Invalid, Unavailable, error_from_wire
from falaj.core.event import Event
from falaj.core.operation import Operation
from falaj.core.ports import OnlineStore
from falaj.plugins import load_plugin
from falaj.services import SERVICES
from falaj.store.codec import from_json, to_json

MAX_TRIES = 4
MAX_RETRY_WAIT_S = 10.0
READ_ONLY_GROUPS = frozenset({"see", "read"})
UNSENT_ERRORS = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""After these nobody has heard of the call."""
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")


class RemoteClient:
    """A platform somewhere else. `here.zones.list()` is one POST; what the server raises is raised here."""

    def __init__(
        self,
        address: str,
        *,
        token: str = "",
        ca: str = "",
        cert: str = "",
        key: str = "",
        purpose: str = "",
        timeout_s: float = 60.0,
    ) -> None:
        url_parts = urlsplit(address)
        is_local = url_parts.hostname in LOOPBACK_HOSTS
        if url_parts.scheme == "http" and not is_local:
            raise Invalid("a token may not travel in the clear", f"use https://{url_parts.netloc}")
        self.address, self.ca = f"{url_parts.scheme}://{url_parts.netloc}", ca
        headers = {"user-agent": f"falaj/{falaj.__version__}"}
        headers |= {"authorization": f"Bearer {token}"} if token else {}
        headers |= {"falaj-purpose": purpose} if purpose else {}
        verify: ssl.SSLContext | bool = False
        if url_parts.scheme == "https":
            from falaj.api.tls import create_client_context

            verify = create_client_context(ca, cert, key)
        self.progress: ProgressReporter = NullProgress()
        self.bytes = RemoteByteChannel(self)
        self._online: OnlineStore | None = None
        self._http_client = httpx.Client(
            base_url=self.address,
            headers=headers,
            verify=verify,
            timeout=httpx.Timeout(timeout_s, connect=10.0),
            trust_env=not is_local,
        )

    def __getattr__(self, name: str) -> ServiceProxy:
        if name.startswith("_") or name not in SERVICES:
            raise AttributeError(f"there is no desk {name!r}; there are: {', '.join(SERVICES)}")
        return ServiceProxy(name, self, self.call)

    def __dir__(self) -> list[str]:
        return [*SERVICES, "call", "close", "events", "get"]

    def __enter__(self) -> "RemoteClient":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def working(self) -> AbstractContextManager[None]:
        """Nothing to do here: the server works."""
        return nullcontext()

    def online(self) -> OnlineStore | None:
        """The tenant's online store where $FALAJ_ONLINE names it, for reading only; else the server is asked."""
        url = os.environ.get("FALAJ_ONLINE", "")
        if url and self._online is None:
            self._online = load_plugin("online", url.partition(":")[0])(url, {"readonly": True})
        return self._online

    def close(self) -> None:
        """Give the connections back."""
        self._http_client.close()

    def call(self, service_name: str, operation: Operation, arguments: dict[str, Any]) -> Any:
        """One verb: arguments already typed, the result decoded to the verb's type."""
        path = f"/v1/{service_name}/{operation.name}"
        stream_name = next((p.name for p in operation.params if ByteStream in union_members(p.type)), "")
        stream_body = arguments.get(stream_name)
        sent_arguments = {
            p.name: arguments[p.name] for p in operation.params if p.required or arguments.get(p.name) != p.default
        }
        sent_arguments.pop(stream_name, None)
        if isinstance(stream_body, ByteStream):
            return _decode_result(operation, self._upload_stream(path, to_json(sent_arguments), stream_body))
        if ByteStream in union_members(operation.result):
            return self._download_stream(path, to_json(sent_arguments))
        span_context = tracing.get_current_context()
        headers = {"content-type": "application/json", **({"traceparent": span_context.header} if span_context else {})}
        is_repeatable = operation.reading or (operation.group in READ_ONLY_GROUPS and not operation.writes)
        # Naming the request makes a repeat find the first outcome, so that it may be tried again.
        headers |= {} if is_repeatable or operation.outside else {"idempotency-key": uuid.uuid4().hex}
        json_body = to_json(sent_arguments)
        return _decode_result(
            operation,
            self._send_with_retry(
                lambda: self._http_client.post(path, content=json_body, headers=headers),
                is_repeatable=not operation.outside or is_repeatable,
            ),
        )

    def get(self, path: str) -> Any:
        """The JSON at a read-only path: /health, /ready, /v1/login, /r/<ref>."""
        return self._send_with_retry(lambda: self._http_client.get(path), is_repeatable=True).json()

    def send(self, path: str, body: bytes, headers: dict[str, str], *, stream: bool = False) -> httpx.Response:
        """POST what may be sent again without harm."""

        def post_body() -> httpx.Response:
            return self._http_client.send(
                self._http_client.build_request("POST", path, content=body, headers=headers), stream=stream
            )

        return self._send_with_retry(post_body, is_repeatable=True)

    def events(self, after: str = "", **filters: str) -> Iterator[tuple[str, Event]]:
        """Follow the tenant's log: (cursor, event), for as long as somebody speaks.

        Where a replica goes, or is lost, another tells on from the last event seen.
        """
        response = self._send_with_retry(partial(self._open_event_stream, after, filters), is_repeatable=True)
        while True:
            has_ended = True
            try:
                for line in response.iter_lines():
                    if line.startswith("id: "):
                        after = line[4:]
                    elif line.startswith("data: "):
                        yield after, Event.decode(line[6:].encode())
                    elif line == RECONNECT_COMMENT:
                        has_ended = False
            except httpx.TransportError:
                has_ended = False
            finally:
                response.close()
            if has_ended:
                return
            try:
                response = self._send_with_retry(partial(self._open_event_stream, after, filters), is_repeatable=True)
            except FalajError:
                return

    def _open_event_stream(self, after: str, filters: dict[str, str]) -> httpx.Response:
        headers = {"last-event-id": after} if after else {}
        request = self._http_client.build_request(
            "GET", "/v1/events", params=filters, headers=headers, timeout=httpx.Timeout(10.0, read=60.0)
        )
        return self._http_client.send(request, stream=True)

    def _upload_stream(self, path: str, arguments: bytes, body: ByteStream) -> httpx.Response:
        headers = {"content-type": "application/octet-stream", ARGUMENTS_HEADER: encode_arguments_header(arguments)}
        headers |= {"content-length": str(body.size)} if body.size is not None else {}
        send_request = lambda: self._http_client.post(path, content=iter(body), headers=headers, timeout=None)  # noqa: E731
        return self._send_with_retry(send_request, is_repeatable=False)

    def _download_stream(self, path: str, arguments: bytes) -> ByteStream:
        request = self._http_client.build_request(
            "POST", path, content=arguments, headers={"content-type": "application/json"}
        )
        response = self._send_with_retry(lambda: self._http_client.send(request, stream=True), is_repeatable=True)
        size = response.headers.get("content-length")
        return ByteStream(_iterate_chunks(response), int(size) if size else None)

    def _send_with_retry(self, send_request: Callable[[], httpx.Response], *, is_repeatable: bool) -> httpx.Response:
        """Send; when it is worth it, and safe or nothing was sent yet, send again."""
        for try_index in range(MAX_TRIES):
            try:
                return self._send_once(send_request)
            except FalajError as error:
                can_repeat = is_repeatable or isinstance(error.__cause__, UNSENT_ERRORS)
                wait_s = _get_retry_wait(error, try_index) if can_repeat and try_index + 1 < MAX_TRIES else None
                if wait_s is None:
                    raise
                time.sleep(wait_s)
        raise Unavailable("no answer", "try again later")

    def _send_once(self, send_request: Callable[[], httpx.Response]) -> httpx.Response:
        try:
            response = send_request()
            if response.status_code == 200:
                return response
            response.read()
        except httpx.TransportError as error:
            raise self._unreachable_error(error) from error
        raise _error_from_response(response)

    def _unreachable_error(self, error: httpx.TransportError) -> FalajError:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return Unavailable(
                f"the certificate of {self.address} is signed by nobody we trust",
                "name its authority: --ca FILE, or falaj login --ca FILE",
            )
        if isinstance(error, httpx.ConnectError):
            return Unavailable(f"nothing answers at {self.address}", "start it with: falaj up; or check the address")
        if isinstance(error, httpx.TimeoutException):
            return Unavailable(f"{self.address} did not answer in time", "try again")
        return Unavailable(f"the connection to {self.address} broke", "try again")


class RemoteByteChannel:
    """The byte channel of a platform somewhere else. A piece that was lost on the way is sent again."""

    def __init__(self, client: RemoteClient) -> None:
        self._client = client

    def put(self, ticket: str, chunks: Iterable[bytes]) -> UploadReceipt:
        """Send one piece, of at most 64 MiB."""
        body = b"".join(chunks)
        headers = {"content-type": "application/octet-stream", TICKET_HEADER.decode(): ticket}
        response = self._client.send(PUT_PATH, body, headers)
        receipt: UploadReceipt = from_json(UploadReceipt, response.content)
        return receipt

    def bundle(self, ticket: str, receipts: tuple[UploadReceipt, ...]) -> UploadReceipt:
        """Tie pieces together."""
        response = self._client.send(BUNDLE_PATH, to_json(BundleRequest(ticket, receipts)), _JSON_HEADERS)
        receipt: UploadReceipt = from_json(UploadReceipt, response.content)
        return receipt

    def get(self, ticket: str, digest: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Bytes of what the ticket opens."""
        piece_request = to_json(PieceRequest(ticket, digest, start, stop))
        return _iterate_chunks(self._client.send(GET_PATH, piece_request, _JSON_HEADERS, stream=True))


_JSON_HEADERS = {"content-type": "application/json"}


def _decode_result(operation: Operation, response: httpx.Response) -> Any:
    if operation.result in (None, type(None)):
        return None
    try:
        return from_json(operation.result, response.content)
    except Invalid as error:
        raise CorruptData(
            f"the answer to {operation.name} is not what this version expects", "use the same version on both sides"
        ) from error


def _error_from_response(response: httpx.Response) -> FalajError:
    try:
        body = response.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        body = None
    if not isinstance(body, dict) or "code" not in body:
        return Unavailable(
            f"something that is not Falaj answered {response.status_code}", "check the address, and what stands between"
        )
    error = error_from_wire({name: str(value) for name, value in body.items()})
    retry_after = response.headers.get("retry-after", "")
    error.wait_s = float(retry_after) if retry_after.isdigit() else None  # type: ignore[attr-defined]
    return error


def _get_retry_wait(error: FalajError, try_index: int) -> float | None:
    """Seconds until the same call may work, or None when it will not."""
    if not error.retry or error.status not in (429, 503):
        return None
    server_wait_s = getattr(error, "wait_s", None)
    # Callers that were turned away together do not come back together.
    jitter = 1.0 + 0.5 * random.random()  # noqa: S311 # nosec B311 - no secret
    return min(float(server_wait_s if server_wait_s is not None else 0.1 * 2**try_index) * jitter, MAX_RETRY_WAIT_S)


def _iterate_chunks(response: httpx.Response) -> Iterator[bytes]:
    try:
        yield from response.iter_bytes(BLOCK_BYTES)
    except httpx.TransportError as error:
        raise Unavailable("the answer was cut before its end", "ask again") from error
    finally:
        response.close()

"""The connection: uvicorn's HTTP parser with the limits it lacks on heads and waiting, and our one error renderer."""

from collections.abc import Collection
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from falaj.api.connection_table import ClosableConnection, ConnectionTable
from falaj.api.quick import BODY_BYTES, Quick
from falaj.api.responses import JSON_TYPE, HttpResponse, format_header_lines, format_program_header_lines, render_error
from falaj.api.soon import Soon
from falaj.api.tls import AgentCertificate, read_agent_certificate
from falaj.core.errors import Invalid, Unavailable

MAX_HEAD_BYTES = 65_536
MAX_HEADERS = 100
HEAD_TIMEOUT_S = 15.0
"""Within so long a head must be whole, from the first byte of the connection on."""
UNAUTHENTICATED_IDLE_S = 10
"""Seconds for which a connection is kept open between requests while no caller on it has proven who they are."""
UNREAD_TIMEOUT_S = 30.0
"""Seconds for which a caller may leave an answer unread, and a closed connection its last bytes."""
CLOSE_TIMEOUT_S = 1.0
STATUS_OK = 200


class HeadTooLarge(Exception):
    """Raised inside the parser to end a head that is too long."""


MAX_PIPELINED_REQUESTS = 64
"""Requests of one connection that wait for the answer to another."""


class HttpConnection(HttpToolsProtocol):
    """One caller's connection."""

    _head_bytes = 0
    _in_body = False
    _head_started_at: float | None = None
    _agent_certificate: AgentCertificate | None = None
    _authenticated = _is_lost = False
    _stuck_bytes, _stuck_since = 0, 0.0
    handshake: ClosableConnection | None = None
    """What stood for this connection until its TLS handshake had ended."""
    _fast_path_body: bytearray | None = None
    """The body so far of a call that may be answered as soon as it is whole."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        self._agent_certificate = read_agent_certificate(tls) if tls is not None else None
        self._head_started_at = self.loop.time()
        if self.handshake is not None:
            if not self._connection_table.replace(self.handshake, self):
                transport.abort()
        elif not self._connection_table.add(self, self.client[0] if self.client else ""):
            self._refuse_and_close(
                503, Unavailable("too many connections are open", "try again shortly, or add a replica")
            )
        self._keep_alive_s, self.timeout_keep_alive = self.timeout_keep_alive, UNAUTHENTICATED_IDLE_S
        self._check_timeouts()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._connection_table.remove(self)
        super().connection_lost(exc)

    @property
    def busy(self) -> bool:
        """True while a request is being served."""
        return self._in_body or not getattr(self.cycle, "response_complete", True)

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()

    def note_authenticated(self) -> None:
        """A caller on this connection has proven who they are."""
        if not self._authenticated:
            self._authenticated, self.timeout_keep_alive = True, self._keep_alive_s
            self._connection_table.note_authenticated(self)

    @property
    def _connection_table(self) -> ConnectionTable:
        connection_table: ConnectionTable = cast(Any, self.app).connections
        return connection_table

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        if not self._in_body and self._head_started_at is None:
            self._head_started_at = self.loop.time()
        super().data_received(data)
        if self._head_bytes > MAX_HEAD_BYTES + len(data):
            self._refuse_and_close(
                431, Invalid("the head of the request is too long", f"stay below {MAX_HEAD_BYTES} bytes")
            )

    def on_headers_complete(self) -> None:
        size = self._head_bytes
        self._head_bytes, self._in_body, self._head_started_at = 0, True, None
        if (
            size > MAX_HEAD_BYTES and len(self.url) + sum(len(n) + len(v) + 4 for n, v in self.headers) > MAX_HEAD_BYTES
        ) or len(self.headers) > MAX_HEADERS:
            raise HeadTooLarge
        if not self.url.startswith(b"/"):  # a whole URL would carry a second host name
            raise HeadTooLarge
        if len(self.pipeline) >= MAX_PIPELINED_REQUESTS:  # one read may hold thousands of small requests
            raise HeadTooLarge
        scope = cast(dict[str, Any], self.scope)
        scope["certificate"] = self._agent_certificate
        scope["note_authenticated"] = None if self._authenticated else self.note_authenticated
        self._connection_table.note_request(self)
        if self.url in self._list_fast_paths() and self._is_plain_request():
            scope |= {"method": "POST", "raw_path": self.url}
            self._fast_path_body = bytearray()
        else:
            self._start_request_task()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # fields after a chunked body are not of the head, and are dropped
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0  # what follows is counted anew: it may be a trailer without an end
        if self._fast_path_body is None:
            super().on_body(body)
            return
        self._fast_path_body += body
        if len(self._fast_path_body) > BODY_BYTES:
            self._start_request_task()

    def on_message_complete(self) -> None:
        self._in_body, self._head_bytes = False, 0
        if self._fast_path_body is not None:
            if self._answer_directly(cast(Any, self.app).quick, bytes(self._fast_path_body)):
                return
            self._start_request_task()
        super().on_message_complete()

    def _answer_directly(self, fast_path: Quick, body: bytes) -> bool:
        """Whether a call is answered, or will be, without a task."""
        scope = cast(dict[str, Any], self.scope)
        if self.url in fast_path.takers:
            direct_call = fast_path.begin(scope, body, self)
            if direct_call is None:
                return False
            self.note_authenticated()
            self._fast_path_body, self.cycle = None, cast(Any, direct_call)
            direct_call.start()
            return True
        response = fast_path.answer(scope, body)
        if response is None:
            return False
        self.note_authenticated()
        self._fast_path_body = None
        self._write_response(response)
        return True

    def _list_fast_paths(self) -> Collection[bytes]:
        app: Any = self.app
        return () if getattr(app, "draining", True) else app.quick.paths

    def _is_plain_request(self) -> bool:
        """A request that nothing stands before, and that asks for nothing but its answer."""
        return (
            self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and self.parser.should_keep_alive()
            and not self.parser.should_upgrade()
            and not self.expect_100_continue
            and getattr(self.cycle, "response_complete", True)
        )

    def _start_request_task(self) -> None:
        """The ordinary way: a task, with what of the body is here."""
        body, self._fast_path_body = self._fast_path_body, None
        super().on_headers_complete()
        if getattr(self.app, "draining", False):
            self.cycle.keep_alive = False
        if body:
            super().on_body(bytes(body))

    def _write_response(self, response: HttpResponse, header_lines: bytes = b"", extra_lines: bytes = b"") -> None:
        """`header_lines`: its head, where it is not the usual one; `extra_lines` says that it is the last."""
        if self.transport.is_closing():
            return
        default_lines = b"".join([b"%s: %s\r\n" % pair for pair in self.server_state.default_headers])
        head_lines = header_lines or format_header_lines(response)
        self.transport.write(
            b"".join((STATUS_LINE[response.status], default_lines, head_lines, extra_lines, b"\r\n", response.body))
        )
        if extra_lines:
            self.transport.close()
        self.on_response_complete()

    def finish(self, direct_call: Soon, response: HttpResponse) -> None:
        """Write what a lane gave; the last word where the connection is to end with it."""
        is_plain_response = (
            direct_call.program and response.status == STATUS_OK and response.kind == JSON_TYPE and not response.headers
        )
        header_lines = format_program_header_lines(response) if is_plain_response else b""
        self._write_response(response, header_lines, b"" if direct_call.keep_alive else b"connection: close\r\n")

    def part(self) -> None:
        """The answer that is being made is the last one here; a caller that is silent may ask once more."""
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """Asked to end. A caller that is silent is told so and left; TLS would wait half a minute for a last word."""
        if self._fast_path_body is not None:
            self._start_request_task()
        super().shutdown()
        self.loop.call_later(CLOSE_TIMEOUT_S, self._abort_if_idle)

    def _abort_if_idle(self) -> None:
        if getattr(self.cycle, "response_complete", True):
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """What cannot be parsed gets the same shape of answer as everything else."""
        del msg
        self._refuse_and_close(
            400, Invalid("that is not an HTTP request we can read", "check the client, and the size of its headers")
        )

    def _refuse_and_close(self, status: int, error: Invalid | Unavailable) -> None:
        if self.transport.is_closing():
            return
        response = render_error(error)
        header_lines = format_header_lines(response) + b"connection: close\r\n\r\n"
        self.transport.write(b"".join((STATUS_LINE[status], header_lines, response.body)))
        self.transport.close()

    def _check_timeouts(self) -> None:
        """Close a connection whose head does not come to its end, or whose peer reads nothing. One timer a connection,
        not one a request."""
        if self._is_lost:
            return
        if self._is_stuck():
            self.transport.abort()
            return
        if self.transport.is_closing():
            self.loop.call_later(HEAD_TIMEOUT_S / 3, self._check_timeouts)
            return
        if self._head_started_at is not None and self.loop.time() - self._head_started_at > HEAD_TIMEOUT_S:
            self.transport.close()
        elif self._fast_path_body is not None:  # its body takes its time, and the ordinary way has an end for that
            self._start_request_task()
        self.loop.call_later(HEAD_TIMEOUT_S / 3, self._check_timeouts)

    def _is_stuck(self) -> bool:
        """True when bytes that were written stay where they are, or a close does not end."""
        unsent_bytes, now = self.transport.get_write_buffer_size(), self.loop.time()
        if unsent_bytes != self._stuck_bytes or (not unsent_bytes and not self.transport.is_closing()):
            self._stuck_bytes, self._stuck_since = unsent_bytes, now
        return now - self._stuck_since > UNREAD_TIMEOUT_S

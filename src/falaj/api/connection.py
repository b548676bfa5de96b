"""The connection: uvicorn's HTTP parser with the limits it lacks on heads and waiting, and our one error renderer."""

from collections.abc import Collection
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from falaj.api.answers import JSON, Answer, bare_lines, head_lines, render
from falaj.api.connections import Closable, ConnectionTable
from falaj.api.quick import BODY_BYTES, Quick
from falaj.api.soon import Soon
from falaj.api.tls import AgentCertificate, agent_certificate
from falaj.core.errors import Invalid, Unavailable

HEAD_BYTES = 65_536
HEADERS = 100
HEAD_S = 15.0
"""Within so long a head must be whole, from the first byte of the connection on."""
UNAUTHENTICATED_IDLE_S = 10
"""Seconds for which a connection is kept open between requests while no caller on it has proven who they are."""
UNREAD_S = 30.0
"""Seconds for which a caller may leave an answer unread, and a closed connection its last bytes."""
FAREWELL_S = 1.0
OK = 200


class HeadTooLarge(Exception):
    """Raised inside the parser to end a head that is too long."""


PIPELINED = 64
"""Requests of one connection that wait for the answer to another."""


class Connection(HttpToolsProtocol):
    """One caller's connection."""

    _head_bytes = 0
    _in_body = False
    _since: float | None = None
    _certificate: AgentCertificate | None = None
    _authenticated = _lost = False
    _stuck_bytes, _stuck_since = 0, 0.0
    handshake: Closable | None = None
    """What stood for this connection until its TLS handshake had ended."""
    _quick: bytearray | None = None
    """The body so far of a call that may be answered as soon as it is whole."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        self._certificate = agent_certificate(tls) if tls is not None else None
        self._since = self.loop.time()
        if self.handshake is not None:
            if not self._table.replace(self.handshake, self):
                transport.abort()
        elif not self._table.add(self, self.client[0] if self.client else ""):
            self._refuse(503, Unavailable("too many connections are open", "try again shortly, or add a replica"))
        self._keep_alive_s, self.timeout_keep_alive = self.timeout_keep_alive, UNAUTHENTICATED_IDLE_S
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._table.remove(self)
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
            self._table.note_authenticated(self)

    @property
    def _table(self) -> ConnectionTable:
        table: ConnectionTable = cast(Any, self.app).connections
        return table

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        if not self._in_body and self._since is None:
            self._since = self.loop.time()
        super().data_received(data)
        if self._head_bytes > HEAD_BYTES + len(data):
            self._refuse(431, Invalid("the head of the request is too long", f"stay below {HEAD_BYTES} bytes"))

    def on_headers_complete(self) -> None:
        size = self._head_bytes
        self._head_bytes, self._in_body, self._since = 0, True, None
        if (
            size > HEAD_BYTES and len(self.url) + sum(len(n) + len(v) + 4 for n, v in self.headers) > HEAD_BYTES
        ) or len(self.headers) > HEADERS:
            raise HeadTooLarge
        if not self.url.startswith(b"/"):  # a whole URL would carry a second host name
            raise HeadTooLarge
        if len(self.pipeline) >= PIPELINED:  # one read may hold thousands of small requests
            raise HeadTooLarge
        scope = cast(dict[str, Any], self.scope)
        scope["certificate"] = self._certificate
        scope["note_authenticated"] = None if self._authenticated else self.note_authenticated
        self._table.note_request(self)
        if self.url in self._calls() and self._plain():
            scope |= {"method": "POST", "raw_path": self.url}
            self._quick = bytearray()
        else:
            self._begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # fields after a chunked body are not of the head, and are dropped
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0  # what follows is counted anew: it may be a trailer without an end
        if self._quick is None:
            super().on_body(body)
            return
        self._quick += body
        if len(self._quick) > BODY_BYTES:
            self._begin()

    def on_message_complete(self) -> None:
        self._in_body, self._head_bytes = False, 0
        if self._quick is not None:
            if self._answered(cast(Any, self.app).quick, bytes(self._quick)):
                return
            self._begin()
        super().on_message_complete()

    def _answered(self, quick: Quick, body: bytes) -> bool:
        """Whether a call is answered, or will be, without a task."""
        scope = cast(dict[str, Any], self.scope)
        if self.url in quick.takers:
            soon = quick.begin(scope, body, self)
            if soon is None:
                return False
            self.note_authenticated()
            self._quick, self.cycle = None, cast(Any, soon)
            soon.start()
            return True
        answer = quick.answer(scope, body)
        if answer is None:
            return False
        self.note_authenticated()
        self._quick = None
        self._write(answer)
        return True

    def _calls(self) -> Collection[bytes]:
        app: Any = self.app
        return () if getattr(app, "draining", True) else app.quick.paths

    def _plain(self) -> bool:
        """A request that nothing stands before, and that asks for nothing but its answer."""
        return (
            self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and self.parser.should_keep_alive()
            and not self.parser.should_upgrade()
            and not self.expect_100_continue
            and getattr(self.cycle, "response_complete", True)
        )

    def _begin(self) -> None:
        """The ordinary way: a task, with what of the body is here."""
        body, self._quick = self._quick, None
        super().on_headers_complete()
        if getattr(self.app, "draining", False):
            self.cycle.keep_alive = False
        if body:
            super().on_body(bytes(body))

    def _write(self, answer: Answer, lines: bytes = b"", more: bytes = b"") -> None:
        """`lines`: its head, where it is not the usual one; `more` says that it is the last."""
        if self.transport.is_closing():
            return
        defaults = b"".join([b"%s: %s\r\n" % pair for pair in self.server_state.default_headers])
        head = lines or head_lines(answer)
        self.transport.write(b"".join((STATUS_LINE[answer.status], defaults, head, more, b"\r\n", answer.body)))
        if more:
            self.transport.close()
        self.on_response_complete()

    def finish(self, soon: Soon, answer: Answer) -> None:
        """Write what a lane gave; the last word where the connection is to end with it."""
        bare = soon.program and answer.status == OK and answer.kind == JSON and not answer.headers
        lines = bare_lines(answer) if bare else b""
        self._write(answer, lines, b"" if soon.keep_alive else b"connection: close\r\n")

    def part(self) -> None:
        """The answer that is being made is the last one here; a caller that is silent may ask once more."""
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """Asked to end. A caller that is silent is told so and left; TLS would wait half a minute for a last word."""
        if self._quick is not None:
            self._begin()
        super().shutdown()
        self.loop.call_later(FAREWELL_S, self._leave)

    def _leave(self) -> None:
        if getattr(self.cycle, "response_complete", True):
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """What cannot be parsed gets the same shape of answer as everything else."""
        del msg
        self._refuse(
            400, Invalid("that is not an HTTP request we can read", "check the client, and the size of its headers")
        )

    def _refuse(self, status: int, error: Invalid | Unavailable) -> None:
        if self.transport.is_closing():
            return
        answer = render(error)
        lines = head_lines(answer) + b"connection: close\r\n\r\n"
        self.transport.write(b"".join((STATUS_LINE[status], lines, answer.body)))
        self.transport.close()

    def _watch(self) -> None:
        """Close a connection whose head does not come to its end, or whose peer reads nothing. One timer a connection,
        not one a request."""
        if self._lost:
            return
        if self._is_stuck():
            self.transport.abort()
            return
        if self.transport.is_closing():
            self.loop.call_later(HEAD_S / 3, self._watch)
            return
        if self._since is not None and self.loop.time() - self._since > HEAD_S:
            self.transport.close()
        elif self._quick is not None:  # its body takes its time, and the ordinary way has an end for that
            self._begin()
        self.loop.call_later(HEAD_S / 3, self._watch)

    def _is_stuck(self) -> bool:
        """True when bytes that were written stay where they are, or a close does not end."""
        unsent, now = self.transport.get_write_buffer_size(), self.loop.time()
        if unsent != self._stuck_bytes or (not unsent and not self.transport.is_closing()):
            self._stuck_bytes, self._stuck_since = unsent, now
        return now - self._stuck_since > UNREAD_S

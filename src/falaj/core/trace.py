"""Traces: spans in W3C's form, told to an OpenTelemetry collector (OTLP/HTTP, JSON) where the environment names one.

Nothing here holds up or breaks the work it tells of: spans wait in a bounded line, a thread of its own sends them, and
what cannot be sent is counted and forgotten. Both planes use it; nothing is loaded before a first span is sent.

    OTEL_EXPORTER_OTLP_ENDPOINT   where the collector is; without it nothing is traced
    OTEL_EXPORTER_OTLP_HEADERS    what it asks for, name=value,…     OTEL_EXPORTER_OTLP_CERTIFICATE   whom TLS trusts
    OTEL_TRACES_SAMPLER_ARG       the share of requests without a trace of their own that begin one
"""

import atexit
import os
import random
import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from falaj.core.errors import Invalid
from falaj.core.release import VERSION

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
VARIABLE = "FALAJ_TRACEPARENT"
"""Where a process finds the trace it belongs to; TRACEPARENT is read as well."""
INTERNAL, SERVER = 1, 2
MOST_WAITING, MOST_AT_ONCE, MOST_TEXT = 4096, 512, 256
EVERY_S, FAREWELL_S, TIMEOUT_S = 1.0, 2.0, 10.0
PAUSES_S = (0.5, 1.0, 2.0, 4.0)
"""How long is waited before what could not be sent is sent again; then it is let go."""
_AGAIN = frozenset({429, 502, 503, 504})
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
Value = str | int | float | bool


class Link(NamedTuple):
    """A place in a trace: what a `traceparent` says."""

    trace: str
    span: str
    sampled: bool = True

    @property
    def header(self) -> str:
        """As it travels."""
        return f"00-{self.trace}-{self.span}-{'01' if self.sampled else '00'}"

    def below(self, *words: object) -> "Link":
        """A place below that everybody who knows the words finds by the same name."""
        from hashlib import blake2b

        return Link(self.trace, blake2b(repr(words).encode(), digest_size=8).hexdigest(), self.sampled)


def parse(text: "str | bytes | None") -> Link | None:
    """What a `traceparent` says; nothing where it is none."""
    if not text or len(text) > MOST_TEXT:
        return None
    found = _FORM.fullmatch(text if isinstance(text, str) else text.decode("latin-1"))
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not trace.strip("0") or not span.strip("0"):
        return None
    return Link(trace, span, bool(int(flags, 16) & 1))


_inside: ContextVar[Link | None] = ContextVar("trace", default=None)


def here() -> Link | None:
    """The trace that this call belongs to, or else this process."""
    found = _inside.get()
    return found or parse(os.environ.get(VARIABLE) or os.environ.get("TRACEPARENT"))


@contextmanager
def within(link: Link | None) -> Iterator[None]:
    """What is done inside belongs there."""
    before = _inside.set(link)
    try:
        yield
    finally:
        _inside.reset(before)


class Span:
    """Something that took time."""

    __slots__ = ("about", "began_ns", "ended_ns", "failed", "kind", "link", "name", "parent")

    def __init__(self, name: str, link: Link, parent: str = "", kind: int = INTERNAL) -> None:
        self.name, self.link, self.parent, self.kind = name, link, parent, kind
        self.began_ns, self.ended_ns = time.time_ns(), 0
        self.failed = ""
        """What went wrong; empty where nothing did."""
        self.about: dict[str, Value] = {}

    def plain(self) -> dict[str, Any]:
        """As OTLP says it."""
        said: dict[str, Any] = {
            "traceId": self.link.trace, "spanId": self.link.span, "name": self.name[:MOST_TEXT], "kind": self.kind,
            "startTimeUnixNano": str(self.began_ns), "endTimeUnixNano": str(max(self.began_ns, self.ended_ns)),
            "attributes": [{"key": key, "value": _value(value)} for key, value in self.about.items()],
        }  # fmt: skip
        if self.parent:
            said["parentSpanId"] = self.parent
        if self.failed:
            said["status"] = {"code": 2, "message": self.failed[:MOST_TEXT]}
        return said


class Target(NamedTuple):
    """Whom spans are told to, and as whom."""

    url: str
    service: str
    headers: tuple[tuple[str, str], ...] = ()
    authority: str = ""
    resource: tuple[tuple[str, str], ...] = ()


class Tracer:
    """Makes spans and sends them. One a process is enough; threads share it."""

    def __init__(self, target: Target, share: float = 1.0) -> None:
        self.target, self.share = target, share
        self.sent = self.dropped = 0
        self._waiting: deque[Span] = deque()
        self._more, self._ending, self._starting = threading.Event(), threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._connection: Any = None

    def begin(self, name: str, parent: Link | None = None, kind: int = INTERNAL) -> Span | None:
        """A span that goes on, where this trace is followed: as the caller says, or by chance where none does."""
        if parent is not None:
            return Span(name, Link(parent.trace, _id(8)), parent.span, kind) if parent.sampled else None
        if self.share < 1.0 and random.random() >= self.share:  # noqa: S311 # nosec B311 - a sample
            return None
        return Span(name, Link(_id(16), _id(8)), "", kind)

    @contextmanager
    def span(self, name: str, parent: Link | None = None, kind: int = INTERNAL) -> Iterator[Span | None]:
        """A span around what is done inside."""
        made = self.begin(name, parent, kind)
        if made is None:
            with within(parent):
                yield None
            return
        try:
            with within(made.link):
                yield made
        except BaseException as error:
            made.failed = made.failed or type(error).__name__
            raise
        finally:
            self.end(made)

    def end(self, span: Span, ended_ns: int = 0) -> None:
        """It is over, and is told soon; never waits."""
        span.ended_ns = ended_ns or time.time_ns()
        if len(self._waiting) >= MOST_WAITING or self._ending.is_set():
            self.dropped += 1
            return
        self._waiting.append(span)
        if self._thread is None or not self._thread.is_alive():
            self._start()
        if len(self._waiting) >= MOST_AT_ONCE:
            self._more.set()

    def close(self, within_s: float = FAREWELL_S) -> None:
        """Send what waits, as far as that takes no longer."""
        self._ending.set()
        self._more.set()
        if self._thread is not None:
            self._thread.join(within_s)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="falaj-trace", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            self._more.wait(EVERY_S)
            self._more.clear()
            while self._waiting:
                some = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_AT_ONCE))]
                self._send(some)
            if self._ending.is_set():
                return

    def _send(self, spans: list[Span]) -> None:
        import json

        body = json.dumps(_document(self.target, spans)).encode()
        for pause_s in (*PAUSES_S, 0.0):
            status = self._post(body)
            if 200 <= status < 300:
                self.sent += len(spans)
                return
            if status not in _AGAIN or not pause_s or self._ending.wait(pause_s):
                break
        self.dropped += len(spans)

    def _post(self, body: bytes) -> int:
        """The status; 503 where nobody answers."""
        import http.client

        try:
            self._connection = self._connection or self._connected()
            path = urlsplit(self.target.url).path
            headers = {"content-type": "application/json", "user-agent": f"falaj/{VERSION}"}
            self._connection.request("POST", path, body, headers | dict(self.target.headers))
            answer = self._connection.getresponse()
            answer.read(1 << 16)
            if not answer.isclosed():  # it talks more than it should
                self._hang_up()
            return int(answer.status)
        except (OSError, http.client.HTTPException):
            self._hang_up()
            return 503
        except ValueError:  # a header that cannot be sent will not be better the next time
            self._hang_up()
            return 400

    def _connected(self) -> Any:
        import http.client

        at = urlsplit(self.target.url)
        if at.scheme == "http":
            return http.client.HTTPConnection(at.hostname or "", at.port, timeout=TIMEOUT_S)
        import ssl

        context = ssl.create_default_context(cafile=self.target.authority or None)
        return http.client.HTTPSConnection(at.hostname or "", at.port, timeout=TIMEOUT_S, context=context)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


_made: dict[tuple[Target, float], Tracer] = {}


def tracer(service: str, environ: Mapping[str, str] = os.environ, *, share: float = 1.0) -> Tracer | None:
    """What the environment asks for: nothing, or the one tracer of this process; `share` where it does not say."""
    exact = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
    url = exact or environ.get(ENDPOINT, "")
    if not url or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    target = Target(
        url if exact else f"{url.rstrip('/')}/v1/traces",
        environ.get("OTEL_SERVICE_NAME") or service,
        _pairs(environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")),
        environ.get("OTEL_EXPORTER_OTLP_CERTIFICATE", ""),
        _pairs(environ.get("OTEL_RESOURCE_ATTRIBUTES", "")),
    )
    _check(target.url)
    key = (target, _share(environ.get("OTEL_TRACES_SAMPLER_ARG", ""), share))
    if key not in _made:
        _made[key] = Tracer(*key)
        atexit.register(_made[key].close)
    return _made[key]


def told() -> tuple[int, int]:
    """How many spans of this process were sent, and how many dropped."""
    return sum(one.sent for one in _made.values()), sum(one.dropped for one in _made.values())


def _check(url: str) -> None:
    try:
        at = urlsplit(url)
        good = at.scheme in ("http", "https") and bool(at.hostname) and at.port != 0
    except ValueError:
        good = False
    if not good:
        raise Invalid(f"{ENDPOINT} is no address of a collector", "for example http://127.0.0.1:4318")


def _share(text: str, otherwise: float) -> float:
    try:
        return min(1.0, max(0.0, float(text))) if text else otherwise
    except ValueError:
        raise Invalid("OTEL_TRACES_SAMPLER_ARG is no share", "from 0 to 1, for example 0.01") from None


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    cut = (one.partition("=") for one in text.split(",") if "=" in one)
    return tuple((name.strip(), unquote(value.strip())) for name, _, value in cut)


def _document(target: Target, spans: list[Span]) -> dict[str, Any]:
    about = {"service.name": target.service, "service.version": VERSION, **dict(target.resource)}
    resource = {"attributes": [{"key": key, "value": _value(value)} for key, value in about.items()]}
    told = [span.plain() for span in spans]
    return {
        "resourceSpans": [
            {"resource": resource, "scopeSpans": [{"scope": {"name": "falaj", "version": VERSION}, "spans": told}]}
        ]
    }


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": str(value)[:MOST_TEXT]}


def _id(size: int) -> str:
    return os.urandom(size).hex()

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

ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACEPARENT_VARIABLE = "FALAJ_TRACEPARENT"
"""Where a process finds the trace it belongs to; TRACEPARENT is read as well."""
SPAN_KIND_INTERNAL, SPAN_KIND_SERVER = 1, 2
MAX_QUEUED_SPANS, MAX_BATCH_SPANS, MAX_TEXT_CHARS = 4096, 512, 256
EXPORT_INTERVAL_S, CLOSE_TIMEOUT_S, REQUEST_TIMEOUT_S = 1.0, 2.0, 10.0
RETRY_PAUSES_S = (0.5, 1.0, 2.0, 4.0)
"""How long is waited before what could not be sent is sent again; then it is let go."""
_RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
_TRACEPARENT_PATTERN = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
AttributeValue = str | int | float | bool


class SpanContext(NamedTuple):
    """A place in a trace: what a `traceparent` says."""

    trace: str
    span: str
    sampled: bool = True

    @property
    def header(self) -> str:
        """As it travels."""
        return f"00-{self.trace}-{self.span}-{'01' if self.sampled else '00'}"

    def below(self, *name_parts: object) -> "SpanContext":
        """A place below that everybody who knows the words finds by the same name."""
        from hashlib import blake2b

        return SpanContext(self.trace, blake2b(repr(name_parts).encode(), digest_size=8).hexdigest(), self.sampled)


def parse_traceparent(text: "str | bytes | None") -> SpanContext | None:
    """What a `traceparent` says; nothing where it is none."""
    if not text or len(text) > MAX_TEXT_CHARS:
        return None
    match = _TRACEPARENT_PATTERN.fullmatch(text if isinstance(text, str) else text.decode("latin-1"))
    if match is None:
        return None
    version, trace_id, span_id, flags, extra_fields = match.groups()
    if version == "ff" or (version == "00" and extra_fields) or not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return SpanContext(trace_id, span_id, bool(int(flags, 16) & 1))


_current_context: ContextVar[SpanContext | None] = ContextVar("trace", default=None)


def get_current_context() -> SpanContext | None:
    """The trace that this call belongs to, or else this process."""
    context = _current_context.get()
    return context or parse_traceparent(os.environ.get(TRACEPARENT_VARIABLE) or os.environ.get("TRACEPARENT"))


@contextmanager
def use_span_context(context: SpanContext | None) -> Iterator[None]:
    """What is done inside belongs there."""
    token = _current_context.set(context)
    try:
        yield
    finally:
        _current_context.reset(token)


class TraceSpan:
    """Something that took time."""

    __slots__ = ("about", "began_ns", "ended_ns", "failed", "kind", "link", "name", "parent")

    def __init__(
        self, name: str, context: SpanContext, parent_span_id: str = "", kind: int = SPAN_KIND_INTERNAL
    ) -> None:
        self.name, self.link, self.parent, self.kind = name, context, parent_span_id, kind
        self.began_ns, self.ended_ns = time.time_ns(), 0
        self.failed = ""
        """What went wrong; empty where nothing did."""
        self.about: dict[str, AttributeValue] = {}

    def plain(self) -> dict[str, Any]:
        """As OTLP says it."""
        otlp_span: dict[str, Any] = {
            "traceId": self.link.trace, "spanId": self.link.span, "name": self.name[:MAX_TEXT_CHARS], "kind": self.kind,
            "startTimeUnixNano": str(self.began_ns), "endTimeUnixNano": str(max(self.began_ns, self.ended_ns)),
            "attributes": [{"key": key, "value": _to_otlp_value(value)} for key, value in self.about.items()],
        }  # fmt: skip
        if self.parent:
            otlp_span["parentSpanId"] = self.parent
        if self.failed:
            otlp_span["status"] = {"code": 2, "message": self.failed[:MAX_TEXT_CHARS]}
        return otlp_span


class OtlpTarget(NamedTuple):
    """Whom spans are told to, and as whom."""

    url: str
    service: str
    headers: tuple[tuple[str, str], ...] = ()
    authority: str = ""
    resource: tuple[tuple[str, str], ...] = ()


class Tracer:
    """Makes spans and sends them. One a process is enough; threads share it."""

    def __init__(self, target: OtlpTarget, sample_ratio: float = 1.0) -> None:
        self.target, self.share = target, sample_ratio
        self.sent = self.dropped = 0
        self._queued_spans: deque[TraceSpan] = deque()
        self._wake_event, self._closing_event, self._start_lock = threading.Event(), threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._connection: Any = None

    def begin(
        self, name: str, parent_context: SpanContext | None = None, kind: int = SPAN_KIND_INTERNAL
    ) -> TraceSpan | None:
        """A span that goes on, where this trace is followed: as the caller says, or by chance where none does."""
        if parent_context is not None:
            return (
                TraceSpan(name, SpanContext(parent_context.trace, _random_hex_id(8)), parent_context.span, kind)
                if parent_context.sampled
                else None
            )
        if self.share < 1.0 and random.random() >= self.share:  # noqa: S311 # nosec B311 - a sample
            return None
        return TraceSpan(name, SpanContext(_random_hex_id(16), _random_hex_id(8)), "", kind)

    @contextmanager
    def span(
        self, name: str, parent_context: SpanContext | None = None, kind: int = SPAN_KIND_INTERNAL
    ) -> Iterator[TraceSpan | None]:
        """A span around what is done inside."""
        span = self.begin(name, parent_context, kind)
        if span is None:
            with use_span_context(parent_context):
                yield None
            return
        try:
            with use_span_context(span.link):
                yield span
        except BaseException as error:
            span.failed = span.failed or type(error).__name__
            raise
        finally:
            self.end(span)

    def end(self, span: TraceSpan, end_ns: int = 0) -> None:
        """It is over, and is told soon; never waits."""
        span.ended_ns = end_ns or time.time_ns()
        if len(self._queued_spans) >= MAX_QUEUED_SPANS or self._closing_event.is_set():
            self.dropped += 1
            return
        self._queued_spans.append(span)
        if self._thread is None or not self._thread.is_alive():
            self._ensure_thread()
        if len(self._queued_spans) >= MAX_BATCH_SPANS:
            self._wake_event.set()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send what waits, as far as that takes no longer."""
        self._closing_event.set()
        self._wake_event.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _ensure_thread(self) -> None:
        with self._start_lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run_export_loop, name="falaj-trace", daemon=True)
                self._thread.start()

    def _run_export_loop(self) -> None:
        while True:
            self._wake_event.wait(EXPORT_INTERVAL_S)
            self._wake_event.clear()
            while self._queued_spans:
                batch = [self._queued_spans.popleft() for _ in range(min(len(self._queued_spans), MAX_BATCH_SPANS))]
                self._send_batch(batch)
            if self._closing_event.is_set():
                return

    def _send_batch(self, spans: list[TraceSpan]) -> None:
        import json

        body = json.dumps(_to_otlp_document(self.target, spans)).encode()
        for pause_s in (*RETRY_PAUSES_S, 0.0):
            status = self._post_body(body)
            if 200 <= status < 300:
                self.sent += len(spans)
                return
            if status not in _RETRYABLE_STATUSES or not pause_s or self._closing_event.wait(pause_s):
                break
        self.dropped += len(spans)

    def _post_body(self, body: bytes) -> int:
        """The status; 503 where nobody answers."""
        import http.client

        try:
            self._connection = self._connection or self._open_connection()
            path = urlsplit(self.target.url).path
            headers = {"content-type": "application/json", "user-agent": f"falaj/{VERSION}"}
            self._connection.request("POST", path, body, headers | dict(self.target.headers))
            response = self._connection.getresponse()
            response.read(1 << 16)
            if not response.isclosed():  # it talks more than it should
                self._close_connection()
            return int(response.status)
        except (OSError, http.client.HTTPException):
            self._close_connection()
            return 503
        except ValueError:  # a header that cannot be sent will not be better the next time
            self._close_connection()
            return 400

    def _open_connection(self) -> Any:
        import http.client

        address = urlsplit(self.target.url)
        if address.scheme == "http":
            return http.client.HTTPConnection(address.hostname or "", address.port, timeout=REQUEST_TIMEOUT_S)
        import ssl

        context = ssl.create_default_context(cafile=self.target.authority or None)
        return http.client.HTTPSConnection(
            address.hostname or "", address.port, timeout=REQUEST_TIMEOUT_S, context=context
        )

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


_tracers: dict[tuple[OtlpTarget, float], Tracer] = {}


def get_tracer(service: str, environ: Mapping[str, str] = os.environ, *, default_ratio: float = 1.0) -> Tracer | None:
    """What the environment asks for: nothing, or the one tracer of this process; `default_ratio` where it does not
    say."""
    traces_url = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
    url = traces_url or environ.get(ENDPOINT_VARIABLE, "")
    if not url or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    target = OtlpTarget(
        url if traces_url else f"{url.rstrip('/')}/v1/traces",
        environ.get("OTEL_SERVICE_NAME") or service,
        _parse_pairs(environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")),
        environ.get("OTEL_EXPORTER_OTLP_CERTIFICATE", ""),
        _parse_pairs(environ.get("OTEL_RESOURCE_ATTRIBUTES", "")),
    )
    _check_endpoint(target.url)
    key = (target, _parse_sample_ratio(environ.get("OTEL_TRACES_SAMPLER_ARG", ""), default_ratio))
    if key not in _tracers:
        _tracers[key] = Tracer(*key)
        atexit.register(_tracers[key].close)
    return _tracers[key]


def count_spans() -> tuple[int, int]:
    """How many spans of this process were sent, and how many dropped."""
    return sum(span_tracer.sent for span_tracer in _tracers.values()), sum(
        span_tracer.dropped for span_tracer in _tracers.values()
    )


def _check_endpoint(url: str) -> None:
    try:
        address = urlsplit(url)
        is_valid = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise Invalid(f"{ENDPOINT_VARIABLE} is no address of a collector", "for example http://127.0.0.1:4318")


def _parse_sample_ratio(text: str, default_ratio: float) -> float:
    try:
        return min(1.0, max(0.0, float(text))) if text else default_ratio
    except ValueError:
        raise Invalid("OTEL_TRACES_SAMPLER_ARG is no share", "from 0 to 1, for example 0.01") from None


def _parse_pairs(text: str) -> tuple[tuple[str, str], ...]:
    partitions = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return tuple((name.strip(), unquote(value.strip())) for name, _, value in partitions)


def _to_otlp_document(target: OtlpTarget, spans: list[TraceSpan]) -> dict[str, Any]:
    resource_attributes = {"service.name": target.service, "service.version": VERSION, **dict(target.resource)}
    resource = {
        "attributes": [{"key": key, "value": _to_otlp_value(value)} for key, value in resource_attributes.items()]
    }
    otlp_spans = [span.plain() for span in spans]
    return {
        "resourceSpans": [
            {
                "resource": resource,
                "scopeSpans": [{"scope": {"name": "falaj", "version": VERSION}, "spans": otlp_spans}],
            }
        ]
    }


def _to_otlp_value(value: AttributeValue) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": str(value)[:MAX_TEXT_CHARS]}


def _random_hex_id(size: int) -> str:
    return os.urandom(size).hex()

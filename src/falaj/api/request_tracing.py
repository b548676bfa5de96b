"""Traces at the edge: a span around every verb where a collector is named, and the caller's trace handed on anyway."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from falaj.core.errors import FalajError
from falaj.core.tracing import SPAN_KIND_SERVER, Tracer, get_tracer, parse_traceparent, use_span_context

StartSpan = Callable[[str, Mapping[bytes, bytes], str], AbstractContextManager[Any]]
_NO_SPAN = nullcontext()


def create_span_starter(environ: Mapping[str, str] = os.environ) -> StartSpan:
    """The span maker that the environment asks for. Spans carry action, route, tenant and status; no argument, person
    or data."""
    collector = get_tracer("falaj", environ)
    return _continue_trace if collector is None else partial(_trace_operation, collector)


def _continue_trace(action: str, headers: Mapping[bytes, bytes], tenant: str) -> AbstractContextManager[Any]:
    """Nobody listens here; what the call begins elsewhere may still be traced."""
    del action, tenant
    span_context = parse_traceparent(headers.get(b"traceparent"))
    return _NO_SPAN if span_context is None else use_span_context(span_context)


@contextmanager
def _trace_operation(collector: Tracer, action: str, headers: Mapping[bytes, bytes], tenant: str) -> Iterator[None]:
    with collector.span(action, parse_traceparent(headers.get(b"traceparent")), SPAN_KIND_SERVER) as span:
        attributes = {} if span is None else span.about
        attributes.update({"http.route": f"/v1/{action.replace('.', '/')}", "falaj.tenant": tenant})
        try:
            yield
        except FalajError as error:
            attributes["http.response.status_code"] = error.status
            raise
        attributes["http.response.status_code"] = 200

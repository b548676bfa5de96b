"""Traces at the edge: a span around every verb where a collector is named, and the caller's trace handed on anyway."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from falaj.core.errors import FalajError
from falaj.core.trace import SERVER, Tracer, parse, tracer, within

Span = Callable[[str, Mapping[bytes, bytes], str], AbstractContextManager[Any]]
_NOTHING = nullcontext()


def make_span(environ: Mapping[str, str] = os.environ) -> Span:
    """The span maker that the environment asks for. Spans carry action, route, tenant and status; no argument, person
    or data."""
    found = tracer("falaj", environ)
    return _carried if found is None else partial(_spanned, found)


def _carried(action: str, headers: Mapping[bytes, bytes], tenant: str) -> AbstractContextManager[Any]:
    """Nobody listens here; what the call begins elsewhere may still be traced."""
    del action, tenant
    link = parse(headers.get(b"traceparent"))
    return _NOTHING if link is None else within(link)


@contextmanager
def _spanned(collector: Tracer, action: str, headers: Mapping[bytes, bytes], tenant: str) -> Iterator[None]:
    with collector.span(action, parse(headers.get(b"traceparent")), SERVER) as span:
        attributes = {} if span is None else span.about
        attributes.update({"http.route": f"/v1/{action.replace('.', '/')}", "falaj.tenant": tenant})
        try:
            yield
        except FalajError as error:
            attributes["http.response.status_code"] = error.status
            raise
        attributes["http.response.status_code"] = 200

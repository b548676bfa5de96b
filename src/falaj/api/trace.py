"""Traces at the edge: a span around every verb where a collector is named, and the caller's trace handed on anyway."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from falaj.core.trace import SERVER, Tracer, parse, tracer, within

Span = Callable[[str, Mapping[bytes, bytes]], AbstractContextManager[Any]]
_NOTHING = nullcontext()


def make_span(environ: Mapping[str, str] = os.environ) -> Span:
    """The span maker that the environment asks for. Spans carry the action's name; no argument, caller or thing."""
    found = tracer("falaj", environ)
    return _carried if found is None else partial(_spanned, found)


def _carried(action: str, headers: Mapping[bytes, bytes]) -> AbstractContextManager[Any]:
    """Nobody listens here; what the call begins elsewhere may still be traced."""
    del action
    link = parse(headers.get(b"traceparent"))
    return _NOTHING if link is None else within(link)


def _spanned(to: Tracer, action: str, headers: Mapping[bytes, bytes]) -> AbstractContextManager[Any]:
    return to.span(action, parse(headers.get(b"traceparent")), SERVER)

"""Traces: OpenTelemetry spans around verbs, when OTEL_EXPORTER_OTLP_ENDPOINT is set and the `otel` extra is there."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from falaj.core.errors import Invalid

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
Span = Callable[[str, Mapping[bytes, bytes]], AbstractContextManager[Any]]


def make_span(environ: Mapping[str, str] = os.environ) -> Span | None:
    """The span maker that the environment asks for. Spans carry the action's name; no argument, caller or thing."""
    endpoint = environ.get(ENDPOINT, "")
    if not endpoint:
        return None
    try:
        sdk, export = import_module("opentelemetry.sdk.trace"), import_module("opentelemetry.sdk.trace.export")
        otlp = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        resources = import_module("opentelemetry.sdk.resources")
        carried = import_module("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator()
    except ImportError as error:
        raise Invalid(
            f"{ENDPOINT} is set and OpenTelemetry is not installed", 'install it: pip install "falaj[otel]"'
        ) from error
    provider = sdk.TracerProvider(resource=resources.Resource.create({"service.name": "falaj"}))
    provider.add_span_processor(
        export.BatchSpanProcessor(otlp.OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces"))
    )
    tracer = provider.get_tracer("falaj")

    def span(action: str, headers: Mapping[bytes, bytes]) -> AbstractContextManager[Any]:
        parent = carried.extract({"traceparent": headers.get(b"traceparent", b"").decode("ascii", "replace")})
        made: AbstractContextManager[Any] = tracer.start_as_current_span(action, context=parent)
        return made

    return span

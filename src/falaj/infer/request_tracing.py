"""Traces of requests: how long each waited, ran with whom, and took to be answered. Off unless a collector is named."""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from falaj.core.errors import FalajError
from falaj.core.tracing import SPAN_KIND_SERVER, Tracer, TraceSpan, get_tracer, parse_traceparent
from falaj.infer.request_queue import ResponseCallback
from falaj.oip.tensors import InferenceRequest, InferenceResponse

if TYPE_CHECKING:
    from falaj.infer.batcher import BatchRun
    from falaj.infer.engine import InferenceEngine

TRACED_SHARE = 0.01
"""The share of requests without a trace of their own that begin one; those of a gateway follow its choice."""


class RequestTracing:
    """What a door asks for every request; there is none where nothing is traced."""

    def __init__(self, tracer_target: Tracer, get_run: "Callable[[str, str], BatchRun | None]") -> None:
        self._tracer, self._get_run = tracer_target, get_run

    def noting(
        self, request: InferenceRequest, headers: Mapping[bytes, bytes], is_trusted: bool, on_done: ResponseCallback
    ) -> ResponseCallback:
        """The same `on_done`, which also tells of this request where it is traced."""
        parent = parse_traceparent(headers.get(b"traceparent"))
        if parent is None and is_trusted:
            return on_done
        request_span = self._tracer.begin("infer", parent, SPAN_KIND_SERVER)
        if request_span is None:
            return on_done
        span, started_at = request_span, time.monotonic()

        def trace_and_forward(outcome: InferenceResponse | FalajError) -> None:
            batch_run = self._get_run(request.model, request.version)
            on_done(outcome)
            ended_at = time.monotonic()
            span.about = {"falaj.model": request.model, "falaj.version": request.version}
            if isinstance(outcome, FalajError):
                span.failed = outcome.code
            if batch_run is not None and batch_run.ended >= started_at:
                span.about |= {
                    "falaj.batch_requests": _count_requests(batch_run),
                    "falaj.batch_rows": _count_rows(batch_run),
                }
                for name, phase_start, phase_end in (
                    ("queue", started_at, batch_run.began),
                    ("compute", batch_run.began, batch_run.ended),
                    ("deliver", batch_run.ended, ended_at),
                ):
                    self._send_phase(span, name, phase_start - started_at, phase_end - started_at)
            self._tracer.end(span)

        return trace_and_forward

    def _send_phase(self, request_span: TraceSpan, name: str, start_s: float, end_s: float) -> None:
        phase_span = TraceSpan(name, request_span.link.below(request_span.link.span, name), request_span.link.span)
        phase_span.began_ns = request_span.began_ns + int(start_s * 1e9)
        self._tracer.end(phase_span, request_span.began_ns + int(end_s * 1e9))


def create_tracing(engine: "InferenceEngine") -> RequestTracing | None:
    """What the environment asks for."""
    span_tracer = get_tracer("falaj-infer", default_ratio=TRACED_SHARE)
    return RequestTracing(span_tracer, engine.ran) if span_tracer is not None else None


def _count_requests(batch_run: "BatchRun") -> int:
    return sum(member.ask.num for member in batch_run.members)


def _count_rows(batch_run: "BatchRun") -> int:
    return sum(member.rows for member in batch_run.members)

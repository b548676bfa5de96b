"""Traces of jobs: the trace a job was asked for in, handed to its attempts; and what they say of it, told on.

Attempts write spans to their outbox and the platform sends them: nodes need no way to the collector, and no password of
it. What they write is of their own trace, whatever it claims.
"""

import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, TypeVar
from urllib.parse import urlsplit

from falaj.core import tracing
from falaj.core.tracing import SpanContext, Tracer, TraceSpan
from falaj.jobs.records import ENDED_STATES, JobBody
from falaj.store.records import LedgerRecord

F = TypeVar("F", bound=Callable[..., Any])
MAX_SPANS, MAX_NAME = 500, 80
PHASES = frozenset({"stage in", "run", "publish"})
"""What the launcher calls the spans of every attempt."""
_SPAN = re.compile("[0-9a-f]{16}", re.ASCII)
_PASSED_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_SAMPLER_ARG")


def get_trace_header() -> str:
    """What a job that is asked for now keeps."""
    link = tracing.get_current_context()
    return link.header if link is not None else ""


def build_trace_environment(body: JobBody) -> dict[str, str]:
    """What an attempt finds in its environment: its place in the trace, and where a replica's own spans go."""
    passed_variables = {name: os.environ[name] for name in _PASSED_VARIABLES if os.environ.get(name)}
    if (
        "@" in urlsplit(passed_variables.get(_PASSED_VARIABLES[0], "")).netloc
    ):  # a password in it is not for everybody's programs
        passed_variables = {}
    link = tracing.parse_traceparent(body.get("trace"))
    return (
        passed_variables
        if link is None
        else {**passed_variables, tracing.TRACEPARENT_VARIABLE: link.below(body["attempt"]["id"]).header}
    )


def trace_phase(name: str) -> Callable[[F], F]:
    """Marks what the platform does for an attempt; its third argument is the job's record."""

    def decorate_work(function: F) -> F:
        @wraps(function)
        def run_timed(self: Any, ctx: Any, record: LedgerRecord, *args: Any) -> Any:
            tracer_link = _find_tracer(record.body)
            if tracer_link is None:
                return function(self, ctx, record, *args)
            tracer, link = tracer_link
            with tracer.span(name, link.below(record.body["attempt"]["id"])):
                return function(self, ctx, record, *args)

        return run_timed  # type: ignore[return-value]

    return decorate_work


def send_spans(record: LedgerRecord, facts: Iterable[Mapping[str, Any]]) -> None:
    """Send on the spans among what an attempt said; of one that reads labelled data, without texts it chose."""
    span_facts = [fact for fact in facts if fact.get("kind") == "span"]
    tracer_link = _find_tracer(record.body) if span_facts else None
    if tracer_link is None:
        return
    tracer, link = tracer_link
    attempt, now = record.body["attempt"], time.time()
    for fact in span_facts[:MAX_SPANS]:
        span = _parse_span(
            fact if record.label.is_open else _without_texts(fact),
            link.below(attempt["id"]),
            (record.body["submitted"], now + 60.0),
        )
        if span is not None:
            tracer.end(span, span.ended_ns)


def _without_texts(fact: Mapping[str, Any]) -> dict[str, Any]:
    name, failed = fact.get("name", ""), fact.get("failed")
    return {**fact, "name": name if name in PHASES else "span", "failed": "failed" if failed else ""}


def send_attempt_spans(before: JobBody, after: JobBody, now: float) -> None:
    """An attempt is over: how long it waited for its place, and how long it lasted."""
    tracer_link = _find_tracer(before)
    if tracer_link is None:
        return
    tracer, link = tracer_link
    attempt, attempt_summary = before["attempt"], after["attempts"][-1]
    attempt_span = TraceSpan("attempt", link.below(attempt["id"]), link.span)
    wait_span = TraceSpan("wait", link.below(attempt["id"], "wait"), link.span)
    wait_span.began_ns, attempt_span.began_ns = _to_ns(get_waiting_since(before)), _to_ns(attempt["admitted"])
    attempt_span.about = {
        "falaj.attempt": attempt["id"],
        "falaj.number": before["number"],
        "falaj.queue": before["queue"],
    }
    if after["state"] in ENDED_STATES:
        attempt_span.about["falaj.state"] = after["state"]
    outcome, _, _ = attempt_summary["outcome"].partition(":")  # after that stands what the program said
    attempt_span.failed = "" if outcome == "succeeded" else outcome or "failed"
    tracer.end(wait_span, attempt_span.began_ns)
    tracer.end(attempt_span, _to_ns(now))


def get_waiting_since(body: JobBody) -> float:
    """Since when a job waited for the attempt it has."""
    return float(body["attempts"][-1]["ended"] if body["attempts"] else body["submitted"])


def _find_tracer(body: JobBody) -> tuple[Tracer, SpanContext] | None:
    """Who is told of this job, and where it stands in its trace; nothing where nobody follows it."""
    link = tracing.parse_traceparent(body.get("trace"))
    if link is None or not link.sampled or not body["attempt"]:
        return None
    tracer = tracing.get_tracer("falaj")
    return (tracer, link) if tracer is not None else None


def _parse_span(fact: Mapping[str, Any], attempt: SpanContext, bounds: tuple[float, float]) -> TraceSpan | None:
    began_at, ended_at = fact.get("began"), fact.get("ended")
    times = (began_at, ended_at)
    if not all(isinstance(at, (int, float)) and math.isfinite(at) and bounds[0] <= at <= bounds[1] for at in times):
        return None
    slot, name = fact.get("slot"), str(fact.get("name", ""))[:MAX_NAME]
    own_id, parent = (_SPAN.fullmatch(str(fact.get(key, ""))) for key in ("span", "parent"))
    link = attempt._replace(span=own_id[0]) if own_id else attempt.below(slot, fact.get("rank"), name, began_at)
    span = TraceSpan(name or "span", link, parent[0] if parent else attempt.span)
    span.began_ns, span.ended_ns = _to_ns(float(began_at or 0)), _to_ns(float(ended_at or 0))
    span.failed = str(fact.get("failed", ""))[: tracing.MAX_TEXT_CHARS]
    span.about = {f"falaj.{key}": int(fact[key]) for key in ("slot", "rank") if isinstance(fact.get(key), int)}
    return span


def _to_ns(seconds: float) -> int:
    return int(seconds * 1e6) * 1000

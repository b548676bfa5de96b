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

from falaj.core import trace
from falaj.core.trace import Link, Span, Tracer
from falaj.jobs.records import OVER, Body
from falaj.store.records import Record

F = TypeVar("F", bound=Callable[..., Any])
MOST_AT_ONCE, MOST_NAME = 500, 80
PHASES = frozenset({"stage in", "run", "publish"})
"""What the launcher calls the spans of every attempt."""
_SPAN = re.compile("[0-9a-f]{16}", re.ASCII)
_PASSED_ON = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_SAMPLER_ARG")


def kept() -> str:
    """What a job that is asked for now keeps."""
    link = trace.here()
    return link.header if link is not None else ""


def environment(body: Body) -> dict[str, str]:
    """What an attempt finds in its environment: its place in the trace, and where a replica's own spans go."""
    told = {name: os.environ[name] for name in _PASSED_ON if os.environ.get(name)}
    if "@" in urlsplit(told.get(_PASSED_ON[0], "")).netloc:  # a password in it is not for everybody's programs
        told = {}
    link = trace.parse(body.get("trace"))
    return told if link is None else {**told, trace.VARIABLE: link.below(body["attempt"]["id"]).header}


def phase(name: str) -> Callable[[F], F]:
    """Marks what the platform does for an attempt; its third argument is the job's record."""

    def mark(work: F) -> F:
        @wraps(work)
        def timed(self: Any, ctx: Any, record: Record, *more: Any) -> Any:
            found = _followed(record.body)
            if found is None:
                return work(self, ctx, record, *more)
            to, link = found
            with to.span(name, link.below(record.body["attempt"]["id"])):
                return work(self, ctx, record, *more)

        return timed  # type: ignore[return-value]

    return mark


def heard(record: Record, facts: Iterable[Mapping[str, Any]]) -> None:
    """Send on the spans among what an attempt said; of one that reads labelled data, without texts it chose."""
    told = [fact for fact in facts if fact.get("kind") == "span"]
    found = _followed(record.body) if told else None
    if found is None:
        return
    to, link = found
    attempt, now = record.body["attempt"], time.time()
    for fact in told[:MOST_AT_ONCE]:
        span = _span(
            fact if record.label.is_open else _without_texts(fact),
            link.below(attempt["id"]),
            (record.body["submitted"], now + 60.0),
        )
        if span is not None:
            to.end(span, span.ended_ns)


def _without_texts(fact: Mapping[str, Any]) -> dict[str, Any]:
    name, failed = fact.get("name", ""), fact.get("failed")
    return {**fact, "name": name if name in PHASES else "span", "failed": "failed" if failed else ""}


def ended(before: Body, after: Body, now: float) -> None:
    """An attempt is over: how long it waited for its place, and how long it lasted."""
    found = _followed(before)
    if found is None:
        return
    to, link = found
    attempt, tried = before["attempt"], after["attempts"][-1]
    whole = Span("attempt", link.below(attempt["id"]), link.span)
    waited = Span("wait", link.below(attempt["id"], "wait"), link.span)
    waited.began_ns, whole.began_ns = _ns(asked(before)), _ns(attempt["admitted"])
    whole.about = {"falaj.attempt": attempt["id"], "falaj.number": before["number"], "falaj.queue": before["queue"]}
    if after["state"] in OVER:
        whole.about["falaj.state"] = after["state"]
    outcome, _, _ = tried["outcome"].partition(":")  # after that stands what the program said
    whole.failed = "" if outcome == "succeeded" else outcome or "failed"
    to.end(waited, whole.began_ns)
    to.end(whole, _ns(now))


def asked(body: Body) -> float:
    """Since when a job waited for the attempt it has."""
    return float(body["attempts"][-1]["ended"] if body["attempts"] else body["submitted"])


def _followed(body: Body) -> tuple[Tracer, Link] | None:
    """Who is told of this job, and where it stands in its trace; nothing where nobody follows it."""
    link = trace.parse(body.get("trace"))
    if link is None or not link.sampled or not body["attempt"]:
        return None
    to = trace.tracer("falaj")
    return (to, link) if to is not None else None


def _span(fact: Mapping[str, Any], attempt: Link, bounds: tuple[float, float]) -> Span | None:
    began, last = fact.get("began"), fact.get("ended")
    times = (began, last)
    if not all(isinstance(at, (int, float)) and math.isfinite(at) and bounds[0] <= at <= bounds[1] for at in times):
        return None
    slot, name = fact.get("slot"), str(fact.get("name", ""))[:MOST_NAME]
    own, parent = (_SPAN.fullmatch(str(fact.get(key, ""))) for key in ("span", "parent"))
    link = attempt._replace(span=own[0]) if own else attempt.below(slot, fact.get("rank"), name, began)
    made = Span(name or "span", link, parent[0] if parent else attempt.span)
    made.began_ns, made.ended_ns = _ns(float(began or 0)), _ns(float(last or 0))
    made.failed = str(fact.get("failed", ""))[: trace.MOST_TEXT]
    made.about = {f"falaj.{key}": int(fact[key]) for key in ("slot", "rank") if isinstance(fact.get(key), int)}
    return made


def _ns(at: float) -> int:
    return int(at * 1e6) * 1000

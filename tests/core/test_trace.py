"""Traces: what a traceparent says, and spans that reach a collector without ever holding anybody up."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.core import tracing
from falaj.core.errors import Invalid
from falaj.core.tracing import OtlpTarget, SpanContext, Tracer, TraceSpan
from tests.collector import Collector

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"00-{TRACE}-{SPAN}-01", SpanContext(TRACE, SPAN)),
        (f"00-{TRACE}-{SPAN}-00".encode(), SpanContext(TRACE, SPAN, False)),
        (f"00-{TRACE}-{SPAN}-03", SpanContext(TRACE, SPAN)),
        (f"cc-{TRACE}-{SPAN}-01-more-to-come", SpanContext(TRACE, SPAN)),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE}-{SPAN}-1", None),
        ("00-" + "\u0661" * 32 + f"-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}-01\n", None),
        ("x" * 10_000, None),
        ("", None),
        (None, None),
        (b"\xff\xfe", None),
    ],
)
def test_a_traceparent_is_read_as_w3c_says(text: str | bytes | None, found: SpanContext | None) -> None:
    assert tracing.parse_traceparent(text) == found


HEX = [st.binary(min_size=size, max_size=size).map(bytes.hex) for size in (1, 16, 8, 1)]


@given(st.binary(max_size=60) | st.tuples(*HEX).map("-".join))
def test_whatever_comes_is_a_place_that_can_be_written_again_or_nothing(text: str | bytes) -> None:
    link = tracing.parse_traceparent(text)
    assert link is None or tracing.parse_traceparent(link.header) == link


def test_a_place_is_found_in_the_context_and_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = SpanContext(TRACE, SPAN), SpanContext(TRACE, "1" * 16, False)
    assert tracing.get_current_context() is None
    monkeypatch.setenv("FALAJ_TRACEPARENT", outer.header)
    assert tracing.get_current_context() == outer
    with tracing.use_span_context(inner):
        assert tracing.get_current_context() == inner
    assert tracing.get_current_context() == outer
    assert outer.below("a", 1) == outer.below("a", 1) != outer.below("a", 2)
    assert tracing.parse_traceparent(outer.below("a").header) is not None


def made(url: str, **more: str) -> Tracer:
    found = tracing.get_tracer("test", {tracing.ENDPOINT_VARIABLE: url, **more})
    assert found is not None
    return found


def test_spans_reach_the_collector_whole() -> None:
    more = {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b,y=2", "OTEL_RESOURCE_ATTRIBUTES": "site=dxb"}

    def work(to: Tracer) -> None:
        with to.span("outer", SpanContext(TRACE, SPAN)) as outer:
            assert outer is not None
            outer.about = {"text": "t" * 1000, "number": 1 << 40, "share": 0.5, "flag": True}
            with to.span("inner", tracing.get_current_context()):
                pass
            raise KeyError("a secret of somebody")

    with Collector() as collector:
        to = made(f"{collector.url}/", **more)
        assert to is made(f"{collector.url}/", **more)
        with pytest.raises(KeyError):
            work(to)
        with to.span("not followed", SpanContext(TRACE, SPAN, False)) as none:
            assert none is None
            assert tracing.get_current_context() == SpanContext(TRACE, SPAN, False)
        to.close(30.0)
    (path, headers), *_ = collector.heads
    assert (path, headers["x-key"], headers["content-type"]) == ("/v1/traces", "a b", "application/json")
    inner, outer = collector.spans
    assert [inner["name"], outer["name"], outer["parentSpanId"]] == ["inner", "outer", SPAN]
    assert (inner["parentSpanId"], inner["traceId"]) == (outer["spanId"], TRACE)
    assert outer["status"] == {"code": 2, "message": "KeyError"}
    known = outer["attributes"]
    assert (len(known["text"]), known["number"], known["share"], known["flag"]) == (256, str(1 << 40), 0.5, True)
    assert (to.sent, to.dropped) == (2, 0)


def test_what_may_work_later_is_sent_again_and_what_will_not_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "RETRY_PAUSES_S", (0.01, 0.01))
    monkeypatch.setattr(tracing, "EXPORT_INTERVAL_S", 0.05)
    with Collector(503, 429) as collector:
        to = made(collector.url)
        to.end(TraceSpan("late", SpanContext(TRACE, SPAN)))
        assert collector.until(lambda one: one.named("late"))
        collector.answers += [400]
        to.end(TraceSpan("refused", SpanContext(TRACE, SPAN)))
        collector.until(lambda _: to.dropped)
        collector.answers += [503] * 3
        to.end(TraceSpan("too often", SpanContext(TRACE, SPAN)))
        collector.until(lambda _: to.dropped == 2)
        to.close(30.0)
    assert [span["name"] for span in collector.spans] == ["late"]


def test_nobody_waits_for_a_collector_that_is_away() -> None:
    to = Tracer(OtlpTarget("http://127.0.0.1:9/v1/traces", "test"))
    for _ in range(tracing.MAX_QUEUED_SPANS * 2):
        to.end(TraceSpan("one", SpanContext(TRACE, SPAN)))
    assert to.dropped >= tracing.MAX_QUEUED_SPANS - 2 * tracing.MAX_BATCH_SPANS
    to.close(5.0)
    assert to.sent == 0
    to.end(TraceSpan("after the end", SpanContext(TRACE, SPAN)))


def test_what_cannot_even_be_asked_is_let_go() -> None:
    with Collector() as collector:
        to = made(collector.url, OTEL_EXPORTER_OTLP_HEADERS="x=a%0d%0ab")
        to.end(TraceSpan("one", SpanContext(TRACE, SPAN)))
        to.close(30.0)
        assert (to.sent, to.dropped, collector.heads) == (0, 1, [])


def test_a_share_of_those_without_a_trace_begins_one() -> None:
    to = Tracer(OtlpTarget("http://127.0.0.1:9", "test"), sample_ratio=0.25)
    num = sum(to.begin("one") is not None for _ in range(2000))
    assert 350 < num < 650
    assert to.begin("one", SpanContext(TRACE, SPAN)) is not None
    assert to.begin("one", SpanContext(TRACE, SPAN, False)) is None


@pytest.mark.parametrize(
    "environ",
    [
        {tracing.ENDPOINT_VARIABLE: "ftp://x"},
        {tracing.ENDPOINT_VARIABLE: "collector:4318"},
        {tracing.ENDPOINT_VARIABLE: "http://"},
        {tracing.ENDPOINT_VARIABLE: "http://[::1"},
        {tracing.ENDPOINT_VARIABLE: "http://x:99999"},
        {tracing.ENDPOINT_VARIABLE: "http://x", "OTEL_TRACES_SAMPLER_ARG": "often"},
    ],
)
def test_an_environment_that_makes_no_sense_is_told_so(environ: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        tracing.get_tracer("test", environ)
    assert tracing.get_tracer("test", {}) is None
    assert tracing.get_tracer("test", {**environ, "OTEL_SDK_DISABLED": "true"}) is None


def test_a_process_that_ends_tells_what_it_has() -> None:
    code = "from falaj.core.tracing import *; t = get_tracer('test')\nwith t.span('last words'): pass"
    with Collector() as collector:
        env = {**os.environ, tracing.ENDPOINT_VARIABLE: collector.url}
        subprocess.run([sys.executable, "-c", code], check=True, env=env, timeout=60)
        assert collector.named("last words")

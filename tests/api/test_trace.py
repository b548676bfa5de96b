"""Traces at the edge: spans around verbs where a collector is named, the caller's trace handed on anyway."""

import subprocess
import sys

import httpx
import pytest

from falaj.api.request_tracing import create_span_starter
from falaj.core import tracing
from tests.api.small import AMAL_TOKEN, SmallHouse, serving
from tests.collector import Collector

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_without_a_collector_nothing_is_sent_and_the_callers_trace_goes_on() -> None:
    span = create_span_starter({})
    with span("zones.list", {}, "bank"):
        assert tracing.get_current_context() is None
    with span("zones.list", {b"traceparent": PARENT.encode()}, "bank"):
        assert tracing.get_current_context() == tracing.parse_traceparent(PARENT)
    assert tracing.get_current_context() is None


def test_the_command_and_the_server_load_no_http_client_for_it() -> None:
    code = "import sys, falaj.core.tracing as t; t.get_tracer('x', {}); print('http.client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_verb_is_a_span_in_its_callers_trace_and_says_nothing_of_what_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Collector() as collector:
        monkeypatch.setenv(tracing.ENDPOINT_VARIABLE, collector.url)
        with serving(SmallHouse()) as server, httpx.Client(base_url=server.url, trust_env=False) as http:
            headers = {"authorization": f"Bearer {AMAL_TOKEN}", "traceparent": PARENT}
            given = {"name": "dataset:a/secret-name", "text": "secret text"}
            assert http.post("/v1/echo/say", json=given, headers=headers).status_code == 200
        (span,) = collector.until(lambda one: one.named("echo.say"))
    assert (span["traceId"], span["parentSpanId"]) == (PARENT[3:35], PARENT[36:52])
    assert (span["kind"], span["service"]) == (2, "falaj")
    assert span["attributes"] == {
        "http.route": "/v1/echo/say",
        "falaj.tenant": "bank",
        "http.response.status_code": "200",
    }
    assert "secret" not in str(collector.spans)

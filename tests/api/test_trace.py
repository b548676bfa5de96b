"""Traces: off without an endpoint, sent to it with one, and carrying no argument."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from falaj.api.trace import make_span

STORY = """
from falaj.api.trace import make_span
span = make_span()
with span("zones.list", {b"traceparent": b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}):
    pass
"""


def test_without_an_endpoint_nothing_is_loaded() -> None:
    assert make_span({}) is None
    code = "import sys, falaj.api.trace as t; t.make_span({}); print([m for m in sys.modules if m[:8] == 'opentele'])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_span_reaches_the_collector_in_its_callers_trace() -> None:
    pytest.importorskip("opentelemetry.sdk")
    got: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = threading.Thread(target=collector.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}", "NO_PROXY": "127.0.0.1"}
        subprocess.run([sys.executable, "-c", STORY], check=True, env=env, timeout=60)
        collector.shutdown()
        thread.join()
    ((path, body),) = got
    assert path == "/v1/traces"
    assert b"zones.list" in body
    assert bytes.fromhex("0af7651916cd43dd8448eb211c80319c") in body

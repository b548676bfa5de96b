"""A collector of traces: it takes OTLP/HTTP in JSON, reads it by OpenTelemetry's own messages, and keeps the spans."""

import base64
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PATIENCE_S = 60.0


class Collector:
    """`with Collector() as one:` listens at one.url; `answers` are the statuses it gives first, one a request."""

    def __init__(self, *answers: int) -> None:
        self.answers, self.spans, self.heads = list(answers), [], []  # type: ignore[var-annotated]
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = outer.answers.pop(0) if outer.answers else 200
                outer.heads.append((self.path, dict(self.headers)))
                if status == 200:
                    outer.spans += understood(body)
                self.send_response(status)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> "Collector":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def named(self, name: str) -> list[dict[str, Any]]:
        """The spans of this name so far."""
        return [span for span in tuple(self.spans) if span["name"] == name]

    def until(self, holds: Callable[["Collector"], Any]) -> Any:
        """What `holds` gives, once that is something."""
        end = time.monotonic() + PATIENCE_S
        while not (found := holds(self)):
            assert time.monotonic() < end, [span["name"] for span in self.spans]
            time.sleep(0.02)
        return found


def understood(body: bytes) -> list[dict[str, Any]]:
    """The spans of a request, which must be one by the protocol's own messages; ids as they are written."""
    said = json.loads(body)
    found = []
    for group in said["resourceSpans"]:
        about = {one["key"]: one["value"]["stringValue"] for one in group["resource"]["attributes"]}
        for scope in group["scopeSpans"]:
            for span in scope["spans"]:
                known = {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}
                found.append({**span, "attributes": known, "service": about["service.name"]})
                assert len(span["traceId"]) == 32
                assert len(span["spanId"]) == 16
                assert int(span["endTimeUnixNano"]) >= int(span["startTimeUnixNano"])
                # JSON of protobuf has bytes in base64; OTLP has these in hex.
                for key in ("traceId", "spanId", "parentSpanId"):
                    if key in span:
                        span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    json_format.Parse(json.dumps(said), ExportTraceServiceRequest())
    return found

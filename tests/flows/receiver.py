"""A receiver of webhooks on a real socket: it remembers what came and answers as it is told to."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from falaj.api.tls import ensure_local_certificate

HOST = "hooks.bank.example"


@dataclass
class Receiver:
    """What came, and what is answered."""

    port: int
    scheme: str
    got: list[tuple[dict[str, str], bytes, str]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    """The next statuses; 200 when there are none left."""
    location: str = ""
    drip: bool = False

    def url(self, host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}/hear"

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _, _ in self.got]


class _Door(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    receiver: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.receiver.got.append(({name.lower(): value for name, value in self.headers.items()}, body, self.path))
        if self.receiver.drip:
            with suppress(OSError):
                self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                while True:
                    self.wfile.write(b"x-slow: " + b"a" * 10 + b"\r\n")
                    self.wfile.flush()
                    if self.server.stopping.wait(0.05):  # type: ignore[attr-defined]
                        return
        status = self.receiver.answers.pop(0) if self.receiver.answers else 200
        self.send_response(status)
        if self.receiver.location:
            self.send_header("location", self.receiver.location)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *args: Any) -> None:
        """Silence."""


@contextmanager
def receiving(home: Path | None = None) -> Iterator[Receiver]:
    """A receiver of this machine; by TLS, as hooks.bank.example, when there is a folder for its keys."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Door", (_Door,), {}))
    server.daemon_threads = True
    server.stopping = threading.Event()  # type: ignore[attr-defined]
    receiver = Receiver(server.server_address[1], "https" if home else "http")
    server.RequestHandlerClass.receiver = receiver  # type: ignore[attr-defined]
    if home is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls = ensure_local_certificate(str(home), (HOST, "127.0.0.1"), time.time())
        context.load_cert_chain(tls.cert, tls.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.stopping.set()  # type: ignore[attr-defined]
        server.shutdown()
        server.server_close()
        thread.join()


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])

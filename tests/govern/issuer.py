"""An identity provider of our own on loopback, so that a test can hold its keys, change its mind and switch it off."""

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Issuer:
    """Serves a discovery document and a key set; `keys` and `document` may be changed at any time."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = []
        self.document: dict[str, Any] = {}
        self.asked: Counter[str] = Counter()
        self.raw: bytes | None = None
        self.down = False
        self.redirect = ""
        issuer = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked[self.path] += 1
                self.send_response(503 if issuer.down else 302 if issuer.redirect else 200)
                if issuer.redirect:
                    self.send_header("Location", issuer.redirect)
                self.end_headers()
                self.wfile.write(issuer.answer(self.path))

            def log_message(self, *args: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, path: str) -> bytes:
        if self.raw is not None:
            return self.raw
        if path == "/keys":
            return json.dumps({"keys": self.keys}).encode()
        return json.dumps({"issuer": self.url, "jwks_uri": f"{self.url}/keys", **self.document}).encode()

    def __enter__(self) -> "Issuer":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

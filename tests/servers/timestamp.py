"""A real RFC 3161 time-stamping authority: `openssl ts -reply` behind a small HTTP server, with its own authority."""

import shutil
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from tests.servers.process import Missing

_CONFIG = """
[ tsa ]
default_tsa = tsa_one
[ tsa_one ]
dir = {folder}
serial = {folder}/serial
crypto_device = builtin
signer_cert = {folder}/tsa.pem
signer_key = {folder}/tsa.key
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256, sha512
accuracy = secs:1
ordering = yes
tsa_name = yes
ess_cert_id_chain = no
ess_cert_id_alg = sha256
[ server ]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = critical, timeStamping
"""


class TimestampServer:
    """`with TimestampServer(folder) as tsa:` → tsa.url, tsa.ca; `tsa.change` may alter each answer."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            raise Missing("openssl is missing: apt-get install openssl")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.ca, self.queries = folder, folder / "ca.pem", 0
        self.change: Callable[[bytes], bytes] = lambda answer: answer
        self.status = 200
        (folder / "openssl.cnf").write_text(_CONFIG.format(folder=folder))
        (folder / "serial").write_text("01\n")
        self._make_certificates()

    def answer(self, query: bytes) -> bytes:
        """Have openssl answer one query."""
        self.queries += 1
        (self.folder / "query.tsq").write_bytes(query)
        files = ["-queryfile", "query.tsq", "-out", "answer.tsr", "-config", "openssl.cnf"]
        self._openssl("ts", "-reply", *files)
        return self.change((self.folder / "answer.tsr").read_bytes())

    def verify(self, token: bytes, data: bytes) -> bool:
        """True when `openssl ts -verify` accepts a token for data."""
        (self.folder / "token.tsr").write_bytes(token)
        (self.folder / "data").write_bytes(data)
        command = ["openssl", "ts", "-verify", "-in", "token.tsr", "-data", "data", "-CAfile", "ca.pem"]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False, timeout=30)
        return done.returncode == 0

    def __enter__(self) -> Self:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                query = self.rfile.read(int(self.headers["content-length"]))
                answer = server.answer(query)
                self.send_response(server.status)
                self.send_header("content-type", "application/timestamp-reply")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *arguments: Any) -> None:
                del arguments

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/tsa"
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _make_certificates(self) -> None:
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        self._openssl(
            "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "30", "-subj", "/CN=Test CA"
        )
        self._openssl("req", *key, "-keyout", "tsa.key", "-out", "tsa.csr", "-subj", "/CN=Test TSA")
        signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30"]
        extensions = ["-extfile", "openssl.cnf", "-extensions", "server"]
        self._openssl("x509", "-req", "-in", "tsa.csr", *signing, "-out", "tsa.pem", *extensions)

    def _openssl(self, *arguments: str) -> None:
        command = ["openssl", *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False, timeout=30)
        assert done.returncode == 0, done.stderr

"""The engine of `stand_in` behind gRPC: on our own HTTP/2, and on grpcio's server."""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from falaj.infer.grpc_handler import GrpcInferHandler
from falaj.infer.token_keys import TokenKeys
from falaj.oip.grpcio_server import serve_grpcio
from falaj.oip.http2_server import serve_http2
from tests.infer.stand_in import TOKEN, Served, served

KINDS = ("own", "grpcio")
AUTH = {"authorization": f"Bearer {TOKEN}"}


class Both(NamedTuple):
    """Where each server is, and what is behind both."""

    here: Served
    own: str
    grpcio: str

    def url(self, kind: str) -> str:
        return self.own if kind == "own" else self.grpcio


@contextlib.contextmanager
def both(folder: Path, **options: Any) -> Iterator[Both]:
    with served(folder, **options) as here:
        door = GrpcInferHandler(here.engine, TokenKeys([hashlib.sha256(TOKEN.encode()).hexdigest()]), version="0")
        servers = [here.wait(serve(door, "127.0.0.1", 0)) for serve in (serve_http2, serve_grpcio)]
        try:
            yield Both(here, *(f"127.0.0.1:{one.address[1]}" for one in servers))
        finally:
            for one in servers:
                here.wait(one.drain(0.0))

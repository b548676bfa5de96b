"""The least server that MLflow's client takes for one: it answers at once, and keeps nothing.

What the clients of a bench reach against it is all that they could reach against any server on this machine, whose
processors they share with it. Run as a program it says its port, and answers until it is ended.
"""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator

import uvloop

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_RUN = {
    "run_id": "0" * 32,
    "run_uuid": "0" * 32,
    "experiment_id": "0",
    "status": "RUNNING",
    "lifecycle_stage": "active",
}


def _answer(body: object) -> bytes:
    said = json.dumps(body).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(said), said)


_MADE, _DONE = _answer({"run": {"info": _RUN, "data": {}}}), _answer({})


class _Echo(asyncio.Protocol):
    """One client's connection."""

    _transport: asyncio.Transport
    _held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._held += data
        head, whole, body = self._held.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if whole and len(body) >= (int(length[1]) if length else 0):  # a client asks when it is answered, not before
            self._held = b""
            self._transport.write(_MADE if b"runs/create" in head else _DONE)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def limit() -> Iterator[dict[str, str]]:
    """What a client needs in its environment to reach one."""
    with subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True) as server:
        try:
            port = server.stdout.readline().strip() if server.stdout else ""
            # The token is one that a client of ours sends along too.
            yield {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}", "MLFLOW_TRACKING_TOKEN": "any", "EXPERIMENT": "0"}
        finally:
            server.kill()


if __name__ == "__main__":
    uvloop.run(_serve())

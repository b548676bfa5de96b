"""A gateway and the API in a process of its own, with a replica that echoes, for attacks over sockets.

The process prints its addresses and tokens as one JSON line, then obeys words on standard input: `suspend NAME`,
`resume NAME`, `roles NAME ROLE`, `reset hanging` and `await hanging` (until the replica holds a message since the
reset that it does not answer). It ends when its standard input does.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

INFER = "/v2/models/fraud.score/infer"
LIMIT_BYTES = 64 << 20
"""What the process may grow by under any attack."""


class GatewayProcess:
    """`http` and `grpc` of the gateway, and `api`, are (host, port); `tokens` are those of people of tests/town.py."""

    def __init__(self, home: Path) -> None:
        command = [sys.executable, "-m", "tests.security.attacks.gateway_process", str(home)]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.child.stdout is not None
        started = json.loads(self.child.stdout.readline())
        self.http, self.grpc, self.api = (tuple(started[name]) for name in ("http", "grpc", "api"))
        self.tokens: dict[str, str] = started["tokens"]

    def order(self, words: str) -> None:
        """Have the platform do something, and wait until it has."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(words + "\n")
        self.child.stdin.flush()
        assert self.child.stdout.readline().strip() == "done"

    def memory(self) -> int:
        """Resident bytes."""
        return int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def peak(self) -> int:
        """The most resident bytes since `forget_peak`."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) << 10

    def forget_peak(self) -> int:
        """Begin to measure the peak anew; gives what is resident."""
        Path(f"/proc/{self.child.pid}/clear_refs").write_text("5")
        return self.memory()

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        """A socket to the HTTP address, from another loopback address where one is named."""
        return socket.create_connection(self.http, timeout=30, source_address=(source, 0))

    def head(self, name: str = "amal", **headers: str) -> bytes:
        """The head of an inference request, without its empty line."""
        lines = {"host": f"localhost:{self.http[1]}"}
        lines |= {"authorization": f"Bearer {self.tokens[name]}"} if name else {}
        lines |= {key.replace("_", "-"): value for key, value in headers.items()}
        return f"POST {INFER} HTTP/1.1\r\n".encode() + b"".join(f"{k}: {v}\r\n".encode() for k, v in lines.items())

    def close(self) -> None:
        """End the process."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.close()
        self.child.wait(60)
        self.child.stdout.close()


@contextmanager
def running_gateway() -> Iterator[GatewayProcess]:
    """A gateway in a temporary folder."""
    with tempfile.TemporaryDirectory() as home:
        gateway = GatewayProcess(Path(home))
        try:
            yield gateway
        finally:
            gateway.close()


def read_status(connection: socket.socket) -> int:
    """The status of the next HTTP/1.1 answer, which is read whole; 0 when the gateway closed without one."""
    data, size = b"", 1
    while len(data) < size:
        try:
            piece = connection.recv(1 << 16)
        except ConnectionError:
            piece = b""
        if not piece:
            return 0
        data += piece
        head, end, _ = data.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        size = len(head) + 4 + int(length or 0) if end else len(data) + 1
    return int(data.split(b" ", 2)[1])


def _main(home: str) -> None:
    from tests.api.small import serving
    from tests.gateway.stand_in import Ground, Replica

    ground = Ground(Path(home), sample=0.0)
    replica = Replica(ground.loop)
    ground.add(replica)
    doors = ground.open()
    started: dict[str, Any] = {"tokens": ground.town.tokens}
    for name, address in (("http", doors.http.rpartition("/")[2]), ("grpc", doors.grpc)):
        host, _, port = address.rpartition(":")
        started[name] = (host, int(port))
    with serving(ground.town.house, listen="127.0.0.1:0") as server:
        started["api"] = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        print(json.dumps(started), flush=True)
        admin = ground.town.as_("fatima")
        for line in sys.stdin:
            word, name, *more = line.split()
            if word == "reset":
                replica.echo.hanging = 0
            elif word == "await":
                while not replica.echo.hanging:
                    time.sleep(0.01)
            elif word == "roles":
                admin.people.change(name, roles=tuple(more))
            else:
                getattr(admin.people, word)(name)
            print("done", flush=True)
    ground.close()


if __name__ == "__main__":
    _main(sys.argv[1])

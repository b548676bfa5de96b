"""A door that says what it was asked and who it is; some bodies make it misbehave. By itself it is a process."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from falaj.oip.handler_calls import GrpcCall, GrpcReply, HttpCall, HttpReply
from falaj.oip.upstream_server import UpstreamServer

KEY = "a key by chance, long enough"


class Echo:
    """Answers with what it was asked and which replica it is; some bodies make it misbehave."""

    def __init__(self, revision: int, name: str) -> None:
        self.revision, self.name, self.asked, self.cancelled = revision, name, 0, 0
        self.hanging = 0

    def rest(self, call: HttpCall, send_reply: Callable[[HttpReply], Any]) -> Callable[[], None] | None:
        """One request."""
        self.asked += 1
        said = {"path": call.path.decode(), "revision": self.revision, "replica": self.name, "pid": os.getpid()}
        said["echo"] = call.body.decode()
        body = json.dumps(said).encode()
        if call.body.startswith(b"status "):
            send_reply(HttpReply(int(call.body.split()[1]), (b'{"error": "as asked"}',)))
        elif call.body.startswith(b"slow "):
            handle = asyncio.get_running_loop().call_later(
                float(call.body.split()[1]), send_reply, HttpReply(200, (body,))
            )
            return lambda: self._cancel(handle)
        elif call.body == b"hang" or call.body == b"hang on " + self.name.encode():
            return lambda: self._cancel(None)
        else:
            send_reply(HttpReply(200, (body,), json_bytes=0))
        return None

    def grpc(self, call: GrpcCall, send_reply: Callable[[GrpcReply], Any]) -> Callable[[], None] | None:
        """One message."""
        self.asked += 1
        if b"unable" in call.message:
            send_reply(GrpcReply(code=14, text="as asked"))
        elif b"hang" in call.message:
            self.hanging += 1
            return lambda: self._cancel(None)
        elif call.method == "ModelStreamInfer":
            send_reply(GrpcReply(b"first", last=False))
            send_reply(GrpcReply(b"last"))
        else:
            send_reply(GrpcReply(b"%d" % self.revision))
        return None

    def _cancel(self, handle: asyncio.TimerHandle | None) -> None:
        self.cancelled += 1
        if handle is not None:
            handle.cancel()


async def _serve(revision: int, name: str) -> None:
    echo = Echo(revision, name)
    server = UpstreamServer(echo, echo, KEY)
    _, port = await server.start("127.0.0.1", 0)
    print(port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(int(sys.argv[1]), sys.argv[2]))

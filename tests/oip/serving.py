"""A real HTTP server around a door, on a loop in a thread of its own, and a socket that says bytes to it."""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httptools
import uvloop

from falaj.oip.handler_calls import HttpCall, HttpReply
from falaj.oip.http1_parser import Http1Limits
from falaj.oip.http1_server import Http1Server, serve_http

Answer = Callable[[HttpReply], Any]


class Mirror:
    """A door: says what it was asked. `/later` is kept until somebody answers it; `/big` is sixteen MiB."""

    def __init__(self) -> None:
        self.kept: list[tuple[HttpCall, Answer]] = []
        self.gone: list[bytes] = []

    def rest(self, call: HttpCall, reply: Answer) -> Callable[[], None] | None:
        if call.path.startswith(b"/later"):
            self.kept.append((call, reply))
            return lambda: self.gone.append(call.path)
        if call.path == b"/big":
            reply(HttpReply(200, (b"x" * (1 << 24),), kind=b"text/plain"))
        elif call.path == b"/split":
            reply(HttpReply(200, (b"a\r\n",), headers=((b"x-id", b"1\r\nset-cookie: evil\0"),)))
        else:
            reply(HttpReply(200, (b"%b %b " % (call.method, call.path), call.body), kind=b"text/plain"))
        return None


class Running:
    """The server and its loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: Http1Server) -> None:
        self.loop, self.server = loop, server
        self.port = server.address[1]

    def do(self, work: Callable[[], Any]) -> Any:
        """Run it on the loop's thread, and give what it gave."""

        async def done() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(done(), self.loop).result(30)

    def wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def connect(self) -> "Client":
        return Client(socket.create_connection(("127.0.0.1", self.port), timeout=20))


@contextlib.contextmanager
def looping() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop in a thread; what goes wrong on it without anybody to hear fails the test."""
    loop = uvloop.new_event_loop()
    wrong: list[Any] = []
    loop.set_exception_handler(lambda _, context: wrong.append(context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    assert not wrong


@contextlib.contextmanager
def running(door: Any, limits: Http1Limits | None = None, context: ssl.SSLContext | None = None) -> Iterator[Running]:
    with looping() as loop:
        begun = serve_http(door, "127.0.0.1", 0, ssl=context, limits=limits)
        server = asyncio.run_coroutine_threadsafe(begun, loop).result(30)
        here = Running(loop, server)
        try:
            yield here
        finally:
            here.wait(server.drain(0.0))


class Client:
    """A socket, and answers as they come off it."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._parser = httptools.HttpResponseParser(self)
        self._got: list[tuple[int, dict[str, str], bytes]] = []
        self._headers: dict[str, str] = {}
        self._body = b""
        self.said = 0

    def say(self, data: bytes) -> None:
        self.said += len(data)
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def hear(self, count: int = 1) -> list[tuple[int, dict[str, str], bytes]]:
        """The next answers; fewer when the server closes before."""
        while len(self._got) < count:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                break
            self._parser.feed_data(data)
        heard, self._got = self._got[:count], self._got[count:]
        return heard

    def closed(self) -> bool:
        """Whether the server closes, rather than waiting for more."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def on_message_begin(self) -> None:
        self._headers, self._body = {}, b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status != 100:
            self._got.append((status, self._headers, self._body))

"""gRPC servers around a small door, and a client that speaks HTTP/2 frame by frame, also such as nobody should."""

import asyncio
import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hpack import Decoder, Encoder

from falaj.oip import http2_frames as w
from falaj.oip.grpc_messages import SERVICE_NAME
from falaj.oip.handler_calls import GrpcCall, GrpcReply
from falaj.oip.http2_server import Http2GrpcServer, serve_http2
from tests.oip.serving import looping

Answer = Callable[[GrpcReply], Any]


class Mirror:
    """A door: what it says depends on the method, and is the message where nothing else is said."""

    def __init__(self) -> None:
        self.calls: list[GrpcCall] = []
        self.kept: list[tuple[GrpcCall, Answer]] = []
        self.gone: list[bytes] = []

    def grpc(self, call: GrpcCall, send_reply: Answer) -> Callable[[], None] | None:
        self.calls.append(call)
        if call.message.startswith(b"keep") or call.method == "ModelReady":
            self.kept.append((call, send_reply))
            return lambda: self.gone.append(call.message)
        if call.method == "ServerReady":
            send_reply(GrpcReply(b"\x08\x01"))
        elif call.message.startswith(b"big") and call.message[3:].isdigit() and len(call.message) < 12:
            send_reply(GrpcReply(b"x" * int(call.message[3:])))
        elif call.message.startswith(b"fail"):
            send_reply(
                GrpcReply(
                    code=call.message[4] & 15 if len(call.message) > 4 else 2,
                    text="nö: 100%\n",
                    metadata=((b"retry-after", b"7"),),
                )
            )
        elif call.message.startswith(b"many"):
            for number in range(3):
                send_reply(GrpcReply(b"%d" % number, last=number == 2))
        elif call.message.startswith(b"meta"):
            send_reply(GrpcReply(call.message, metadata=((b"falaj-request", b"abc"), (b"x", b"1" * 300))))
        else:
            send_reply(GrpcReply(call.message))
        return None


class Running(NamedTuple):
    """A server, its loop and its door."""

    loop: asyncio.AbstractEventLoop
    server: Any
    door: Any

    @property
    def port(self) -> int:
        return int(self.server.address[1])

    def do(self, work: Callable[[], Any]) -> Any:
        """Run it on the loop's thread, and give what it gave."""

        async def done() -> Any:
            return work()

        return self.wait(done())

    def wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def connect(self, **settings: Any) -> "Client":
        return Client(socket.create_connection(("127.0.0.1", self.port), timeout=20), **settings)

    def until(self, true: Callable[[], Any]) -> None:
        """Wait for something to become so."""
        end = time.monotonic() + 20
        while not self.do(true):
            assert time.monotonic() < end, "it did not become so"
            time.sleep(0.005)


@contextlib.contextmanager
def running(
    door: Any = None, limits: w.Http2Limits | None = None, *, serve: Any = serve_http2, **options: Any
) -> Iterator[Running]:
    door = door or Mirror()
    if limits is not None:
        options["limits"] = limits
    with looping() as loop:
        server = asyncio.run_coroutine_threadsafe(serve(door, "127.0.0.1", 0, **options), loop).result(30)
        here = Running(loop, server, door)
        try:
            yield here
        finally:
            here.wait(server.drain(0.0))


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


class Said(NamedTuple):
    """One answer, as it came off the wire."""

    headers: dict[str, str]
    data: bytes
    trailers: dict[str, str]
    reset: int | None = None

    @property
    def status(self) -> int:
        return int({**self.headers, **self.trailers}.get("grpc-status", -1))

    @property
    def messages(self) -> list[bytes]:
        found, at = [], 0
        while at < len(self.data):
            size = struct.unpack_from(">I", self.data, at + 1)[0]
            found.append(self.data[at + 5 : at + 5 + size])
            at += 5 + size
        return found


HEADERS = (
    (":method", "POST"), (":scheme", "http"), (":path", f"/{SERVICE_NAME}/ModelInfer"), (":authority", "localhost"),
    ("te", "trailers"), ("content-type", "application/grpc"),
)  # fmt: skip


def headers(called: str = "ModelInfer", *more: tuple[str, str], **changed: str | None) -> list[tuple[str, str]]:
    """Those of a call; `changed` by name without the colon and with _ for -; None leaves one out."""
    found = []
    for name, value in HEADERS:
        key = name.lstrip(":").replace("-", "_")
        new = changed.get(key, f"/{SERVICE_NAME}/{called}" if name == ":path" else value)
        if new is not None:
            found.append((name, new))
    return found + list(more)


def message(data: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(data)) + data


class Client:
    """A connection, spoken by hand."""

    def __init__(
        self, connection: socket.socket, *, greet: bool = True, settings: dict[int, int] | None = None
    ) -> None:
        self.socket = connection
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.encoder, self._decoder = Encoder(), Decoder()
        self._rest = b""
        self.next = 1
        self.frames: list[Frame] = []
        self.closed = False
        if greet:
            self.say(w.PREFACE + w.encode_settings(settings or {}))

    def say(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def block(self, *pairs: Any) -> bytes:
        return self.encoder.encode(pairs[0] if len(pairs) == 1 and isinstance(pairs[0], list) else pairs)

    def ask(
        self, data: bytes | None = b"hi", method: str = "ModelInfer", *more: tuple[str, str], end: bool = True
    ) -> int:
        """A call: its headers, and its message where there is one."""
        stream, self.next = self.next, self.next + 2
        flags = w.END_HEADERS | (w.END_STREAM if data is None and end else 0)
        self.say(w.encode_frame(w.HEADERS, flags, stream, self.block(headers(method, *more))))
        if data is not None:
            self.give(stream, message(data), end=end)
        return stream

    def give(self, stream: int, data: bytes, *, end: bool = True) -> None:
        """DATA, in as many frames as it takes."""
        pieces = [data[at : at + w.DEFAULT_FRAME_BYTES] for at in range(0, len(data), w.DEFAULT_FRAME_BYTES)] or [b""]
        for piece in pieces[:-1]:
            self.say(w.encode_frame(w.DATA, 0, stream, piece))
        self.say(w.encode_frame(w.DATA, w.END_STREAM if end else 0, stream, pieces[-1]))

    def hear(self) -> Frame | None:
        """The next frame; None when the server closed."""
        while True:
            if len(self._rest) >= 9:
                upper, lower, kind, flags, stream = w.read_head(self._rest)
                stop = 9 + (upper << 8 | lower)
                if len(self._rest) >= stop:
                    found = Frame(kind, flags, stream, self._rest[9:stop])
                    self._rest = self._rest[stop:]
                    self.frames.append(found)
                    return found
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                self.closed = True
                return None
            self._rest += data

    def answer(self, stream: int, *, widen: bool = True) -> Said:
        """All of one stream's answer; those of others that come meanwhile are left in `frames`."""
        said, data, last = [], b"", None
        while True:
            found = self._of(stream)
            assert found is not None, (self.frames, "closed")
            if found.kind == w.HEADERS:
                said.append({str(k): str(v) for k, v in self._decoder.decode(found.payload)})
            elif found.kind == w.DATA:
                data += found.payload
                if widen and found.payload:
                    more = w.pack_uint32(len(found.payload))
                    self.say(
                        w.encode_frame(w.WINDOW_UPDATE, 0, 0, more) + w.encode_frame(w.WINDOW_UPDATE, 0, stream, more)
                    )
            elif found.kind == w.RST_STREAM:
                last = int.from_bytes(found.payload, "big")
            if last is not None or (found.flags & w.END_STREAM and found.kind in (w.HEADERS, w.DATA)):
                return Said(said[0] if said else {}, data, said[-1] if said else {}, last)

    def _of(self, stream: int) -> Frame | None:
        for at, one in enumerate(self.frames):
            if one.stream == stream:
                return self.frames.pop(at)
        while True:
            found = self.hear()
            if found is None:
                return None
            if found.stream == stream:
                return self.frames.pop()

    def goodbye(self) -> int | None:
        """The code of the last GOAWAY before the server closes; None when it closes without one."""
        while self.hear() is not None:
            pass
        codes = [int.from_bytes(one.payload[4:8], "big") for one in self.frames if one.kind == w.GOAWAY]
        return codes[-1] if codes else None

    def ping(self, data: bytes = b"12345678") -> None:
        """Returns when the server has seen all that was said so far."""
        self.say(w.encode_frame(w.PING, 0, 0, data))
        while True:
            found = self.hear()
            assert found is not None, ("closed", self.frames)
            if found.kind == w.PING and found.flags & w.ACK:
                return

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def certificate(folder: Path) -> tuple[str, str]:
    """The files of a certificate for localhost and of its key."""
    import datetime as dt

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (folder / "key.pem").write_bytes(pem)
    return str(folder / "cert.pem"), str(folder / "key.pem")


def secured(cert: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(cert, key)
    return context


class Memory(asyncio.Transport):
    """A connection without a socket: what was written, and whether it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closing = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        """Nothing comes by itself."""

    def resume_reading(self) -> None:
        """Nothing comes by itself."""


def held(server: Http2GrpcServer) -> int:
    """Bytes of messages that are not whole, of all connections."""
    return sum(one._buffered_bytes for one in server.connections)

"""The same GrpcDoor behind grpcio's own server: a fallback, and what our HTTP/2 is held against."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
from grpc import aio

from falaj.core.errors import Invalid
from falaj.oip.calls import GrpcCall, GrpcDoor, GrpcReply
from falaj.oip.health import Health
from falaj.oip.hpack_cache import STREAMING, Head, service_of

_STATUS = {code.value[0]: code for code in grpc.StatusCode}


class GrpcioServer:
    """What listens."""

    def __init__(self, server: Any, host: str, port: int) -> None:
        self._server = server
        self.address = (host, port)

    async def drain(self, within_s: float = 30.0) -> None:
        """Take no new calls, answer what was asked, and end."""
        await self._server.stop(within_s)


async def serve_grpcio(
    door: GrpcDoor, host: str, port: int, *, ssl: Any = None, body_bytes: int = 64 << 20, cert: str = "", key: str = ""
) -> GrpcioServer:
    """Listen for gRPC with grpcio. It reads certificates itself, so TLS takes the files and not a context."""
    if ssl is not None and not cert:
        raise Invalid("grpcio takes no TLS context", "name the files of the certificate and its key")
    options = [("grpc.max_receive_message_length", body_bytes), ("grpc.max_send_message_length", -1)]
    server = aio.server(options=options)
    server.add_generic_rpc_handlers((_Calls(door),))
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if cert:
        pair = (await _read(key or cert), await _read(cert))
        bound = server.add_secure_port(where, grpc.ssl_server_credentials((pair,)))
    else:
        bound = server.add_insecure_port(where)
    await server.start()
    return GrpcioServer(server, host, bound)


async def _read(path: str) -> bytes:
    return await asyncio.get_running_loop().run_in_executor(None, Path(path).read_bytes)


class _Calls(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, door: GrpcDoor) -> None:
        self._door, self._health = door, Health(door)

    def service(self, details: Any) -> Any:
        """What answers a method; bytes in, bytes out."""
        method, healthy = service_of(details.method.encode())
        if not method:
            return None
        metadata = _plain(details.invocation_metadata)
        refusal = self._refusal(method, healthy, metadata)
        if refusal is not None:
            return grpc.stream_stream_rpc_method_handler(refusal)  # which reads no message
        door: GrpcDoor = self._health if healthy else self._door

        def call(message: bytes, context: Any) -> GrpcCall:
            left_s = context.time_remaining()
            deadline = time.monotonic() + left_s if left_s is not None else 0.0
            return GrpcCall(method, message, metadata, deadline, peer=context.peer())

        # grpcio looks whether these are coroutine functions, so they are no lambdas.
        async def unary(message: bytes, context: Any) -> bytes:
            return await _unary(door, call(message, context), context)

        async def stream(asked: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for message in _Stream(door, call).run(asked, context):
                yield message

        if method == STREAMING:
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)

    def _refusal(self, method: str, healthy: bool, metadata: dict[bytes, bytes]) -> Any:
        """What ends a call whose caller the door does not admit; None for others."""
        judge: Callable[[Head, str, Any], Any] | None = getattr(self._door, "judge_grpc", None)
        if judge is None:
            return None
        head = Head(metadata)
        head.method, head.health = method, healthy
        verdict = judge(head, "", lambda _: None)
        if not isinstance(verdict, GrpcReply):
            return None

        async def refuse(_asked: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            await _abort(context, verdict)
            yield b""

        return refuse


async def _unary(door: GrpcDoor, call: GrpcCall, context: Any) -> bytes:
    answered: asyncio.Future[GrpcReply] = asyncio.get_running_loop().create_future()
    cancel = door.grpc(call, lambda reply: None if answered.done() else answered.set_result(reply))
    try:
        reply = await answered
    except asyncio.CancelledError:
        if cancel is not None:
            cancel()
        raise
    if reply.code:
        await _abort(context, reply)
    if reply.metadata:
        await context.send_initial_metadata(_pairs(reply))
    return reply.message


class _Stream:
    """One call with many messages: those that came, those without their last answer, and what is to be sent."""

    def __init__(self, door: GrpcDoor, call: Callable[[bytes, Any], GrpcCall]) -> None:
        self._door, self._call = door, call
        self._replies: asyncio.Queue[GrpcReply | None] = asyncio.Queue()
        self._cancels: list[Callable[[], None]] = []
        self._waiting, self._over = 0, False

    async def run(self, asked: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """The answers, in the order in which they are there."""
        reading = asyncio.ensure_future(self._read(asked, context))
        try:
            while not self._over or self._waiting:
                reply = await self._replies.get()
                if reply is None:
                    continue
                self._waiting -= reply.last
                if reply.code:
                    await _abort(context, reply)
                yield reply.message
        finally:
            reading.cancel()
            for cancel in self._cancels:
                cancel()

    async def _read(self, asked: AsyncIterator[bytes], context: Any) -> None:
        async for message in asked:
            self._waiting += 1
            cancel = self._door.grpc(self._call(message, context), self._replies.put_nowait)
            if cancel is not None:
                self._cancels.append(cancel)
        self._over = True
        self._replies.put_nowait(None)


async def _abort(context: Any, reply: GrpcReply) -> None:
    await context.abort(_STATUS.get(reply.code, grpc.StatusCode.UNKNOWN), reply.text, _pairs(reply))


def _pairs(reply: GrpcReply) -> tuple[tuple[str, str], ...]:
    return tuple((name.decode(), value.decode("latin-1")) for name, value in reply.metadata)


def _plain(found: Any) -> dict[bytes, bytes]:
    metadata: dict[bytes, bytes] = {}
    for name, value in found:
        said = value if isinstance(value, bytes) else value.encode()
        metadata[name.encode()] = metadata[name.encode()] + b"," + said if name.encode() in metadata else said
    return metadata

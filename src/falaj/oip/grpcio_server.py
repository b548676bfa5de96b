"""The same GrpcDoor behind grpcio's own server: a fallback, and what our HTTP/2 is held against."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
from grpc import aio

from falaj.core.errors import Invalid
from falaj.oip.grpc_health import HealthHandler
from falaj.oip.handler_calls import GrpcCall, GrpcHandler, GrpcReply
from falaj.oip.hpack_cache import STREAM_INFER_METHOD, CallHead, parse_call_path

_STATUS_BY_CODE = {code.value[0]: code for code in grpc.StatusCode}


class GrpcioServer:
    """What listens."""

    def __init__(self, server: Any, host: str, port: int) -> None:
        self._server = server
        self.address = (host, port)

    async def drain(self, timeout_s: float = 30.0) -> None:
        """Take no new calls, answer what was asked, and end."""
        await self._server.stop(timeout_s)


async def serve_grpcio(
    handler: GrpcHandler,
    host: str,
    port: int,
    *,
    ssl: Any = None,
    body_bytes: int = 64 << 20,
    cert: str = "",
    key: str = "",
) -> GrpcioServer:
    """Listen for gRPC with grpcio. It reads certificates itself, so TLS takes the files and not a context."""
    if ssl is not None and not cert:
        raise Invalid("grpcio takes no TLS context", "name the files of the certificate and its key")
    options = [("grpc.max_receive_message_length", body_bytes), ("grpc.max_send_message_length", -1)]
    server = aio.server(options=options)
    server.add_generic_rpc_handlers((_GenericHandler(handler),))
    listen_address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if cert:
        key_pair = (await _read_file(key or cert), await _read_file(cert))
        bound_port = server.add_secure_port(listen_address, grpc.ssl_server_credentials((key_pair,)))
    else:
        bound_port = server.add_insecure_port(listen_address)
    await server.start()
    return GrpcioServer(server, host, bound_port)


async def _read_file(path: str) -> bytes:
    return await asyncio.get_running_loop().run_in_executor(None, Path(path).read_bytes)


class _GenericHandler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, handler: GrpcHandler) -> None:
        self._handler, self._health = handler, HealthHandler(handler)

    def service(self, details: Any) -> Any:
        """What answers a method; bytes in, bytes out."""
        method, is_health = parse_call_path(details.method.encode())
        if not method:
            return None
        metadata = _collect_metadata(details.invocation_metadata)
        refuse = self._find_refusal(method, is_health, metadata)
        if refuse is not None:
            return grpc.stream_stream_rpc_method_handler(refuse)  # which reads no message
        handler: GrpcHandler = self._health if is_health else self._handler

        def make_call(message: bytes, context: Any) -> GrpcCall:
            remaining_s = context.time_remaining()
            deadline = time.monotonic() + remaining_s if remaining_s is not None else 0.0
            return GrpcCall(method, message, metadata, deadline, peer=context.peer())

        # grpcio looks whether these are coroutine functions, so they are no lambdas.
        async def handle_unary(message: bytes, context: Any) -> bytes:
            return await _answer_unary(handler, make_call(message, context), context)

        async def handle_stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for message in _MessageStream(handler, make_call).run(messages, context):
                yield message

        if method == STREAM_INFER_METHOD:
            return grpc.stream_stream_rpc_method_handler(handle_stream)
        return grpc.unary_unary_rpc_method_handler(handle_unary)

    def _find_refusal(self, method: str, is_health: bool, metadata: dict[bytes, bytes]) -> Any:
        """What ends a call whose caller the door does not admit; None for others."""
        judge: Callable[[CallHead, str, Any], Any] | None = getattr(self._handler, "judge_grpc", None)
        if judge is None:
            return None
        call_head = CallHead(metadata)
        call_head.method, call_head.health = method, is_health
        admission = judge(call_head, "", lambda _: None)
        if not isinstance(admission, GrpcReply):
            return None

        async def refuse_call(_messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            await _abort_call(context, admission)
            yield b""

        return refuse_call


async def _answer_unary(handler: GrpcHandler, call: GrpcCall, context: Any) -> bytes:
    reply_future: asyncio.Future[GrpcReply] = asyncio.get_running_loop().create_future()
    cancel = handler.grpc(call, lambda reply: None if reply_future.done() else reply_future.set_result(reply))
    try:
        reply = await reply_future
    except asyncio.CancelledError:
        if cancel is not None:
            cancel()
        raise
    if reply.code:
        await _abort_call(context, reply)
    if reply.metadata:
        await context.send_initial_metadata(_metadata_pairs(reply))
    return reply.message


class _MessageStream:
    """One call with many messages: those that came, those without their last answer, and what is to be sent."""

    def __init__(self, handler: GrpcHandler, make_call: Callable[[bytes, Any], GrpcCall]) -> None:
        self._handler, self._make_call = handler, make_call
        self._replies: asyncio.Queue[GrpcReply | None] = asyncio.Queue()
        self._cancels: list[Callable[[], None]] = []
        self._unanswered, self._is_input_done = 0, False

    async def run(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """The answers, in the order in which they are there."""
        reader_task = asyncio.ensure_future(self._read_messages(messages, context))
        try:
            while not self._is_input_done or self._unanswered:
                reply = await self._replies.get()
                if reply is None:
                    continue
                self._unanswered -= reply.last
                if reply.code:
                    await _abort_call(context, reply)
                yield reply.message
        finally:
            reader_task.cancel()
            for cancel in self._cancels:
                cancel()

    async def _read_messages(self, messages: AsyncIterator[bytes], context: Any) -> None:
        async for message in messages:
            self._unanswered += 1
            cancel = self._handler.grpc(self._make_call(message, context), self._replies.put_nowait)
            if cancel is not None:
                self._cancels.append(cancel)
        self._is_input_done = True
        self._replies.put_nowait(None)


async def _abort_call(context: Any, reply: GrpcReply) -> None:
    await context.abort(_STATUS_BY_CODE.get(reply.code, grpc.StatusCode.UNKNOWN), reply.text, _metadata_pairs(reply))


def _metadata_pairs(reply: GrpcReply) -> tuple[tuple[str, str], ...]:
    return tuple((name.decode(), value.decode("latin-1")) for name, value in reply.metadata)


def _collect_metadata(pairs: Any) -> dict[bytes, bytes]:
    metadata: dict[bytes, bytes] = {}
    for name, value in pairs:
        encoded = value if isinstance(value, bytes) else value.encode()
        metadata[name.encode()] = metadata[name.encode()] + b"," + encoded if name.encode() in metadata else encoded
    return metadata

"""The byte channel over HTTP: pieces in and out under tickets.

The verbs that give tickets and take receipts are guarded and recorded; what moves between them is checked against the
ticket and its holder, and passes through no verb.
"""

import asyncio
from typing import TYPE_CHECKING

from falaj.api.body_streams import RequestBodyReader, ResponseStreamWriter
from falaj.api.byte_channel_protocol import MAX_PIECE_BYTES, TICKET_HEADER, BundleRequest, PieceRequest
from falaj.api.call_executor import CallExecutor
from falaj.api.responses import HttpError, HttpResponse, render_error
from falaj.api.routes import RequestContext
from falaj.core.byte_stream import ByteStream
from falaj.core.context import CallContext
from falaj.core.errors import Invalid
from falaj.store.codec import from_json, to_json

if TYPE_CHECKING:
    from falaj.server import Server


class ByteChannelHandler:
    """Answers the three paths of the channel."""

    def __init__(self, server: "Server", call_executor: CallExecutor) -> None:
        self._server = server
        self._call_executor = call_executor

    async def put(self, request: RequestContext, ctx: CallContext) -> HttpResponse:
        """One piece as the body, the ticket in a header; gives its receipt."""
        if request.headers.get(b"content-type", b"").partition(b";")[0].strip() != b"application/octet-stream":
            raise HttpError(Invalid("a piece is bytes", "send application/octet-stream"), 415)
        ticket = request.text(TICKET_HEADER)
        request.unread = False
        body_reader = RequestBodyReader(request.receive, MAX_PIECE_BYTES)
        fill_task = asyncio.get_running_loop().create_task(body_reader.fill())
        body, error = await self._call_executor.streaming(ctx.actor, self._store_piece, ctx, ticket, body_reader)
        if not fill_task.done():
            fill_task.cancel()
            request.unread = True
        return HttpResponse(200, body, ctx.request) if error is None else render_error(error, ctx.request)

    async def bundle(self, ctx: CallContext, body: bytes) -> HttpResponse:
        """Receipts in, one receipt out."""
        response_body, error = await self._call_executor.outside(self._tie_pieces, ctx, body)
        return HttpResponse(200, response_body, ctx.request) if error is None else render_error(error, ctx.request)

    async def get(self, request: RequestContext, ctx: CallContext, body: bytes) -> HttpResponse | None:
        """A piece, or a range of one, as the answer."""
        response_stream = ResponseStreamWriter(request.send, request.receive, ctx.request)
        try:
            _, error = await self._call_executor.streaming(ctx.actor, self._send_piece, ctx, body, response_stream)
        finally:
            response_stream.close()
        if error is None or response_stream.started:
            return None  # cut short, the connection is closed without an end, and the caller sees that
        return render_error(error, ctx.request)

    def _store_piece(self, ctx: CallContext, ticket: str, body_reader: RequestBodyReader) -> bytes:
        return to_json(self._server.transfers.put(ctx, ticket, body_reader))

    def _tie_pieces(self, ctx: CallContext, body: bytes) -> bytes:
        piece_request: BundleRequest = from_json(BundleRequest, body)
        return to_json(self._server.transfers.bundle(ctx, piece_request.ticket, piece_request.receipts))

    def _send_piece(self, ctx: CallContext, body: bytes, response_stream: ResponseStreamWriter) -> None:
        piece_request: PieceRequest = from_json(PieceRequest, body)
        response_stream.push(
            ByteStream(
                self._server.transfers.get(
                    ctx, piece_request.ticket, piece_request.digest, piece_request.start, piece_request.stop
                )
            )
        )

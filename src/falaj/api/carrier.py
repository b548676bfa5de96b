"""The byte channel over HTTP: pieces in and out under tickets.

The verbs that give tickets and take receipts are guarded and recorded; what moves between them is checked against the
ticket and its holder, and passes through no verb.
"""

import asyncio
from typing import TYPE_CHECKING

from falaj.api.answers import Answer, Refusal, render
from falaj.api.lanes import Lanes
from falaj.api.pieces import PIECE_BYTES, TICKET_HEADER, Tied, Wanted
from falaj.api.routes import Ask
from falaj.api.stream import Inlet, Outlet
from falaj.core.context import Context
from falaj.core.errors import Invalid
from falaj.core.stream import Stream
from falaj.store.codec import from_json, to_json

if TYPE_CHECKING:
    from falaj.platform import House


class Carrier:
    """Answers the three paths of the channel."""

    def __init__(self, house: "House", lanes: Lanes) -> None:
        self._house = house
        self._lanes = lanes

    async def put(self, ask: Ask, ctx: Context) -> Answer:
        """One piece as the body, the ticket in a header; gives its receipt."""
        if ask.headers.get(b"content-type", b"").partition(b";")[0].strip() != b"application/octet-stream":
            raise Refusal(Invalid("a piece is bytes", "send application/octet-stream"), 415)
        ticket = ask.text(TICKET_HEADER)
        ask.unread = False
        inlet = Inlet(ask.receive, PIECE_BYTES)
        filling = asyncio.get_running_loop().create_task(inlet.fill())
        body, error = await self._lanes.streaming(ctx.actor, self._put, ctx, ticket, inlet)
        if not filling.done():
            filling.cancel()
            ask.unread = True
        return Answer(200, body, ctx.request) if error is None else render(error, ctx.request)

    async def bundle(self, ctx: Context, body: bytes) -> Answer:
        """Receipts in, one receipt out."""
        answer, error = await self._lanes.outside(self._bundle, ctx, body)
        return Answer(200, answer, ctx.request) if error is None else render(error, ctx.request)

    async def get(self, ask: Ask, ctx: Context, body: bytes) -> Answer | None:
        """A piece, or a range of one, as the answer."""
        outlet = Outlet(ask.send, ask.receive, ctx.request)
        try:
            _, error = await self._lanes.streaming(ctx.actor, self._get, ctx, body, outlet)
        finally:
            outlet.close()
        if error is None or outlet.started:
            return None  # cut short, the connection is closed without an end, and the caller sees that
        return render(error, ctx.request)

    def _put(self, ctx: Context, ticket: str, inlet: Inlet) -> bytes:
        return to_json(self._house.transfers.put(ctx, ticket, inlet))

    def _bundle(self, ctx: Context, body: bytes) -> bytes:
        asked: Tied = from_json(Tied, body)
        return to_json(self._house.transfers.bundle(ctx, asked.ticket, asked.receipts))

    def _get(self, ctx: Context, body: bytes, outlet: Outlet) -> None:
        asked: Wanted = from_json(Wanted, body)
        outlet.push(Stream(self._house.transfers.get(ctx, asked.ticket, asked.digest, asked.start, asked.stop)))

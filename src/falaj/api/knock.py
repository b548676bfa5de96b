"""The way in for the events of others: no token, a signature over the very bytes. POST /v1/knock/{door}."""

import time
from typing import TYPE_CHECKING

from falaj.api.answers import JSON, Answer, Refusal
from falaj.api.gate import too_fast
from falaj.api.limits import Buckets
from falaj.api.routes import Ask
from falaj.core.errors import Invalid, Unauthenticated

if TYPE_CHECKING:
    from falaj.api.app import App

ROUTE = "/v1/knock/{door}"
MOST_BYTES = 262_144
PER_S, BURST = 1.0, 30.0
"""For each door: so many as are remembered for as long as a message may be late."""
_JSON = (JSON, b"application/cloudevents+json")
_SIGNED = ("webhook-id", "webhook-timestamp", "webhook-signature", "x-hub-signature-256")


class Doorbell:
    """Takes a message in, asks the desk whose it is, and says it in their name through the guard."""

    action = "flows.knock"

    def __init__(self, app: "App") -> None:
        self._app = app
        self._rates = Buckets(PER_S, BURST)

    async def serve(self, ask: Ask) -> Answer:
        """One message; whatever is wrong with who sent it, the answer is the same."""
        app, gate, door = self._app, self._app.gate, ask.named["door"]
        body = await app.body(ask, MOST_BYTES, _JSON)
        headers = {name: ask.text(name.encode()) for name in _SIGNED}
        desk, asked = app.house.desks["flows"], app.house.system()
        entry, error = await app.lanes.outside(desk.admit, asked, door, headers, body)
        if error is not None:
            if isinstance(error, Unauthenticated):
                gate.count_false_signature(ask)
            raise error
        # Counted once the signature is proven: a client that only knows the address cannot use up the sender's share.
        wait = self._rates.take(door, time.monotonic())
        if wait > 0.0:
            raise too_fast(wait, "too many messages came")
        try:
            given = {"knock": entry.knock, "body": body.decode(), "message": entry.message}
        except UnicodeDecodeError:
            raise Refusal(Invalid("the body is not UTF-8", "send JSON"), 400) from None
        ctx = app.house.context(entry.actor, purpose=entry.purpose)
        ask.request = ctx.request
        _, error = await app.lanes.short(app.house.call, "flows", "knock", ctx, given)
        if error is not None:
            raise error
        return Answer(200, b'{"heard":true}', ctx.request)

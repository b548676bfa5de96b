"""The way in for the events of others: no token, a signature over the very bytes. POST /v1/knock/{door}."""

import time
from typing import TYPE_CHECKING

from falaj.api.authentication import rate_limit_error
from falaj.api.rate_limits import TokenBuckets
from falaj.api.responses import JSON_TYPE, HttpError, HttpResponse
from falaj.api.routes import RequestContext
from falaj.core.errors import Invalid, Unauthenticated

if TYPE_CHECKING:
    from falaj.api.app import HttpApplication

WEBHOOK_ROUTE = "/v1/knock/{door}"
MAX_MESSAGE_BYTES = 262_144
MESSAGES_PER_S, MESSAGE_BURST = 1.0, 30.0
"""For each door: so many as are remembered for as long as a message may be late."""
_JSON_TYPES = (JSON_TYPE, b"application/cloudevents+json")
_SIGNATURE_HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature", "x-hub-signature-256")


class InboundWebhookHandler:
    """Takes a message in, asks the desk whose it is, and says it in their name through the guard."""

    action = "flows.knock"

    def __init__(self, app: "HttpApplication") -> None:
        self._app = app
        self._message_rates = TokenBuckets(MESSAGES_PER_S, MESSAGE_BURST)

    async def serve(self, request: RequestContext) -> HttpResponse:
        """One message; whatever is wrong with who sent it, the answer is the same."""
        app, authenticator, webhook_address = self._app, self._app.gate, request.named["door"]
        body = await app.body(request, MAX_MESSAGE_BYTES, _JSON_TYPES)
        headers = {name: request.text(name.encode()) for name in _SIGNATURE_HEADERS}
        flow_service, system_context = app.house.desks["flows"], app.house.system()
        accepted_message, error = await app.lanes.outside(
            flow_service.admit, system_context, webhook_address, headers, body
        )
        if error is not None:
            if isinstance(error, Unauthenticated):
                authenticator.count_false_signature(request)
            raise error
        # Counted once the signature is proven: a client that only knows the address cannot use up the sender's share.
        wait_s = self._message_rates.take(webhook_address, time.monotonic())
        if wait_s > 0.0:
            raise rate_limit_error(wait_s, "too many messages came")
        try:
            operation_arguments = {
                "knock": accepted_message.knock,
                "body": body.decode(),
                "message": accepted_message.message,
            }
        except UnicodeDecodeError:
            raise HttpError(Invalid("the body is not UTF-8", "send JSON"), 400) from None
        ctx = app.house.context(accepted_message.actor, purpose=accepted_message.purpose)
        request.request = ctx.request
        _, error = await app.lanes.short(app.house.call, "flows", "knock", ctx, operation_arguments)
        if error is not None:
            raise error
        return HttpResponse(200, b'{"heard":true}', ctx.request)

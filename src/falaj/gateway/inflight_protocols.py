"""Requests of either protocol: how each is asked, what its answers amount to, and how it is told no."""

import time
from collections.abc import Callable
from typing import Any

from falaj.core.errors import FalajError
from falaj.gateway.inflight_request import REPLICA_BUSY, REPLICA_OK, REPLICA_UNABLE, InflightRequest
from falaj.gateway.upstream_connection import UpstreamConnection
from falaj.oip.handler_calls import DEADLINE_EXCEEDED, GRPC_STATUS_CODES, GrpcCall, GrpcReply, HttpCall, HttpReply
from falaj.oip.infer_messages import encode_stream_error
from falaj.oip.rest_codec import error_reply, status_reply
from falaj.oip.upstream_server import MissingReply, UpstreamClient


class InflightHttpRequest(InflightRequest):
    """An HTTP request."""

    body: HttpCall

    @property
    def size(self) -> int:
        """How many bytes it holds."""
        return len(self.body.body)

    def ask(self, client: UpstreamClient, on_reply: Callable[[Any], Any]) -> int:
        """Send it."""
        return client.ask_rest(self.body, self.deadline, on_reply)

    def took_first(self, reply: Any) -> None:
        """As the parent does; written out for what nearly every answer is."""
        upstream = self.link
        if upstream is None:
            return
        tally = self.tally
        if (
            reply.__class__ is not HttpReply
            or reply.status >= 429
            or upstream.fails
            or tally is None
            or self.rival is not None
            or self.hedge is not None
        ):
            self.took(upstream, reply)
            return
        status, now = reply.status, time.monotonic()
        self.over, self.link = True, None
        tally.inflight -= 1
        if self.counts:
            tally.done(now - self.began, status)
        self.hall.answered(self, reply, status, now)

    def status(self, reply: HttpReply) -> tuple[int, str]:
        """What the replica said."""
        status = reply.status
        return (
            status,
            REPLICA_OK
            if status < 429 or status == 504
            else REPLICA_BUSY
            if status == 429
            else _UNABLE_STATUSES.get(status, REPLICA_OK),
        )

    def say(self, error: FalajError) -> HttpReply:
        """An error as an answer."""
        return error_reply(error)

    def late(self) -> HttpReply:
        """504."""
        return status_reply(504, "no answer came in time", "give it longer, or ask for less at once")


class InflightGrpcCall(InflightRequest):
    """A message of a gRPC call."""

    body: GrpcCall
    begun = False
    """Something of a stream was passed on already: it is not asked again."""

    @property
    def size(self) -> int:
        """How many bytes it holds."""
        return len(self.body.message)

    def ask(self, client: UpstreamClient, on_reply: Callable[[Any], Any]) -> int:
        """Send it."""
        return client.ask_grpc(self.body, self.deadline, on_reply)

    def took(self, upstream: UpstreamConnection, reply: Any) -> None:
        """An answer; of a stream there may be more."""
        if not isinstance(reply, MissingReply) and not reply.last and not self.over:
            self.begun = True
            self.reply(reply)
            return
        super().took(upstream, reply)

    def revoke(self, error: FalajError) -> None:
        """End it, and the stream it belongs to: its caller may not call any more."""
        if not self.over:
            self.cancel()
            self.reply(GrpcReply(code=GRPC_STATUS_CODES.get(error.code, 13), text=str(error)))

    def _retry_elsewhere(self, upstream: UpstreamConnection, now: float, replica_outcome: str) -> bool:
        return not self.begun and super()._retry_elsewhere(upstream, now, replica_outcome)

    def status(self, reply: GrpcReply) -> tuple[int, str]:
        """What the replica said, as HTTP would."""
        return _STATUS_BY_GRPC_CODE.get(reply.code, (500, REPLICA_OK))

    def say(self, error: FalajError) -> GrpcReply:
        """An error as an answer; in a stream it is a message, as Triton's clients read it."""
        return grpc_error_reply(self.body.method, GRPC_STATUS_CODES.get(error.code, 13), str(error))

    def late(self) -> GrpcReply:
        """DEADLINE_EXCEEDED."""
        return grpc_error_reply(self.body.method, DEADLINE_EXCEEDED, "no answer came in time")


def grpc_error_reply(method: str, grpc_code: int, text: str) -> GrpcReply:
    """An error as a call is told. Only a caller who is not authenticated loses the whole stream by it."""
    if method == "ModelStreamInfer" and grpc_code != GRPC_STATUS_CODES["unauthenticated"]:
        return GrpcReply(encode_stream_error(text))
    return GrpcReply(code=grpc_code, text=text)


_UNABLE_STATUSES = {502: REPLICA_UNABLE, 503: REPLICA_UNABLE}
_STATUS_BY_GRPC_CODE = {
    0: (200, REPLICA_OK),
    1: (499, REPLICA_OK),
    3: (400, REPLICA_OK),
    4: (504, REPLICA_OK),
    5: (404, REPLICA_OK),
    7: (403, REPLICA_OK),
    8: (429, REPLICA_BUSY),
    9: (422, REPLICA_OK),
    12: (501, REPLICA_OK),
    14: (503, REPLICA_UNABLE),
    16: (401, REPLICA_OK),
}

"""Requests of either protocol: how each is asked, what its answers amount to, and how it is told no."""

import time
from collections.abc import Callable
from typing import Any

from falaj.core.errors import FalajError
from falaj.gateway.link import Link
from falaj.gateway.passing import BUSY, FINE, UNABLE, Passing
from falaj.oip.calls import CODES, DEADLINE_EXCEEDED, Call, GrpcCall, GrpcReply, Reply
from falaj.oip.hop import HopClient, Missed
from falaj.oip.proto import stream_error
from falaj.oip.rest import problem, refusal


class RestPassing(Passing):
    """An HTTP request."""

    body: Call

    @property
    def size(self) -> int:
        """How many bytes it holds."""
        return len(self.body.body)

    def ask(self, client: HopClient, then: Callable[[Any], Any]) -> int:
        """Send it."""
        return client.ask_rest(self.body, self.deadline, then)

    def took_first(self, reply: Any) -> None:
        """As the parent does; written out for what nearly every answer is."""
        link = self.link
        if link is None:
            return
        tally = self.tally
        if (
            reply.__class__ is not Reply or reply.status >= 429 or link.fails
            or tally is None or self.rival is not None or self.hedge is not None
        ):  # fmt: skip
            self.took(link, reply)
            return
        status, now = reply.status, time.monotonic()
        self.over, self.link = True, None
        tally.inflight -= 1
        if self.counts:
            tally.done(now - self.began, status)
        self.hall.answered(self, reply, status, now)

    def status(self, reply: Reply) -> tuple[int, str]:
        """What the replica said."""
        status = reply.status
        return status, FINE if status < 429 or status == 504 else BUSY if status == 429 else _UNABLE.get(status, FINE)

    def say(self, error: FalajError) -> Reply:
        """An error as an answer."""
        return problem(error)

    def late(self) -> Reply:
        """504."""
        return refusal(504, "no answer came in time", "give it longer, or ask for less at once")


class GrpcPassing(Passing):
    """A message of a gRPC call."""

    body: GrpcCall
    begun = False
    """Something of a stream was passed on already: it is not asked again."""

    @property
    def size(self) -> int:
        """How many bytes it holds."""
        return len(self.body.message)

    def ask(self, client: HopClient, then: Callable[[Any], Any]) -> int:
        """Send it."""
        return client.ask_grpc(self.body, self.deadline, then)

    def took(self, link: Link, reply: Any) -> None:
        """An answer; of a stream there may be more."""
        if not isinstance(reply, Missed) and not reply.last and not self.over:
            self.begun = True
            self.reply(reply)
            return
        super().took(link, reply)

    def revoke(self, error: FalajError) -> None:
        """End it, and the stream it belongs to: its caller may not call any more."""
        if not self.over:
            self.cancel()
            self.reply(GrpcReply(code=CODES.get(error.code, 13), text=str(error)))

    def _again(self, link: Link, now: float, could: str) -> bool:
        return not self.begun and super()._again(link, now, could)

    def status(self, reply: GrpcReply) -> tuple[int, str]:
        """What the replica said, as HTTP would."""
        return _STATUS.get(reply.code, (500, FINE))

    def say(self, error: FalajError) -> GrpcReply:
        """An error as an answer; in a stream it is a message, as Triton's clients read it."""
        return grpc_problem(self.body.method, CODES.get(error.code, 13), str(error))

    def late(self) -> GrpcReply:
        """DEADLINE_EXCEEDED."""
        return grpc_problem(self.body.method, DEADLINE_EXCEEDED, "no answer came in time")


def grpc_problem(method: str, code: int, text: str) -> GrpcReply:
    """An error as a call is told. Only a caller who is not authenticated loses the whole stream by it."""
    if method == "ModelStreamInfer" and code != CODES["unauthenticated"]:
        return GrpcReply(stream_error(text))
    return GrpcReply(code=code, text=text)


_UNABLE = {502: UNABLE, 503: UNABLE}
_STATUS = {
    0: (200, FINE), 1: (499, FINE), 3: (400, FINE), 4: (504, FINE), 5: (404, FINE), 7: (403, FINE), 8: (429, BUSY),
    9: (422, FINE), 12: (501, FINE), 14: (503, UNABLE), 16: (401, FINE),
}  # fmt: skip

"""grpc.health.v1 for any door: what load balancers ask. Its answer is the door's own ServerReady."""

from collections.abc import Callable
from typing import Any

from falaj.core.errors import FalajError
from falaj.oip.calls import CODES, UNIMPLEMENTED, GrpcCall, GrpcDoor, GrpcReply
from falaj.oip.messages import NAMED, READY, SERVICE
from falaj.oip.wire import decode

PREFIX = "Health."
"""Stands before the methods of this service, so that no door takes them for its own."""
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"


class Health:
    """A GrpcDoor for the methods of grpc.health.v1."""

    __slots__ = ("_door",)

    def __init__(self, door: GrpcDoor) -> None:
        self._door = door

    def grpc(self, call: GrpcCall, reply: Callable[[GrpcReply], Any]) -> Callable[[], None] | None:
        """Health.Check, of the whole server or of the inference service."""
        try:
            service = decode(NAMED, call.message).get("name", "")
        except FalajError as error:
            reply(GrpcReply(code=CODES["invalid"], text=str(error)))
            return None
        if call.method != PREFIX + "Check":
            reply(GrpcReply(code=UNIMPLEMENTED, text="only Check is offered (ask again now and then)"))
        elif service not in ("", SERVICE):
            reply(GrpcReply(code=CODES["not-found"], text=f"there is no service {service[:60]!r} (try {SERVICE})"))
        else:
            asked = GrpcCall("ServerReady", b"", call.metadata, call.deadline, trusted=call.trusted, peer=call.peer)
            return self._door.grpc(asked, lambda found: reply(_said(found)))
        return None


def _said(found: GrpcReply) -> GrpcReply:
    if found.code:
        return found
    return GrpcReply(_SERVING if decode(READY, found.message).get("ready") else _NOT_SERVING)

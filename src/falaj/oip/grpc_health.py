"""grpc.health.v1 for any door: what load balancers ask. Its answer is the door's own ServerReady."""

from collections.abc import Callable
from typing import Any

from falaj.core.errors import FalajError
from falaj.oip.grpc_messages import MODEL_NAME, READY, SERVICE_NAME
from falaj.oip.handler_calls import GRPC_STATUS_CODES, UNIMPLEMENTED, GrpcCall, GrpcHandler, GrpcReply
from falaj.oip.protobuf import decode_message

HEALTH_PREFIX = "Health."
"""Stands before the methods of this service, so that no door takes them for its own."""
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"


class HealthHandler:
    """A GrpcDoor for the methods of grpc.health.v1."""

    __slots__ = ("_handler",)

    def __init__(self, handler: GrpcHandler) -> None:
        self._handler = handler

    def grpc(self, call: GrpcCall, send_reply: Callable[[GrpcReply], Any]) -> Callable[[], None] | None:
        """Health.Check, of the whole server or of the inference service."""
        try:
            service = decode_message(MODEL_NAME, call.message).get("name", "")
        except FalajError as error:
            send_reply(GrpcReply(code=GRPC_STATUS_CODES["invalid"], text=str(error)))
            return None
        if call.method != HEALTH_PREFIX + "Check":
            send_reply(GrpcReply(code=UNIMPLEMENTED, text="only Check is offered (ask again now and then)"))
        elif service not in ("", SERVICE_NAME):
            send_reply(
                GrpcReply(
                    code=GRPC_STATUS_CODES["not-found"],
                    text=f"there is no service {service[:60]!r} (try {SERVICE_NAME})",
                )
            )
        else:
            ready_call = GrpcCall(
                "ServerReady", b"", call.metadata, call.deadline, trusted=call.trusted, peer=call.peer
            )
            return self._handler.grpc(ready_call, lambda ready_reply: send_reply(_to_health_reply(ready_reply)))
        return None


def _to_health_reply(ready_reply: GrpcReply) -> GrpcReply:
    if ready_reply.code:
        return ready_reply
    return GrpcReply(_SERVING if decode_message(READY, ready_reply.message).get("ready") else _NOT_SERVING)

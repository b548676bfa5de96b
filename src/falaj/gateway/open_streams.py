"""Ends streams whose caller may no longer call: a stream may last for hours, a decision about its caller one second."""

from collections.abc import Mapping
from functools import partial

from falaj.gateway.callers import CALLER_ERRORS, CallerDirectory, CallerKey, EndpointCaller, caller_key
from falaj.gateway.inflight_protocols import InflightGrpcCall
from falaj.oip.hpack_cache import STREAM_INFER_METHOD

CHECK_INTERVAL_S = 0.2
"""How often the callers of open streams are checked; together with the age of a decision less than a second."""


class OpenGrpcStreams:
    """The messages of streams that have not got their last answer."""

    def __init__(self, callers: CallerDirectory) -> None:
        self._callers = callers
        self._by_caller: dict[CallerKey, tuple[bytes, set[InflightGrpcCall]]] = {}

    def add(self, message: InflightGrpcCall, metadata: Mapping[bytes, bytes]) -> None:
        """Check the caller of this message, who sent these headers, until it is answered; of streams only."""
        if message.body.method != STREAM_INFER_METHOD:
            return
        authorization = metadata.get(b"authorization", b"")
        key = caller_key(metadata, authorization, message.caller.name[1])
        self._by_caller.setdefault(key, (authorization, set()))[1].add(message)

    def check(self, now: float) -> None:
        """Forget messages that were answered; end those whose caller was refused meanwhile."""
        for key, (authorization, messages) in tuple(self._by_caller.items()):
            messages -= {message for message in messages if message.over}
            if not messages:
                del self._by_caller[key]
                continue
            caller = self._callers.known(key, authorization, now)
            if caller is None:
                # The answer is used when it comes: at the next check it may have expired again on a loaded machine.
                caller = self._callers.ask(key, authorization, "", partial(self._revoke_messages, key))
            if caller is not None:
                self._revoke_messages(key, caller)

    def _revoke_messages(self, key: CallerKey, caller: EndpointCaller) -> None:
        """End the messages of a caller who was refused."""
        if isinstance(caller.refused, CALLER_ERRORS) and key in self._by_caller:
            for message in self._by_caller.pop(key)[1]:
                message.revoke(caller.refused)

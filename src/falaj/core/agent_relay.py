"""Relay: questions to a zone's agent and its answers. An agent only dials out, so what is asked of it waits here until
its connection takes it along. Kept in memory: every question may be asked again, and whoever asks does.
"""

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from falaj.core.errors import FalajError, Unavailable, error_from_wire

AGENT_URI = "falaj:agent/"
"""How the URI in an agent's certificate begins; its zone and its id follow."""
ANSWER_TIMEOUT_S = 20.0
"""So long a question waits for its answer."""
HEARTBEAT_TIMEOUT_S = 15.0
"""An agent gives a sign of life every five seconds; one that was not heard for so long is not there."""
SendMessage = Callable[[Mapping[str, Any]], None]


class AgentRelay:
    """One zone's agent, as this process knows it."""

    def __init__(self, zone: str) -> None:
        self.zone = zone
        self.seen = 0.0
        """When it was last heard, in seconds since the epoch; 0 when never by this process."""
        self.door = ""
        """Where people and attempts of the zone reach it, as it says."""
        self._lock = threading.Lock()
        self._pending_requests: dict[str, _PendingRequest] = {}
        self._request_numbers = itertools.count(1)
        self._send_message: SendMessage | None = None

    @property
    def connected(self) -> bool:
        """True while its connection is open and it is heard."""
        return self._send_message is not None and time.time() - self.seen < HEARTBEAT_TIMEOUT_S

    def ask(self, command: str, arguments: Mapping[str, Any], timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """What the agent answers, or the error it met; Unavailable when it is not there or does not answer."""
        with self._lock:
            request = _PendingRequest({"id": str(next(self._request_numbers)), "do": command, "given": dict(arguments)})
            send_message = self._send_message
            if send_message is None or not self.connected:
                raise self.unreachable()
            self._pending_requests[request.message["id"]] = request
        try:
            send_message(request.message)
            if not request.done.wait(timeout_s):
                raise self.unreachable()
        finally:
            with self._lock:
                self._pending_requests.pop(request.message["id"], None)
        if request.error is not None:
            raise request.error
        return request.result

    def leave(self, command: str, arguments: Mapping[str, Any], timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """The same for an order that must not be lost nor done twice: unanswered, it stays and goes with the next
        connection, and None is given."""
        with self._lock:
            request = _PendingRequest(
                {"id": str(next(self._request_numbers)), "do": command, "given": dict(arguments)},
                survives_reconnect=True,
            )
            self._pending_requests[request.message["id"]] = request
            send_message = self._send_message
        if send_message is not None:
            send_message(request.message)
        if not request.done.wait(timeout_s if self.connected else 0.0):
            return None
        if request.error is not None:
            raise request.error
        return request.result

    def left(self, command: str) -> list[Mapping[str, Any]]:
        """What was left for the agent and is not answered yet."""
        with self._lock:
            return [
                request.message["given"]
                for request in self._pending_requests.values()
                if request.stays and request.message["do"] == command
            ]

    def unreachable(self) -> Unavailable:
        """The error of an agent that is not there."""
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.seen)) if self.seen else "the start"
        return Unavailable(
            f"the agent of zone {self.zone} is unreachable since {since}",
            "what runs there runs on; look at the link, and at `falaj agent` on its machine",
        )

    def listen(self, send_message: SendMessage, agent_address: str = "") -> Callable[[], None]:
        """Take the place of whoever listened before; what is open is asked again. Gives what ends the listening."""
        with self._lock:
            self._send_message, self.seen, self.door = send_message, time.time(), agent_address or self.door
            pending_messages = [request.message for request in self._pending_requests.values()]
        for message in pending_messages:
            send_message(message)

        def detach_connection() -> None:
            with self._lock:
                if self._send_message is send_message:
                    self._send_message = None

        return detach_connection

    def hear(self) -> None:
        """Note a sign of life."""
        self.seen = time.time()

    def answer(self, request_number: str, result: Any, error: Mapping[str, str] | None = None) -> None:
        """Hand an answer to whoever waits for it; one that nobody waits for any more is let go."""
        self.hear()
        with self._lock:
            request = self._pending_requests.get(request_number)
            if request is not None and request.stays:
                del self._pending_requests[request_number]
        if request is not None:
            request.result, request.error = result, error_from_wire(dict(error)) if error else None
            request.done.set()


class _PendingRequest:
    """One question on its way."""

    def __init__(self, message: dict[str, Any], *, survives_reconnect: bool = False) -> None:
        self.message = message
        self.stays = survives_reconnect
        self.done = threading.Event()
        self.result: Any = None
        self.error: FalajError | None = None


_relays: dict[str, AgentRelay] = {}
_relays_lock = threading.Lock()


def get_relay(zone: str) -> AgentRelay:
    """The relay of a zone in this process: the executor asks it, the edge answers it."""
    with _relays_lock:
        return _relays.setdefault(zone, AgentRelay(zone))

"""Relay: questions to a zone's agent and its answers. An agent only dials out, so what is asked of it waits here until
its connection takes it along. Kept in memory: every question may be asked again, and whoever asks does.
"""

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from falaj.core.errors import FalajError, Unavailable, from_wire

AGENT_URI = "falaj:agent/"
"""How the URI in an agent's certificate begins; its zone and its id follow."""
ANSWER_S = 20.0
"""So long a question waits for its answer."""
SILENT_S = 15.0
"""An agent gives a sign of life every five seconds; one that was not heard for so long is not there."""
Tell = Callable[[Mapping[str, Any]], None]


class Relay:
    """One zone's agent, as this process knows it."""

    def __init__(self, zone: str) -> None:
        self.zone = zone
        self.seen = 0.0
        """When it was last heard, in seconds since the epoch; 0 when never by this process."""
        self.door = ""
        """Where people and attempts of the zone reach it, as it says."""
        self._lock = threading.Lock()
        self._open: dict[str, _Question] = {}
        self._numbers = itertools.count(1)
        self._tell: Tell | None = None

    @property
    def connected(self) -> bool:
        """True while its connection is open and it is heard."""
        return self._tell is not None and time.time() - self.seen < SILENT_S

    def ask(self, do: str, given: Mapping[str, Any], answer_s: float = ANSWER_S) -> Any:
        """What the agent answers, or the error it met; Unavailable when it is not there or does not answer."""
        with self._lock:
            question = _Question({"id": str(next(self._numbers)), "do": do, "given": dict(given)})
            tell = self._tell
            if tell is None or not self.connected:
                raise self.unreachable()
            self._open[question.message["id"]] = question
        try:
            tell(question.message)
            if not question.done.wait(answer_s):
                raise self.unreachable()
        finally:
            with self._lock:
                self._open.pop(question.message["id"], None)
        if question.error is not None:
            raise question.error
        return question.result

    def leave(self, do: str, given: Mapping[str, Any], answer_s: float = ANSWER_S) -> Any:
        """The same for an order that must not be lost nor done twice: unanswered, it stays and goes with the next
        connection, and None is given."""
        with self._lock:
            question = _Question({"id": str(next(self._numbers)), "do": do, "given": dict(given)}, stays=True)
            self._open[question.message["id"]] = question
            tell = self._tell
        if tell is not None:
            tell(question.message)
        if not question.done.wait(answer_s if self.connected else 0.0):
            return None
        if question.error is not None:
            raise question.error
        return question.result

    def left(self, do: str) -> list[Mapping[str, Any]]:
        """What was left for the agent and is not answered yet."""
        with self._lock:
            return [one.message["given"] for one in self._open.values() if one.stays and one.message["do"] == do]

    def unreachable(self) -> Unavailable:
        """The error of an agent that is not there."""
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.seen)) if self.seen else "the start"
        return Unavailable(
            f"the agent of zone {self.zone} is unreachable since {since}",
            "what runs there runs on; look at the link, and at `falaj agent` on its machine",
        )

    def listen(self, tell: Tell, door: str = "") -> Callable[[], None]:
        """Take the place of whoever listened before; what is open is asked again. Gives what ends the listening."""
        with self._lock:
            self._tell, self.seen, self.door = tell, time.time(), door or self.door
            waiting = [question.message for question in self._open.values()]
        for message in waiting:
            tell(message)

        def end() -> None:
            with self._lock:
                if self._tell is tell:
                    self._tell = None

        return end

    def hear(self) -> None:
        """Note a sign of life."""
        self.seen = time.time()

    def answer(self, number: str, result: Any, error: Mapping[str, str] | None = None) -> None:
        """Hand an answer to whoever waits for it; one that nobody waits for any more is let go."""
        self.hear()
        with self._lock:
            question = self._open.get(number)
            if question is not None and question.stays:
                del self._open[number]
        if question is not None:
            question.result, question.error = result, from_wire(dict(error)) if error else None
            question.done.set()


class _Question:
    """One question on its way."""

    def __init__(self, message: dict[str, Any], *, stays: bool = False) -> None:
        self.message = message
        self.stays = stays
        self.done = threading.Event()
        self.result: Any = None
        self.error: FalajError | None = None


_known: dict[str, Relay] = {}
_knowing = threading.Lock()


def relay_of(zone: str) -> Relay:
    """The relay of a zone in this process: the executor asks it, the edge answers it."""
    with _knowing:
        return _known.setdefault(zone, Relay(zone))

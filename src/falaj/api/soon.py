"""Soon: calls that a lane answers, without a task for each. The server reads on, and writes when the lane is done.

A task, its cycle and its future cost as much as all else that the edge does for a small call. What comes this way is as
sure to be well-formed as what is answered at once (`quick`), and ends like everything else: in time, or told so.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from falaj.api.call_executor import CallOutcome, capture_outcome
from falaj.api.responses import HttpResponse, render_error
from falaj.core.errors import FalajError, StaleRevision, Unavailable
from falaj.core.ports import RecordKey

if TYPE_CHECKING:
    from falaj.api.app import HttpApplication
    from falaj.api.routes import RequestContext

TRIES = 6
"""How often a call is tried again that others met at the same moment; nothing of it happened. MLflow's clients would
give up."""


def pause_s(turn: int) -> float:
    """How long to wait before that: each time longer, and by chance, so that those who met do not meet again."""
    return float(secrets.randbelow(1000) * 1e-5 * 2**turn)


class Lane(Protocol):
    """Where a call runs."""

    def __call__(
        self, run: Callable[..., Any], *args: Any, needed_keys: Sequence[RecordKey] = (), receiver: Any = None
    ) -> Any: ...


class Work(NamedTuple):
    """What a lane is asked to do, and what is made of its outcome."""

    action: str
    lane: Lane
    run: Callable[..., Any]
    args: tuple[Any, ...]
    needs: Sequence[RecordKey]
    answer: Callable[[CallOutcome], HttpResponse]


Taker = Callable[["RequestContext", bytes], Work]
"""Reads a request; an error of ours means that the ordinary way is to say so."""


class Line(Protocol):
    """The connection that waits for the answer."""

    loop: asyncio.AbstractEventLoop

    def finish(self, direct_call: "Soon", response: HttpResponse) -> None: ...


class Soon:
    """One call under way. It stands where the server keeps what it is answering, so that what comes in behind it on the
    same connection waits for its turn."""

    __slots__ = (
        "_app", "_begun", "_line", "_request", "_tries", "_work", "disconnected", "keep_alive", "message_event",
        "program", "response_complete",
    )  # fmt: skip

    def __init__(self, app: "HttpApplication", line: Line, work: Work, request: str, begun: float) -> None:
        self._app, self._line, self._work, self._request, self._begun = app, line, work, request, begun
        self._tries = 0
        self.program = False
        """Whether it was certainly no browser that asked."""
        self.disconnected = self.response_complete = False
        self.keep_alive = True
        """False once the connection is to end with this answer."""
        self.message_event = _NOBODY

    def start(self) -> None:
        """Put it into its lane."""
        self._app.deadlines.open(self)
        self._ask()

    def done(self) -> bool:
        """Whether nobody waits for the outcome any more."""
        return self.response_complete

    def set_result(self, outcome: CallOutcome) -> None:
        """The lane is done with it."""
        if isinstance(outcome.error, StaleRevision) and self._tries < TRIES:
            self._line.loop.call_later(pause_s(self._tries), self._again)
            self._tries += 1
            return
        self._say(outcome)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Where its deadline is counted."""
        return self._line.loop

    def cancel(self) -> None:
        """It is too late; what the lane does with it goes on."""
        hint = "ask again with the same Idempotency-Key to learn the outcome"
        self._finish(render_error(Unavailable("no answer in time", hint), self._request))

    def _again(self) -> None:
        if not self.response_complete:
            self._ask()

    def _ask(self) -> None:
        work = self._work
        try:
            work.lane(work.run, *work.args, needed_keys=work.needs, receiver=self)
        except FalajError as error:  # too many wait
            self._say(CallOutcome(None, error))

    def _say(self, outcome: CallOutcome) -> None:
        answer, broken = capture_outcome(
            self._work.answer, (outcome,)
        )  # those that are answered together must not suffer
        self._finish(answer if broken is None else render_error(broken, self._request))

    def _finish(self, answer: HttpResponse) -> None:
        self._app.deadlines.close(self)
        self.response_complete = True
        self._app.metrics.count(self._work.action, answer.status, time.perf_counter() - self._begun)
        self._line.finish(self, answer)


class _Nobody:
    """Nobody waits for more of the body: it is here."""

    def set(self) -> None:
        """Nothing to wake."""


_NOBODY = _Nobody()

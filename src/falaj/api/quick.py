"""Quick answers: what is called often is judged and answered where its bytes are read, without a task for each call.

Only what is sure to be answered at once comes this way: a caller who is known and within their share, a small JSON
body, a verb whose stores are at hand. What a lane has to answer needs no task either (`soon`). All else, and whatever
the edge refuses, goes the ordinary way from the start.
"""

import time
from collections.abc import Mapping, MutableMapping
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from falaj.api.call_executor import capture_outcome
from falaj.api.responses import JSON_TYPE, HttpError, HttpResponse, is_program_request, render_error
from falaj.api.routes import OperationCall, RequestContext
from falaj.api.soon import Line, Soon, Taker
from falaj.core.context import CallContext
from falaj.core.errors import FalajError

if TYPE_CHECKING:
    from falaj.api.app import HttpApplication

BODY_BYTES = 65_536


class Quick:
    """The calls of a house that need no task, by their paths: those that are answered at once, and those that a lane
    answers."""

    def __init__(
        self, app: "HttpApplication", calls: Mapping[bytes, OperationCall], takers: Mapping[bytes, Taker]
    ) -> None:
        self._app = app
        self.calls = calls
        self.takers = takers
        self.paths = frozenset((*calls, *takers))

    def answer(self, scope: MutableMapping[str, Any], body: bytes) -> HttpResponse | None:
        """The same answer that the ordinary way gives, or None, and then nothing was done yet."""
        app, begun = self._app, time.perf_counter()
        call = self.calls[scope["raw_path"]]
        try:
            ask = self._known(scope)
            if ask is None:
                return None
            ctx: CallContext = app.gate.context(ask, ask.caller)
            if ctx.keyed:
                return None
            given = app.parsed(call.arguments, body)
        except (FalajError, HttpError):
            return None
        app.gate.spend(ask)
        value, error = copy_context().run(capture_outcome, app.within, (call, ask, ctx, given))
        answer = HttpResponse(200, value, ctx.request) if error is None else render_error(error, ctx.request)
        app.metrics.count(call.action, answer.status, time.perf_counter() - begun)
        return answer

    def begin(self, scope: MutableMapping[str, Any], body: bytes, line: Line) -> Soon | None:
        """What a lane will answer, not started yet; None where the ordinary way is to do it."""
        app, begun = self._app, time.perf_counter()
        try:
            ask = self._known(scope)
            if ask is None:
                return None
            work = self.takers[scope["raw_path"]](ask, body)
        except (FalajError, HttpError):
            return None
        app.gate.spend(ask)
        soon = Soon(app, line, work, ask.request, begun)
        soon.program = is_program_request(ask.headers)
        return soon

    def _known(self, scope: MutableMapping[str, Any]) -> RequestContext | None:
        """A plain request of somebody who is known and may ask now."""
        ask = RequestContext(scope, _never, _never)
        self._app.gate.check_place(ask)
        if ask.headers.get(b"content-type") != JSON_TYPE or b"content-encoding" in ask.headers:
            return None
        return ask if self._app.gate.at_hand(ask) else None


async def _never(*message: Any) -> Any:
    raise NotImplementedError("the body is here already, and the answer is written by the connection")

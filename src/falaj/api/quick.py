"""Quick answers: what is called often is judged and answered where its bytes are read, without a task for each call.

Only what is sure to be answered at once comes this way: a caller who is known and within their share, a small JSON
body, a verb whose stores are at hand. All else, and whatever the edge refuses, goes the ordinary way from the start.
"""

import time
from collections.abc import Mapping, MutableMapping
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from falaj.api.answers import JSON, Answer, Refusal, render
from falaj.api.lanes import attempt
from falaj.api.routes import Ask, Call
from falaj.core.errors import FalajError

if TYPE_CHECKING:
    from falaj.api.app import App

BODY_BYTES = 65_536


class Quick:
    """The calls of a house that may be answered at once, by their paths."""

    def __init__(self, app: "App", calls: Mapping[bytes, Call]) -> None:
        self._app = app
        self.calls = calls

    def answer(self, scope: MutableMapping[str, Any], body: bytes) -> Answer | None:
        """The same answer that the ordinary way gives, or None, and then nothing was done yet."""
        app, begun = self._app, time.perf_counter()
        call = self.calls[scope["raw_path"]]
        try:
            ask = Ask(scope, _never, _never)
            app.gate.check_place(ask)
            if ask.headers.get(b"content-type") != JSON or b"content-encoding" in ask.headers:
                return None
            if not app.gate.at_hand(ask):
                return None
            ctx = app.gate.context(ask, ask.caller)
            if ctx.keyed:
                return None
            given = app.parsed(call.arguments, body)
        except (FalajError, Refusal):
            return None
        app.gate.spend(ask)
        value, error = copy_context().run(attempt, app.within, (call, ask, ctx, given))
        answer = Answer(200, value, ctx.request) if error is None else render(error, ctx.request)
        app.metrics.count(call.action, answer.status, time.perf_counter() - begun)
        return answer


async def _never(*message: Any) -> Any:
    raise NotImplementedError("the body is here already, and the answer is written by the connection")

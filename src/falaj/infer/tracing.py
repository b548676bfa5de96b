"""Traces of requests: how long each waited, ran with whom, and took to be answered. Off unless a collector is named."""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from falaj.core.errors import FalajError
from falaj.core.trace import SERVER, Span, Tracer, parse, tracer
from falaj.infer.queue import Done
from falaj.oip.tensors import Answer, Ask

if TYPE_CHECKING:
    from falaj.infer.batcher import Ran
    from falaj.infer.engine import Engine

TRACED = 0.01
"""The share of requests without a trace of their own that begin one; those of a gateway follow its choice."""


class Tracing:
    """What a door asks for every request; there is none where nothing is traced."""

    def __init__(self, to: Tracer, ran: "Callable[[str, str], Ran | None]") -> None:
        self._to, self._ran = to, ran

    def noting(self, ask: Ask, headers: Mapping[bytes, bytes], trusted: bool, done: Done) -> Done:
        """The same `done`, which also tells of this request where it is traced."""
        parent = parse(headers.get(b"traceparent"))
        if parent is None and trusted:
            return done
        whole = self._to.begin("infer", parent, SERVER)
        if whole is None:
            return done
        span, began = whole, time.monotonic()

        def noted(answer: Answer | FalajError) -> None:
            ran = self._ran(ask.model, ask.version)
            done(answer)
            ended = time.monotonic()
            span.about = {"falaj.model": ask.model, "falaj.version": ask.version}
            if isinstance(answer, FalajError):
                span.failed = answer.code
            if ran is not None and ran.ended >= began:
                span.about |= {"falaj.batch_requests": _requests(ran), "falaj.batch_rows": _rows(ran)}
                for name, since, until in (
                    ("queue", began, ran.began), ("compute", ran.began, ran.ended), ("deliver", ran.ended, ended),
                ):  # fmt: skip
                    self._part(span, name, since - began, until - began)
            self._to.end(span)

        return noted

    def _part(self, whole: Span, name: str, since_s: float, until_s: float) -> None:
        part = Span(name, whole.link.below(whole.link.span, name), whole.link.span)
        part.began_ns = whole.began_ns + int(since_s * 1e9)
        self._to.end(part, whole.began_ns + int(until_s * 1e9))


def tracing_of(engine: "Engine") -> Tracing | None:
    """What the environment asks for."""
    found = tracer("falaj-infer", share=TRACED)
    return Tracing(found, engine.ran) if found is not None else None


def _requests(ran: "Ran") -> int:
    return sum(one.ask.num for one in ran.members)


def _rows(ran: "Ran") -> int:
    return sum(one.rows for one in ran.members)

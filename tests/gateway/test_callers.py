"""By what callers are remembered: nothing that could be shown again; and that every lookup of a caller ends."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

from falaj.core.errors import FalajError, Unauthenticated, Unavailable
from falaj.gateway.admission import GrpcHeadContext
from falaj.gateway.callers import CallerDirectory, EndpointCaller, caller_key
from falaj.gateway.inflight_protocols import InflightGrpcCall
from falaj.gateway.open_streams import OpenGrpcStreams
from falaj.oip.handler_calls import GrpcCall

TOKEN = b"Bearer falaj_0123456789abcdef0123456789abcdef"


def test_a_caller_is_known_by_what_was_shown_and_asked_for_and_the_token_is_not_kept() -> None:
    key = caller_key({b"falaj-purpose": b"fraud"}, TOKEN, "fraud.score")
    assert key == caller_key({b"falaj-purpose": b"fraud", b"other": b"1"}, TOKEN, "fraud.score")
    others = [
        caller_key({}, TOKEN, "fraud.score"),
        caller_key({b"falaj-purpose": b"fraud"}, TOKEN[:-1], "fraud.score"),
        caller_key({b"falaj-purpose": b"fraud"}, TOKEN, "fraud.other"),
        caller_key({b"falaj-purpose": b"fraud"}, b"", ""),
    ]
    assert len({key, *others}) == 5
    assert len(key[0]) == 16
    assert b"falaj_" not in key[0]


def test_calls_with_the_same_headers_keep_no_caller_of_another_endpoint() -> None:
    metadata = {b"authorization": TOKEN, b"falaj-purpose": b"fraud"}
    lead = GrpcHeadContext(metadata)
    assert lead.key_for("fraud.score") == caller_key(metadata, TOKEN, "fraud.score")
    lead.endpoint_caller = EndpointCaller(None, "fraud.score", 0.0)
    assert lead.key_for("fraud.score") == caller_key(metadata, TOKEN, "fraud.score")
    assert lead.endpoint_caller is not None
    assert lead.key_for("fraud.other") == caller_key(metadata, TOKEN, "fraud.other")
    assert lead.endpoint_caller is None


class FailingHouse:
    """Raises this error for every token."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def authenticate(self, token: str) -> Any:
        raise self.error

    def deny(self, actor: None, action: str, reason: str) -> None:
        """The audit log's entry of a refusal."""


class InlinePool:
    """An executor that runs everything in the calling thread."""

    def submit(self, work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments))
        except RuntimeError as error:
            future.set_exception(error)
        return future


class DeferredLoop:
    """Keeps what an event loop would run next."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def call_soon_threadsafe(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.calls.append((call, arguments))

    def run(self) -> None:
        while self.calls:
            call, arguments = self.calls.pop(0)
            call(*arguments)


class OpenMessage:
    """A message of a stream, which the replica has not answered."""

    over = False
    body = GrpcCall("ModelStreamInfer", b"")

    def __init__(self) -> None:
        self.caller = EndpointCaller(None, "fraud.score", 0.0)
        self.errors: list[FalajError] = []

    def revoke(self, error: FalajError) -> None:
        self.errors.append(error)


def failing_callers(error: Exception) -> tuple[CallerDirectory, DeferredLoop]:
    loop = DeferredLoop()
    callers = CallerDirectory(
        cast("Any", FailingHouse(error)), cast("Any", InlinePool()), cast("Any", loop), lambda _: None
    )
    callers._unverified_pool.shutdown()
    callers._unverified_pool = cast("Any", InlinePool())
    return callers, loop


def test_an_unexpected_error_of_a_lookup_is_answered_and_the_caller_is_looked_up_again() -> None:
    callers, loop = failing_callers(RuntimeError("a fault of the platform"))
    key, answers = caller_key({}, TOKEN, "fraud.score"), list[EndpointCaller]()
    for expected in (1, 2):
        callers.ask(key, TOKEN, "127.0.0.1", answers.append)
        loop.run()
        assert len(answers) == expected
        assert isinstance(answers[-1].refused, Unavailable)


def test_a_stream_ends_although_every_decision_expires_before_the_next_check() -> None:
    callers, loop = failing_callers(Unauthenticated("this token is unknown", "sign in again"))
    streams, message = OpenGrpcStreams(callers), OpenMessage()
    streams.add(cast("InflightGrpcCall", message), {b"authorization": TOKEN})
    streams.check(1e12)  # no decision is younger
    loop.run()
    assert [error.code for error in message.errors] == ["unauthenticated"]

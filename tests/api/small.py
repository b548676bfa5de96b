"""A very small house: one desk that echoes, breaks and streams, for what the edge itself must do.

What needs the real guard, ledger and desks is tested against the real house, in the files named after it.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Annotated, Any

from falaj.api.http_server import HttpServer, create_http_server
from falaj.core.byte_stream import ByteStream
from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.dependency_health import DependencyMonitor
from falaj.core.errors import FalajError, Unauthenticated
from falaj.core.event import Event
from falaj.core.label import Label
from falaj.core.operation import list_operations, operation
from falaj.core.ref import Ref
from falaj.core.settings import Settings
from falaj.store.ledger_statistics import LedgerStatistics

TOKENS = {
    "falaj_house-token-0000000000": Actor("root", SYSTEM_TENANT, roles=frozenset({"operator"})),
    "falaj_amal-token-00000000000": Actor("amal", "bank"),
}
HOUSE_TOKEN, AMAL_TOKEN = TOKENS


@dataclass(frozen=True, slots=True)
class Inner:
    count: int
    about: Ref | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """What came in."""

    name: Ref
    text: str = ""
    number: int = 0
    share: float = 0.0
    flag: bool = False
    many: tuple[str, ...] = ()
    refs: tuple[Ref, ...] = ()
    pairs: dict[str, str] | None = None
    label: Label | None = None
    inner: Inner | None = None
    request: str = ""
    purpose: str = ""


class Echo:
    """Says back what it hears."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.seen: list[tuple[str, Any]] = []

    @operation(reads=("name",))
    def say(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "what to name"],
        text: str = "",
        number: int = 0,
        share: float = 0.0,
        flag: bool = False,
        many: tuple[str, ...] = (),
        refs: tuple[Ref, ...] = (),
        pairs: dict[str, str] | None = None,
        label: Label | None = None,
        inner: Inner | None = None,
    ) -> Said:
        """Say back every argument.

        Example:
            falaj echo say dataset:a/b --text hello
        """
        self.seen.append(("say", text))
        return Said(name, text, number, share, flag, many, refs, pairs, label, inner, ctx.request, ctx.purpose)

    @operation()
    def nothing(self, ctx: CallContext) -> None:
        """Do nothing."""

    @operation()
    def fail(self, ctx: CallContext, code: str) -> None:
        """Raise the error of that code, or one that is nobody's."""
        for cls in every_error():
            if cls.code == code:
                raise cls(f"it is {code}", "do something", "dataset:a/b")
        raise ZeroDivisionError(f"secret {code} in /etc/falaj/keys")

    @operation()
    def wait(self, ctx: CallContext) -> None:
        """Wait until released."""
        self.release.wait(20)

    @operation(writes=("name",), group="write", has_outside_effects=True)
    def put(self, ctx: CallContext, name: Ref, data: ByteStream) -> int:
        """Count the bytes of a stream."""
        total, largest = 0, 0
        for chunk in data:
            total += len(chunk)
            largest = max(largest, len(chunk))
        self.seen.append(("largest", largest))
        return total

    @operation(has_outside_effects=True, group="read")
    def get(self, ctx: CallContext, size: int, broken_at: int = -1, known: bool = True) -> ByteStream:
        """Give that many bytes."""

        def chunks() -> Iterator[bytes]:
            block, sent = b"x" * 65536, 0
            while sent < size:
                if 0 <= broken_at <= sent:
                    raise FalajError("it broke on the way")
                part = block[: min(len(block), size - sent)]
                sent += len(part)
                yield part

        return ByteStream(chunks(), size if known else None)

    @operation(reads=("name",))
    def show(self, ctx: CallContext, name: Ref) -> Said:
        """Show a thing."""
        return Said(name)


class Watched:
    """The gate of the event stream."""

    @operation(group="audit")
    def watch(self, ctx: CallContext) -> None:
        """May one listen?"""
        if ctx.actor.id == "deaf":
            raise Unauthenticated("no")


def every_error() -> list[type[FalajError]]:
    found: list[type[FalajError]] = [FalajError]
    for cls in found:
        found.extend(cls.__subclasses__())
    return [cls for cls in found if cls.__module__ == "falaj.core.errors"]


class SmallLedger:
    """A log in a list."""

    store = None

    def __init__(self) -> None:
        self.facts: list[SimpleNamespace] = []
        self.groups = 0
        self.counts = LedgerStatistics()
        self._wake: list[Callable[[], None]] = []
        self.broken = False

    @contextmanager
    def group(self) -> Iterator[None]:
        self.groups += 1
        yield
        if self.broken:
            raise OSError("no space left on device /var/lib/falaj")

    @contextmanager
    def read(self, ctx: CallContext) -> Iterator[None]:
        del ctx
        yield

    def logs(self) -> list[tuple[str, str]]:
        return []

    def polling(self) -> AbstractContextManager[None]:
        return nullcontext()

    def on_commit(self, callback: Callable[[], None]) -> None:
        self._wake.append(callback)

    def emit(self, tenant: str, kind: str = "echo.say") -> None:
        event = Event(kind, "amal", Ref("dataset", "a", "b", "v1"), tenant, "home", time.time())
        self.facts.append(SimpleNamespace(event=event, pos=f"{len(self.facts) + 1:08d}"))
        for wake in self._wake:
            wake()

    def tail(
        self, after: str = "", *, tenant: str = "", zone: str = "", limit: int = 1000, **where: str
    ) -> list[SimpleNamespace]:
        del zone
        chosen = [f for f in self.facts if f.pos > after and f.event.tenant == tenant]
        return [f for f in chosen if not where.get("verb") or f.event.verb == where["verb"]][:limit]


class SmallHouse:
    """What the edge asks of a house."""

    def __init__(self, **settings: Any) -> None:
        self.settings = replace(Settings(home="/nowhere", listen="127.0.0.1:0"), **settings)
        self.ledger = SmallLedger()
        self.echo = Echo()
        self.desks: dict[str, object] = {"echo": self.echo, "audit": Watched()}
        self.denials: list[tuple[str, str]] = []
        self.tokens = dict(TOKENS)
        self.asked = 0
        self.dependencies = DependencyMonitor({"store": lambda: None})
        self.fence = SimpleNamespace(is_up=False, origin="")

    def authenticate(self, token: str) -> Actor:
        self.asked += 1
        if token not in self.tokens:
            raise Unauthenticated("no identity provider knows this token", "sign in: falaj login")
        return self.tokens[token]

    def context(self, actor: Actor, *, request_id: str = "", purpose: str = "") -> CallContext:
        if request_id:
            return CallContext(actor, "home", request=request_id, keyed=True, purpose=purpose)
        return CallContext(actor, "home", purpose=purpose)

    def call(self, desk: str, name: str, ctx: CallContext, arguments: Mapping[str, Any]) -> Any:
        room = self.desks[desk]
        assert name in list_operations(type(room))
        return getattr(room, name)(ctx, **arguments)

    def check(self, desk: str, name: str, ctx: CallContext, arguments: Mapping[str, Any]) -> None:
        del ctx, arguments
        assert name in list_operations(type(self.desks[desk]))

    def deny(self, ctx: CallContext | None, path: str, reason: str) -> None:
        self.denials.append((ctx.actor.id if ctx else "", path))

    def system(self) -> CallContext:
        return self.context(Actor("falaj", SYSTEM_TENANT))

    def turned(self) -> tuple[()]:
        return ()

    def replicas(self) -> tuple[()]:
        return ()

    def start_loops(self) -> None: ...
    def stop_loops(self) -> None: ...


@contextmanager
def serving(house: Any, **options: Any) -> Iterator[HttpServer]:
    """The house behind a real listener, in a thread of this process."""
    server, renew = create_http_server(house, **options)
    up = threading.Event()
    thread = threading.Thread(target=server.go, args=(lambda _: up.set(), renew), daemon=True)
    thread.start()
    assert up.wait(20)
    try:
        yield server
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()

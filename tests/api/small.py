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

from falaj.api.server import Server, make_server
from falaj.core.context import HOUSE, Actor, Context
from falaj.core.errors import FalajError, Unauthenticated
from falaj.core.event import Event
from falaj.core.health import DependencyMonitor
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.core.settings import Settings
from falaj.core.stream import Stream
from falaj.core.verb import verb, verbs_of
from falaj.store.counts import Counts

TOKENS = {
    "falaj_house-token-0000000000": Actor("root", HOUSE, roles=frozenset({"operator"})),
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

    @verb(reads=("name",))
    def say(
        self,
        ctx: Context,
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

    @verb()
    def nothing(self, ctx: Context) -> None:
        """Do nothing."""

    @verb()
    def fail(self, ctx: Context, code: str) -> None:
        """Raise the error of that code, or one that is nobody's."""
        for cls in every_error():
            if cls.code == code:
                raise cls(f"it is {code}", "do something", "dataset:a/b")
        raise ZeroDivisionError(f"secret {code} in /etc/falaj/keys")

    @verb()
    def wait(self, ctx: Context) -> None:
        """Wait until released."""
        self.release.wait(20)

    @verb(writes=("name",), group="write", outside=True)
    def put(self, ctx: Context, name: Ref, data: Stream) -> int:
        """Count the bytes of a stream."""
        total, largest = 0, 0
        for chunk in data:
            total += len(chunk)
            largest = max(largest, len(chunk))
        self.seen.append(("largest", largest))
        return total

    @verb(outside=True, group="read")
    def get(self, ctx: Context, size: int, broken_at: int = -1, known: bool = True) -> Stream:
        """Give that many bytes."""

        def chunks() -> Iterator[bytes]:
            block, sent = b"x" * 65536, 0
            while sent < size:
                if 0 <= broken_at <= sent:
                    raise FalajError("it broke on the way")
                part = block[: min(len(block), size - sent)]
                sent += len(part)
                yield part

        return Stream(chunks(), size if known else None)

    @verb(reads=("name",))
    def show(self, ctx: Context, name: Ref) -> Said:
        """Show a thing."""
        return Said(name)


class Watched:
    """The gate of the event stream."""

    @verb(group="audit")
    def watch(self, ctx: Context) -> None:
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
        self.counts = Counts()
        self._wake: list[Callable[[], None]] = []
        self.broken = False

    @contextmanager
    def group(self) -> Iterator[None]:
        self.groups += 1
        yield
        if self.broken:
            raise OSError("no space left on device /var/lib/falaj")

    @contextmanager
    def read(self, ctx: Context) -> Iterator[None]:
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

    def context(self, actor: Actor, *, request: str = "", purpose: str = "") -> Context:
        if request:
            return Context(actor, "home", request=request, keyed=True, purpose=purpose)
        return Context(actor, "home", purpose=purpose)

    def call(self, desk: str, name: str, ctx: Context, arguments: Mapping[str, Any]) -> Any:
        room = self.desks[desk]
        assert name in verbs_of(type(room))
        return getattr(room, name)(ctx, **arguments)

    def check(self, desk: str, name: str, ctx: Context, arguments: Mapping[str, Any]) -> None:
        del ctx, arguments
        assert name in verbs_of(type(self.desks[desk]))

    def deny(self, ctx: Context | None, path: str, reason: str) -> None:
        self.denials.append((ctx.actor.id if ctx else "", path))

    def system(self) -> Context:
        return self.context(Actor("falaj", HOUSE))

    def turned(self) -> tuple[()]:
        return ()

    def replicas(self) -> tuple[()]:
        return ()

    def start_loops(self) -> None: ...
    def stop_loops(self) -> None: ...


@contextmanager
def serving(house: Any, **options: Any) -> Iterator[Server]:
    """The house behind a real listener, in a thread of this process."""
    server, renew = make_server(house, **options)
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

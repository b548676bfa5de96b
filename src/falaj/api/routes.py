"""The guarded router: a path exists only with an action, and only three exist without a caller."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from falaj.api.answers import Answer, Refusal, Send
from falaj.api.stream import Receive
from falaj.api.wire import Arguments
from falaj.core.context import Actor
from falaj.core.errors import Invalid, NotFound, Unauthenticated
from falaj.core.verb import Verb

OPEN = "open"
"""The action of what anybody may ask."""
PUBLIC = frozenset({("GET", "/health"), ("GET", "/v1/login"), ("GET", "/v1/openapi.json")})
"""All that answers without a caller: alive or not, how to sign in, and which verbs exist. None holds data."""
SHOW = "/r/"


class Ask:
    """One request on its way: what the edge has learned of it so far."""

    __slots__ = (
        "action",
        "actor",
        "headers",
        "method",
        "path",
        "peer",
        "query",
        "receive",
        "request",
        "send",
        "token",
        "unread",
    )

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: bytes = scope.get("raw_path") or scope["path"].encode()
        self.query: bytes = scope.get("query_string", b"")
        self.headers: Mapping[bytes, bytes] = one_each(scope["headers"])
        self.peer: str = scope["client"][0] if scope.get("client") else ""
        self.receive = receive
        self.send = send
        self.action = "none"
        self.request = ""
        self.token = ""  # nosec B105 - nobody yet
        self.actor: Actor | None = None
        self.unread = True

    @property
    def caller(self) -> Actor:
        """Who asks; an open route has none."""
        if self.actor is None:
            raise Unauthenticated("nobody is named in this request", "send Authorization: Bearer <token>")
        return self.actor

    def text(self, name: bytes) -> str:
        """A header as text, empty when absent."""
        try:
            return self.headers.get(name, b"").decode("utf-8")
        except UnicodeDecodeError:
            raise Invalid(f"the header {name.decode()} is not UTF-8", "write it in plain letters") from None


Serve = Callable[[Ask], Awaitable[Answer | None]]


@dataclass(frozen=True, slots=True)
class Call:
    """The verb behind a route and the decoder of its arguments."""

    desk: str
    verb: Verb
    arguments: Arguments

    @property
    def action(self) -> str:
        """What policy is asked about."""
        return self.arguments.action

    @property
    def changes_people(self) -> bool:
        """True when a token may mean somebody else, or nobody, after this call."""
        return self.desk == "people" and self.verb.group not in ("see", "read")


@dataclass(frozen=True, slots=True)
class Route:
    """What answers one method of one path, and the action that must be allowed."""

    method: str
    path: str
    action: str
    serve: Serve
    call: Call | None = None


class Router:
    """Exact paths only, compared byte for byte as sent: nothing is decoded, joined, trimmed or guessed."""

    def __init__(self) -> None:
        self._table: dict[bytes, dict[str, Route]] = {}
        self._shows: dict[str, Route] = {}

    def add(self, route: Route) -> None:
        """Register a route. One without an action, or open and not on the short list, is a bug and raises."""
        if not route.action:
            raise ValueError(f"{route.path} has no action")
        if (route.action == OPEN) != ((route.method, route.path) in PUBLIC):
            raise ValueError(f"{route.method} {route.path} may not be {route.action}")
        methods = self._table.setdefault(route.path.encode(), {})
        if methods.setdefault(route.method, route) is not route:
            raise ValueError(f"{route.method} {route.path} is registered twice")

    def add_show(self, kinds: tuple[str, ...], route: Route) -> None:
        """Let GET /r/<ref> show things of these kinds by a desk's `show`."""
        for kind in kinds:
            self._shows[kind] = route

    def routes(self) -> list[Route]:
        """Every route, in the order of their paths."""
        return [route for path in sorted(self._table) for route in self._table[path].values()]

    def open(self, ask: Ask) -> Route | None:
        """The route, when anybody may ask for it; a wrong method on such a path is an error already here."""
        methods = self._table.get(ask.path)
        if methods is None or not any(route.action == OPEN for route in methods.values()):
            return None
        return methods.get(ask.method) or _wrong_method(methods)

    def find(self, ask: Ask) -> Route:
        """The route of a known caller's request."""
        methods = self._table.get(ask.path)
        if methods is not None:
            return methods.get(ask.method) or _wrong_method(methods)
        if ask.path.startswith(SHOW.encode()):
            if ask.method != "GET":
                raise Refusal(Invalid("this path does not know that method", "use GET"), 405, (b"allow", b"GET"))
            route = self._shows.get(ask.path[len(SHOW) :].partition(b":")[0].decode("ascii", "replace"))
            if route is not None:
                return route
        raise NotFound(
            "there is nothing at this path", "paths are POST /v1/<desk>/<verb> and GET /r/<ref>; see /v1/openapi.json"
        )


def _wrong_method(methods: Mapping[str, Route]) -> Route:
    allowed = ", ".join(sorted(methods))
    raise Refusal(Invalid("this path does not know that method", f"use {allowed}"), 405, (b"allow", allowed.encode()))


_ONCE = frozenset(
    {
        b"host",
        b"origin",
        b"authorization",
        b"content-length",
        b"content-type",
        b"idempotency-key",
        b"falaj-purpose",
        b"falaj-args",
        b"sec-fetch-site",
    }
)


def one_each(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name. Two of a kind that decides something is an attempt to be read differently by two readers."""
    found = dict(headers)
    if len(found) != len(headers):
        names = [name for name, _ in headers if name in _ONCE]
        if len(names) != len(set(names)):
            raise Invalid("a header that may be given once was given twice", "send each header once")
    return found

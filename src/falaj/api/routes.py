"""The guarded router: a path exists only with an action, and only four exist without a caller."""

import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from falaj.api.answers import Answer, Refusal, Send
from falaj.api.stream import Receive
from falaj.api.tls import AgentCertificate
from falaj.api.wire import Arguments
from falaj.core.context import Actor
from falaj.core.errors import Invalid, NotFound, Unauthenticated
from falaj.core.verb import Verb

OPEN = "open"
"""The action of what anybody may ask."""
PUBLIC = frozenset({("GET", "/health"), ("GET", "/ready"), ("GET", "/v1/login"), ("GET", "/v1/openapi.json")})
"""All that answers without a caller: alive or not, to be asked or not, how to sign in, and which verbs exist. None
holds data."""
SHOW = "/r/"
REST = "{path}"
"""The part of a path that takes all that is left of it; any other named part takes one piece between slashes."""
PART_BYTES, REST_BYTES = 255, 2048
# What clients send between slashes: visible ASCII and escapes. A backslash is a slash to some readers.
_PART = re.compile(rb"(?:[!-$&-.0-\[\]-~]|%[0-9A-Fa-f]{2})+")
_NO_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f\\/\u2028\u2029]")


class Ask:
    """One request on its way: what the edge has learned of it so far."""

    __slots__ = (
        "action",
        "actor",
        "agent",
        "certificate",
        "headers",
        "method",
        "named",
        "note_authenticated",
        "path",
        "peer",
        "query",
        "receive",
        "receiving",
        "request",
        "scheme",
        "send",
        "session",
        "token",
        "unread",
    )

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: bytes = scope.get("raw_path") or scope["path"].encode()
        self.query: bytes = scope.get("query_string", b"")
        self.headers: Mapping[bytes, bytes] = one_each(scope["headers"])
        self.scheme: str = scope.get("scheme", "http")
        self.peer: str = scope["client"][0] if scope.get("client") else ""
        self.certificate: AgentCertificate | None = scope.get("certificate")
        """The TLS client certificate of the connection, where it is one of an agent."""
        self.agent: Actor | None = None
        """That agent, once its certificate was checked against the zone's record."""
        self.note_authenticated: Callable[[], None] | None = scope.get("note_authenticated")
        """Tells the connection that its caller has proven who they are, where it does not know yet."""
        self.receive = receive
        self.send = send
        self.action = "none"
        self.request = ""
        self.token = self.session = ""  # nosec B105 - no credential yet
        self.actor: Actor | None = None
        self.named: Mapping[str, str] = {}
        self.unread = True
        self.receiving = False
        """While its body is being read."""

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
        """True when a token or certificate may identify another account, or none, after this call."""
        changes = self.verb.group not in ("see", "read") or self.action == "people.enroll"
        return self.desk in ("people", "agents") and changes


@dataclass(frozen=True, slots=True)
class Route:
    """What answers one method of one path, and the action that must be allowed."""

    method: str
    path: str
    action: str
    serve: Serve
    call: Call | None = None


class Router:
    """Exact paths, compared byte for byte as sent: nothing is decoded, joined, trimmed or guessed.

    A few paths have named parts, as `/api/…/traces/{trace}/tags` has. Their other parts are compared the same way; a
    named part is decoded once, and what comes out must be a plain name: no dots that climb, no slash, no control.
    """

    def __init__(self) -> None:
        self._table: dict[bytes, dict[str, Route]] = {}
        self._shapes: dict[bytes, list[_Shape]] = {}
        self._shows: dict[str, Route] = {}

    def add(self, route: Route) -> None:
        """Register a route. One without an action, or open and not on the short list, is a bug and raises."""
        if not route.action:
            raise ValueError(f"{route.path} has no action")
        if (route.action == OPEN) != ((route.method, route.path) in PUBLIC):
            raise ValueError(f"{route.method} {route.path} may not be {route.action}")
        methods = self._named(route.path) if "{" in route.path else self._table.setdefault(route.path.encode(), {})
        if methods.setdefault(route.method, route) is not route:
            raise ValueError(f"{route.method} {route.path} is registered twice")

    def add_show(self, kinds: tuple[str, ...], route: Route) -> None:
        """Let GET /r/<ref> show things of these kinds by a desk's `show`."""
        for kind in kinds:
            self._shows[kind] = route

    def routes(self) -> list[Route]:
        """Every route, in the order of their paths."""
        found = [route for methods in self._table.values() for route in methods.values()]
        found += [r for shapes in self._shapes.values() for shape in shapes for r in shape.methods.values()]
        return sorted(found, key=lambda route: route.path)

    def open(self, ask: Ask) -> Route | None:
        """The route, when anybody may ask for it; a wrong method on such a path is an error already here."""
        methods = self._table.get(ask.path)
        if methods is None or not any(route.action == OPEN for route in methods.values()):
            return None
        return methods.get(ask.method) or _wrong_method(methods)

    def find(self, ask: Ask) -> Route:
        """The route of a known caller's request."""
        methods = self._table.get(ask.path) or self._match(ask)
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

    def _named(self, path: str) -> dict[str, Route]:
        """The methods of a path with named parts, filed under what stands before the first of them."""
        head, brace, rest = path.partition("{")
        parts = tuple((brace + rest).split("/"))
        if REST in parts[:-1]:
            raise ValueError(f"{path} goes on after its rest")
        shapes = self._shapes.setdefault(head.encode(), [])
        shape = next((known for known in shapes if known.parts == parts), None)
        if shape is None:
            shapes.append(shape := _Shape(parts, {}))
        return shape.methods

    def _match(self, ask: Ask) -> dict[str, Route] | None:
        for head, shapes in self._shapes.items():
            if ask.path.startswith(head):
                given = ask.path[len(head) :].split(b"/")
                shape = next((shape for shape in shapes if shape.fits(given)), None)
                if shape is not None:
                    ask.named = shape.read(given)
                    return shape.methods
        return None


@dataclass(frozen=True, slots=True)
class _Shape:
    """What follows the fixed beginning of a path with named parts."""

    parts: tuple[str, ...]
    methods: dict[str, Route]

    def fits(self, given: Sequence[bytes]) -> bool:
        """True when there are as many parts, and those that have no name of ours are the same."""
        last = len(self.parts) - 1
        if len(given) <= last or (len(given) - 1 > last and self.parts[last] != REST):
            return False
        return all(part.startswith("{") or part.encode() == given[n] for n, part in enumerate(self.parts))

    def read(self, given: Sequence[bytes]) -> dict[str, str]:
        """What was given for each name, or Invalid."""
        if sum(map(len, given)) > 3 * REST_BYTES:
            raise Invalid("this path is too long", f"stay below {REST_BYTES} bytes")
        named = {part.strip("{}"): (part, n) for n, part in enumerate(self.parts) if part.startswith("{")}
        return {
            name: "/".join(map(plain_name, given[n:])) if part == REST else plain_name(given[n])
            for name, (part, n) in named.items()
        }


def plain_name(given: bytes) -> str:
    """One part of a path, decoded once; Invalid when it is not a name that means the same to every reader."""
    if len(given) <= 3 * PART_BYTES and _PART.fullmatch(given):
        text = unquote_to_bytes(given).decode("utf-8", "replace")
        if "\ufffd" not in text and is_plain(text):
            return text
    raise Invalid("a part of this path is no plain name", "no empty part, no dots alone, no backslash, no control")


def is_plain(name: str) -> bool:
    """True when a name climbs nowhere, whoever reads it."""
    return name not in ("", ".", "..") and len(name.encode()) <= PART_BYTES and not _NO_NAME.search(name)


def _wrong_method(methods: Mapping[str, Route]) -> Route:
    allowed = ", ".join(sorted(methods))
    raise Refusal(Invalid("this path does not know that method", f"use {allowed}"), 405, (b"allow", allowed.encode()))


_ONCE = frozenset(
    {
        b"host",
        b"cookie",
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

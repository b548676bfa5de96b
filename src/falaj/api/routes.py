"""The guarded router: a path exists only with an action, and only four exist without a caller."""

import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from falaj.api.argument_decoding import ArgumentDecoder
from falaj.api.body_streams import ReceiveMessage
from falaj.api.responses import HttpError, HttpResponse, Send
from falaj.api.tls import AgentCertificate
from falaj.core.context import Actor
from falaj.core.errors import Invalid, NotFound, Unauthenticated
from falaj.core.operation import Operation

OPEN_ACTION = "open"
"""The action of what anybody may ask."""
PUBLIC_ROUTES = frozenset({("GET", "/health"), ("GET", "/ready"), ("GET", "/v1/login"), ("GET", "/v1/openapi.json")})
"""All that answers without a caller: alive or not, to be asked or not, how to sign in, and which verbs exist. None
holds data."""
SHOW_PATH_PREFIX = "/r/"
REST_PART = "{path}"
"""The part of a path that takes all that is left of it; any other named part takes one piece between slashes."""
MAX_PART_BYTES, MAX_REST_BYTES = 255, 2048
# What clients send between slashes: visible ASCII and escapes. A backslash is a slash to some readers.
_PART_PATTERN = re.compile(rb"(?:[!-$&-.0-\[\]-~]|%[0-9A-Fa-f]{2})+")
_FORBIDDEN_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\\/\u2028\u2029]")


class RequestContext:
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

    def __init__(self, scope: MutableMapping[str, Any], receive: ReceiveMessage, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: bytes = scope.get("raw_path") or scope["path"].encode()
        self.query: bytes = scope.get("query_string", b"")
        self.headers: Mapping[bytes, bytes] = index_headers(scope["headers"])
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


ServeRequest = Callable[[RequestContext], Awaitable[HttpResponse | None]]


@dataclass(frozen=True, slots=True)
class OperationCall:
    """The verb behind a route and the decoder of its arguments."""

    desk: str
    verb: Operation
    arguments: ArgumentDecoder

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
class HttpRoute:
    """What answers one method of one path, and the action that must be allowed."""

    method: str
    path: str
    action: str
    serve: ServeRequest
    call: OperationCall | None = None


class Router:
    """Exact paths, compared byte for byte as sent: nothing is decoded, joined, trimmed or guessed.

    A few paths have named parts, as `/api/…/traces/{trace}/tags` has. Their other parts are compared the same way; a
    named part is decoded once, and what comes out must be a plain name: no dots that climb, no slash, no control.
    """

    def __init__(self) -> None:
        self._methods_by_path: dict[bytes, dict[str, HttpRoute]] = {}
        self._patterns_by_prefix: dict[bytes, list[_PathPattern]] = {}
        self._show_routes: dict[str, HttpRoute] = {}

    def add(self, route: HttpRoute) -> None:
        """Register a route. One without an action, or open and not on the short list, is a bug and raises."""
        if not route.action:
            raise ValueError(f"{route.path} has no action")
        if (route.action == OPEN_ACTION) != ((route.method, route.path) in PUBLIC_ROUTES):
            raise ValueError(f"{route.method} {route.path} may not be {route.action}")
        methods = (
            self._get_pattern_methods(route.path)
            if "{" in route.path
            else self._methods_by_path.setdefault(route.path.encode(), {})
        )
        if methods.setdefault(route.method, route) is not route:
            raise ValueError(f"{route.method} {route.path} is registered twice")

    def add_show(self, resource_kinds: tuple[str, ...], route: HttpRoute) -> None:
        """Let GET /r/<ref> show things of these kinds by a desk's `show`."""
        for kind in resource_kinds:
            self._show_routes[kind] = route

    def routes(self) -> list[HttpRoute]:
        """Every route, in the order of their paths."""
        routes = [route for methods in self._methods_by_path.values() for route in methods.values()]
        routes += [
            r
            for patterns in self._patterns_by_prefix.values()
            for pattern in patterns
            for r in pattern.methods.values()
        ]
        return sorted(routes, key=lambda route: route.path)

    def open(self, request: RequestContext) -> HttpRoute | None:
        """The route, when anybody may ask for it; a wrong method on such a path is an error already here."""
        methods = self._methods_by_path.get(request.path)
        if methods is None or not any(route.action == OPEN_ACTION for route in methods.values()):
            return None
        return methods.get(request.method) or _method_not_allowed(methods)

    def find(self, request: RequestContext) -> HttpRoute:
        """The route of a known caller's request."""
        methods = self._methods_by_path.get(request.path) or self._match_pattern(request)
        if methods is not None:
            return methods.get(request.method) or _method_not_allowed(methods)
        if request.path.startswith(SHOW_PATH_PREFIX.encode()):
            if request.method != "GET":
                raise HttpError(Invalid("this path does not know that method", "use GET"), 405, (b"allow", b"GET"))
            route = self._show_routes.get(
                request.path[len(SHOW_PATH_PREFIX) :].partition(b":")[0].decode("ascii", "replace")
            )
            if route is not None:
                return route
        raise NotFound(
            "there is nothing at this path", "paths are POST /v1/<desk>/<verb> and GET /r/<ref>; see /v1/openapi.json"
        )

    def _get_pattern_methods(self, path: str) -> dict[str, HttpRoute]:
        """The methods of a path with named parts, filed under what stands before the first of them."""
        prefix, brace, rest = path.partition("{")
        parts = tuple((brace + rest).split("/"))
        if REST_PART in parts[:-1]:
            raise ValueError(f"{path} goes on after its rest")
        patterns = self._patterns_by_prefix.setdefault(prefix.encode(), [])
        pattern = next((known_pattern for known_pattern in patterns if known_pattern.parts == parts), None)
        if pattern is None:
            patterns.append(pattern := _PathPattern(parts, {}))
        return pattern.methods

    def _match_pattern(self, request: RequestContext) -> dict[str, HttpRoute] | None:
        for prefix, patterns in self._patterns_by_prefix.items():
            if request.path.startswith(prefix):
                request_parts = request.path[len(prefix) :].split(b"/")
                pattern = next((pattern for pattern in patterns if pattern.fits(request_parts)), None)
                if pattern is not None:
                    request.named = pattern.read(request_parts)
                    return pattern.methods
        return None


@dataclass(frozen=True, slots=True)
class _PathPattern:
    """What follows the fixed beginning of a path with named parts."""

    parts: tuple[str, ...]
    methods: dict[str, HttpRoute]

    def fits(self, request_parts: Sequence[bytes]) -> bool:
        """True when there are as many parts, and those that have no name of ours are the same."""
        last = len(self.parts) - 1
        if len(request_parts) <= last or (len(request_parts) - 1 > last and self.parts[last] != REST_PART):
            return False
        return all(part.startswith("{") or part.encode() == request_parts[n] for n, part in enumerate(self.parts))

    def read(self, request_parts: Sequence[bytes]) -> dict[str, str]:
        """What was given for each name, or Invalid."""
        if sum(map(len, request_parts)) > 3 * MAX_REST_BYTES:
            raise Invalid("this path is too long", f"stay below {MAX_REST_BYTES} bytes")
        part_by_name = {part.strip("{}"): (part, n) for n, part in enumerate(self.parts) if part.startswith("{")}
        return {
            name: "/".join(map(decode_path_part, request_parts[n:]))
            if part == REST_PART
            else decode_path_part(request_parts[n])
            for name, (part, n) in part_by_name.items()
        }


def decode_path_part(encoded_part: bytes) -> str:
    """One part of a path, decoded once; Invalid when it is not a name that means the same to every reader."""
    if len(encoded_part) <= 3 * MAX_PART_BYTES and _PART_PATTERN.fullmatch(encoded_part):
        text = unquote_to_bytes(encoded_part).decode("utf-8", "replace")
        if "\ufffd" not in text and is_plain_name(text):
            return text
    raise Invalid("a part of this path is no plain name", "no empty part, no dots alone, no backslash, no control")


def is_plain_name(name: str) -> bool:
    """True when a name climbs nowhere, whoever reads it."""
    return (
        name not in ("", ".", "..") and len(name.encode()) <= MAX_PART_BYTES and not _FORBIDDEN_CHARACTERS.search(name)
    )


def _method_not_allowed(methods: Mapping[str, HttpRoute]) -> HttpRoute:
    allowed = ", ".join(sorted(methods))
    raise HttpError(Invalid("this path does not know that method", f"use {allowed}"), 405, (b"allow", allowed.encode()))


_SINGLE_HEADERS = frozenset(
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


def index_headers(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name. Two of a kind that decides something is an attempt to be read differently by two readers."""
    header_by_name = dict(headers)
    if len(header_by_name) != len(headers):
        names = [name for name, _ in headers if name in _SINGLE_HEADERS]
        if len(names) != len(set(names)):
            raise Invalid("a header that may be given once was given twice", "send each header once")
    return header_by_name

"""The HTTP edge: one ASGI layer that turns a request into one guarded call, and whatever happens into one answer."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from falaj.api.answers import JSON, TEXT, Answer, Refusal, Send, opaque, render, send_answer
from falaj.api.carrier import Carrier
from falaj.api.connections import ConnectionTable
from falaj.api.deadlines import Deadlines
from falaj.api.events import Events
from falaj.api.figures import Figures, tells_shared
from falaj.api.gate import AGENT_PATHS, KNOCK, Gate
from falaj.api.lanes import Carried, Lanes, attempt
from falaj.api.logs import enter
from falaj.api.metrics import Family, Metrics, by, counter, exposition, gauge
from falaj.api.pieces import BUNDLE, GET, PUT
from falaj.api.quick import Quick
from falaj.api.routes import OPEN, SHOW, Ask, Call, Route, Router
from falaj.api.soon import Taker
from falaj.api.stream import Inlet, Outlet, Receive
from falaj.api.trace import make_span
from falaj.api.wire import ARGS_HEADER, Arguments, check_depth
from falaj.core.bind import options
from falaj.core.context import HOUSE, Context
from falaj.core.errors import Denied, FalajError, Invalid, Unavailable
from falaj.core.event import new_id
from falaj.core.ports import CanReadAhead, CanTellAside
from falaj.core.ref import Ref
from falaj.core.stream import Stream
from falaj.core.verb import verbs_of
from falaj.desks import DESKS
from falaj.govern.people import GUEST
from falaj.store.codec import to_json

if TYPE_CHECKING:
    from falaj.platform import House

RENEW = "agents.renew"
"""The one operation whose caller is the TLS certificate of the connection, and no token."""
LARGE = 262_144
"""Bodies above this are parsed beside the event loop."""
DRAIN_BYTES, DRAIN_S = 1 << 20, 2.0
ANONYMOUS_BYTES, ANONYMOUS_S = 65_536, 15.0
"""The largest body of a caller without an identity (who joins, exchanges a token or signs in), and its time."""
LEDGER_PATIENCE_S = 10.0
"""Seconds without an answer of the ledger store after which calls that need it fail at once."""
ESSENTIAL = ("store", "version")
"""Dependencies without which this replica can serve nothing; without any other it serves what does not need it."""
WITHOUT_LEDGER = frozenset({b"/health", b"/ready", b"/v1/login", b"/v1/openapi.json"})
"""Paths that are answered without the ledger store."""
OUTSIDE_TIMES = 60
"""A call that acts outside the ledger may take this many times as long as another."""
# An ASGI server runs every request as a task; without one nothing could be ended, and failing here says so.
_NO_TASK: asyncio.Task[object] = None  # type: ignore[assignment]
_log = logging.getLogger(__name__)


class Door(Protocol):
    """Another face of the same house, behind the same gate: pages for people beside calls of programs."""

    def owns(self, path: bytes) -> bool:
        """True when what is asked there is for this door."""

    async def answer(self, ask: Ask) -> Answer | None:
        """What it says; None when it has said it already."""

    def said(self, ask: Ask, error: BaseException) -> Answer:
        """An error, as this door's callers read it."""


class App:
    """The ASGI application over one house."""

    def __init__(self, house: "House", hosts: Iterable[str], lanes: int = 1) -> None:
        self.house = house
        self.metrics, self.figures = Metrics(), Figures(house)
        store = house.ledger.store
        ahead = store.ahead if isinstance(store, CanReadAhead) else None
        carried = None
        if isinstance(store, CanTellAside) and not house.settings.embedded:
            courier = store.courier()
            carried = Carried(courier, partial(house.ledger.aside, courier))
        self.lanes = Lanes(house.ledger.group, lanes, inline=house.settings.embedded, ahead=ahead, carried=carried)
        if not house.settings.embedded:
            house.ledger.beside = self.lanes.beside
        self.gate = Gate(house, self.lanes, hosts)
        self.router = Router()
        self._limits = house.settings.limits
        self.connections = ConnectionTable(self._limits.connections, self._limits.connections_per_peer)
        self.deadlines = Deadlines(self._limits.timeout_s, self._is_ledger_silent)
        self.events = Events(house, self.lanes, self.gate, self.metrics, self.deadlines)
        self.carrier = Carrier(house, self.lanes)
        self._span = make_span()
        # What is read often is answered at once where nothing of it is far away; a slow store must not stop the door.
        self._at_hand = house.settings.embedded and house.settings.online.startswith("lmdb:")
        self._openapi = b""
        self.door: Door | None = None
        self.stopping = asyncio.Event()
        self.draining = False
        """True once we go: balancers look elsewhere, and what is asked is still answered."""
        self.takers: dict[bytes, Taker] = {}
        self._add_routes()
        often = (route for route in self.router.routes() if route.call is not None and route.call.verb.often)
        self.quick = Quick(
            self,
            {route.path.encode(): route.call for route in often if route.call} if self._at_hand else {},
            self.takers,
        )

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":  # no route is one, so every one is closed before it opens
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._lifespan(receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self.lanes.start()
        self.deadlines.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.gate.refusals.flush()
        await asyncio.get_running_loop().run_in_executor(None, self.lanes.stop, self.house.settings.drain_s)
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        begun = time.perf_counter()
        task = asyncio.current_task() or _NO_TASK
        self.deadlines.open(task)
        ask = None
        try:
            ask = Ask(scope, receive, send)
            answer = await self._answer(ask)
        except (FalajError, Refusal) as error:
            answer = await self._refused(ask, error)
        except asyncio.CancelledError:
            if ask is None or not self.deadlines.ended(task):
                raise
            answer = _too_late(ask)
        except Exception as error:
            request = ask.request if ask is not None and ask.request else new_id()
            self.metrics.count(ask.action if ask is not None else "none", 500)
            broken = Answer(500, opaque(request), request)
            if ask is not None and self.door is not None and self.door.owns(ask.path):
                broken = self.door.said(ask, error)
            await send_answer(send, broken._replace(headers=(*broken.headers, (b"connection", b"close"))))
            raise  # the server logs it, with the trace
        finally:
            self.deadlines.close(task)
            hurried = self.deadlines.hurried(task)
        if answer is not None:
            if ask is not None and ask.unread and _has_body(ask):
                answer = await _leave_body(ask, answer)
            await send_answer(send, answer)
        took = time.perf_counter() - begun if hurried else None
        self.metrics.count(ask.action if ask is not None else "none", 200 if answer is None else answer.status, took)

    async def _answer(self, ask: Ask) -> Answer | None:
        """Place, then caller, then path, then what was asked."""
        self.gate.check_place(ask)
        if self._is_ledger_silent() and ask.path not in WITHOUT_LEDGER:
            hint = "calls are answered again within seconds of its first answer; falaj doctor names the reason"
            raise Unavailable(f"the ledger store has not answered for {LEDGER_PATIENCE_S:.0f} s", hint)
        if self.house.fence.is_up and (ask.path in AGENT_PATHS or ask.path.startswith(KNOCK)):
            raise Unavailable("this restored copy is fenced: it answers no agent and no webhook", "ask the old one")
        if self.door is not None and self.door.owns(ask.path):
            return await self.door.answer(ask)
        route = self.router.open(ask)
        if route is None:
            await self.gate.admit(ask)
            route = self.router.find(ask)
        ask.action = route.action
        return await route.serve(ask)

    async def _refused(self, ask: Ask | None, error: FalajError | Refusal) -> Answer:
        """Render it. What the edge itself refuses leaves an event; the guard has recorded its own refusals."""
        answer = self._render(ask, error)
        self.metrics.refused[(error.error if isinstance(error, Refusal) else error).code] += 1
        if ask is not None and not ask.request and answer.status in (401, 403, 404, 405, 421):
            await self.gate.refusals.record(ask, error.error.message if isinstance(error, Refusal) else error.message)
        return answer

    def _render(self, ask: Ask | None, error: BaseException) -> Answer:
        if ask is not None and self.door is not None and self.door.owns(ask.path):
            return self.door.said(ask, error)
        if ask is not None and ask.path.startswith(b"/api/"):
            from falaj.api.mlflow.coding import said

            return said(error, ask.request, routed=ask.action != "none" or ask.actor is None)
        return render(error, ask.request if ask is not None else "")

    def _add_routes(self) -> None:
        add = self.router.add
        add(Route("GET", "/health", OPEN, self._health))
        add(Route("GET", "/v1/login", OPEN, self._login))
        add(Route("GET", "/v1/openapi.json", OPEN, self._document))
        add(Route("GET", "/ready", OPEN, self._ready))
        add(Route("GET", "/status", "edge.status", self._status))
        add(Route("GET", "/metrics", "edge.metrics", self._metrics))
        for name in self.house.desks:
            try:
                room = self.house.desks[name]
            except Invalid as error:
                _log.warning("a desk stays closed", extra={"desk": name, "why": error.message, "hint": error.hint})
                continue
            kinds = DESKS[name].kinds if name in DESKS else ()
            cls: Any = type(room)
            for verb in verbs_of(cls).values():
                call = Call(name, verb, Arguments(name, verb))
                add(Route("POST", f"/v1/{name}/{verb.name}", call.action, partial(self._call, call), call))
                if verb.name == "show":
                    self.router.add_show(kinds, Route("GET", SHOW, call.action, partial(self._show, call), call))
        add(Route("GET", "/v1/events", self.events.action, self.events.serve))
        if "flows" in self.house.desks:
            from falaj.api.knock import ROUTE, Doorbell

            bell = Doorbell(self)
            add(Route("POST", ROUTE, bell.action, bell.serve))
        add(Route("POST", PUT, "bytes.put", self._put_piece))
        add(Route("POST", BUNDLE, "bytes.bundle", self._bundle_pieces))
        add(Route("POST", GET, "bytes.get", self._get_piece))
        if "agents" in self.house.desks:
            from falaj.api.channel import Channel

            Channel(self).mount()
        if "track" in self.house.desks:
            from falaj.api.mlflow.routes import Facade

            Facade(self).mount()

    async def _call(self, call: Call, ask: Ask) -> Answer | None:
        """POST /v1/<desk>/<verb>."""
        if call.action == RENEW and (ask.agent is None or ask.caller is not ask.agent):
            raise Denied("only a zone's agent renews its certificate", "falaj agents invite lets one join")
        arguments = call.arguments
        ctx = self.gate.context(ask, ask.caller, repeatable=not arguments.gives_stream)
        if arguments.stream:
            if content_type(ask) != b"application/octet-stream":
                hint = f"send application/octet-stream, and the arguments in {ARGS_HEADER}"
                raise Refusal(Invalid(f"{call.action} takes its bytes as the body", hint), 415)
            return await self.streamed(call, ask, ctx, arguments.decode_header(ask.text(ARGS_HEADER.encode())))
        body = await self.body(ask)
        if len(body) > LARGE:
            given = (await self.lanes.outside(self.parsed, arguments, body)).unwrap()
        else:
            given = self.parsed(arguments, body)
        if arguments.gives_stream:
            return await self.streamed(call, ask, ctx, given)
        return await self._run(call, ask, ctx, given)

    def parsed(self, arguments: Arguments, body: bytes) -> dict[str, Any]:
        """What the body says, within its limit of depth."""
        check_depth(body, self._limits.body_depth)
        return arguments.decode(body)

    async def _show(self, call: Call, ask: Ask) -> Answer | None:
        """GET /r/<ref>: the same `show`, for people and links."""
        text = ask.path[len(SHOW) :].decode("ascii", "replace")
        ref = Ref.parse(text.replace("%3A", ":").replace("%40", "@"))
        ctx = self.gate.context(ask, ask.caller)
        first = next(p for p in call.verb.params if p.required)
        return await self._run(call, ask, ctx, {first.name: ref if Ref in options(first.type) else ref.name})

    async def _run(self, call: Call, ask: Ask, ctx: Context, given: dict[str, Any]) -> Answer:
        if call.verb.outside:
            self.unhurried(OUTSIDE_TIMES)
            if ask.actor is GUEST:
                body, error = await self.gate.run_for_guest(ask, self.within, call, ask, ctx, given)
            else:
                body, error = await self.lanes.outside(self.within, call, ask, ctx, given)
        elif call.verb.often and self._at_hand:
            body, error = attempt(self.within, (call, ask, ctx, given))
        elif call.verb.reading or call.verb.often:
            body, error = await self.lanes.inside(self.within, call, ask, ctx, given)
        else:
            body, error = await self.lanes.short(self.within, call, ask, ctx, given)
        if call.changes_people and error is None:
            self.gate.forget()
        return Answer(200, body, ctx.request) if error is None else render(error, ctx.request)

    def within(self, call: Call, ask: Ask, ctx: Context, given: dict[str, Any]) -> bytes:
        """In a lane: the guarded call and the JSON of its result."""
        enter(ctx.actor.id, ctx.request)
        with self._span(call.action, ask.headers, ctx.tenant):
            return to_json(self.house.call(call.desk, call.verb.name, ctx, given))

    async def streamed(self, call: Call, ask: Ask, ctx: Context, given: dict[str, Any]) -> Answer | None:
        """Bytes in, bytes out, or both, on one thread."""
        self.unhurried()
        filling = None
        if call.arguments.stream:
            ask.unread = False
            inlet = Inlet(ask.receive, self._limits.stream_bytes)
            filling = asyncio.get_running_loop().create_task(inlet.fill())
            given[call.arguments.stream] = Stream(inlet, length(ask))
        outlet = Outlet(ask.send, ask.receive, ctx.request)
        try:
            body, error = await self.lanes.streaming(ctx.actor, self._piped, call, ask, ctx, given, outlet)
        finally:
            outlet.close()
        if filling is not None and not filling.done():
            filling.cancel()
            ask.unread = True
        if error is None:
            return Answer(200, body, ctx.request) if body is not None else None
        if not outlet.started:
            return self._render(ask, error)
        _log.warning("stream ended early", extra={"request": ctx.request, "why": str(error)})
        return None  # the server closes a connection whose answer has no end, and the caller sees that it is cut

    def _piped(self, call: Call, ask: Ask, ctx: Context, given: dict[str, Any], outlet: Outlet) -> bytes | None:
        enter(ctx.actor.id, ctx.request)
        with self._span(call.action, ask.headers, ctx.tenant):
            result = self.house.call(call.desk, call.verb.name, ctx, given)
            if not isinstance(result, Stream):
                return to_json(result)
            outlet.push(result)
            return None

    def unhurried(self, times: int = 0) -> None:
        """Let this request take so many times as long as another; 0 is a stream, bounded by its idle time alone."""
        self.deadlines.spare(asyncio.current_task() or _NO_TASK, times)

    async def _put_piece(self, ask: Ask) -> Answer:
        self.unhurried()
        return await self.carrier.put(ask, self.gate.context(ask, ask.caller, repeatable=False))

    async def _bundle_pieces(self, ask: Ask) -> Answer:
        ctx = self.gate.context(ask, ask.caller, repeatable=False)
        return await self.carrier.bundle(ctx, await self.body(ask))

    async def _get_piece(self, ask: Ask) -> Answer | None:
        ctx = self.gate.context(ask, ask.caller, repeatable=False)
        body = await self.body(ask)
        self.unhurried()
        return await self.carrier.get(ask, ctx, body)

    async def body(self, ask: Ask, most: int = 0, kinds: tuple[bytes, ...] = (JSON,)) -> bytes:
        """The whole JSON body, within its limits of size and time."""
        anonymous = ask.actor is None or ask.actor.kind == "guest"
        limit = min(most or (ANONYMOUS_BYTES if anonymous else self._limits.body_bytes), self._limits.body_bytes)
        if (length(ask) or 0) > limit:
            raise _too_large(limit)
        try:
            ask.receiving = True
            async with asyncio.timeout(ANONYMOUS_S if anonymous else None):
                body = await self._whole(ask, limit)
        except TimeoutError:
            raise _slow_body() from None
        ask.receiving = ask.unread = False
        if body and content_type(ask) not in kinds:
            raise Refusal(Invalid("the body is not declared as JSON", "send content-type: application/json"), 415)
        if b"content-encoding" in ask.headers:
            raise Refusal(Invalid("the body is compressed", "send it as it is"), 415)
        return body

    async def _whole(self, ask: Ask, limit: int) -> bytes:
        parts, held = list[bytes](), 0
        while True:
            message = await ask.receive()
            if message["type"] == "http.disconnect":  # before its first byte, too: an empty body is another call
                raise Invalid("the body ended before its end", "send it again")
            parts.append(message.get("body", b""))
            held += len(parts[-1])
            if held > limit:
                raise _too_large(limit)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _health(self, ask: Ask) -> Answer:
        del ask
        return Answer(200, b'{"ok":true}', new_id())

    async def _login(self, ask: Ask) -> Answer:
        """How to sign in here; what a browser-based client needs to begin, all of it public by its nature."""
        del ask
        oidc = self.house.settings.oidc
        shown = ("issuer", "client", "audience", "groups", "scope") if oidc.issuer and oidc.client else ()
        body = {
            "local": "local:" in self.house.settings.identity,
            "provider": {name: getattr(oidc, name) for name in shown},
            "origin": self.house.fence.origin,
            "fenced": self.house.fence.is_up,
        }
        return Answer(200, to_json(body), new_id())

    async def _document(self, ask: Ask) -> Answer:
        del ask
        from falaj.api.openapi import document

        self._openapi = self._openapi or to_json(document(self.router.routes()))
        return Answer(200, self._openapi, new_id())

    async def _ready(self, ask: Ask) -> Answer:
        """Whether a balancer should send callers here: whether this replica can serve anything at all.

        A dependency that all replicas share must not take all of them out, so only ESSENTIAL ones count. The answer
        comes from the last background checks and never waits for a dependency.
        """
        del ask
        if self.draining:
            raise Unavailable("this replica is going", "another one answers")
        ready = not self.house.dependencies.problems(*ESSENTIAL)
        return Answer(200 if ready else 503, b'{"ready":%s}' % (b"false", b"true")[ready], new_id())

    async def _status(self, ask: Ask) -> Answer:
        """Which dependencies answer this replica, why the others do not, and which replicas there are."""
        del ask
        health = self.house.dependencies.health()
        ready = all(dependency.answers for dependency in health if dependency.name in ESSENTIAL)
        fenced = self.house.fence.is_up
        body = {"ready": ready, "fenced": fenced, "dependencies": health, "replicas": self.house.replicas()}
        return Answer(200, to_json(body), new_id())

    def _is_ledger_silent(self) -> bool:
        return self.house.dependencies.unanswered_s("store") > LEDGER_PATIENCE_S

    async def _metrics(self, ask: Ask) -> Answer:
        """Counts over all tenants, so only the house's own people and services see them."""
        if ask.caller.tenant != HOUSE:
            raise Denied("metrics count every tenant's calls", "ask with an account of the tenant `house`")
        lanes = self.lanes
        found = [
            *self.metrics.families(),
            *self._versions(),
            gauge("falaj_lane_waiting", "Calls that no lane has taken yet.", lanes.waiting),
            counter("falaj_lane_calls_total", "Calls run in lanes since the start.", lanes.calls),
            counter("falaj_lane_commits_total", "Groups those calls were committed in.", lanes.batches),
            *(await lanes.outside(self.figures.families)).unwrap(),
        ]
        return Answer(200, exposition(found), new_id(), TEXT)

    def _versions(self) -> Iterator[Family]:
        if tells_shared(self.house):
            versions = Counter(replica.version for replica in self.house.replicas())
            yield by("version", "falaj_platform_replicas", "Replicas and gateways on this store.", versions)


def _too_late(ask: Ask) -> Answer:
    if ask.receiving and _has_body(ask):
        return render(_slow_body())
    hint = "ask again with the same Idempotency-Key to learn the outcome"
    return render(Unavailable("no answer in time", hint), ask.request)


def _slow_body() -> Refusal:
    return Refusal(Invalid("the body did not come in time", "send it faster"), 408, (b"connection", b"close"))


def _too_large(limit: int) -> Refusal:
    return Refusal(
        Invalid(f"the body is larger than {limit} bytes", "send less, or use a verb that takes a stream"), 413
    )


def length(ask: Ask) -> int | None:
    """How many bytes the body has, where the caller said so."""
    text = ask.headers.get(b"content-length", b"")
    return int(text) if text.isdigit() and len(text) < 19 else None


def content_type(ask: Ask) -> bytes:
    """What the body is declared to be, without parameters."""
    return ask.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()


def _has_body(ask: Ask) -> bool:
    return b"transfer-encoding" in ask.headers or bool(length(ask))


async def _leave_body(ask: Ask, answer: Answer) -> Answer:
    """A body we did not want: swallow a little, so that the caller gets to read the answer, and close."""
    if (length(ask) or DRAIN_BYTES + 1) <= 65_536 and b"expect" not in ask.headers:
        return answer
    swallowed = 0
    if b"expect" not in ask.headers:
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while swallowed < DRAIN_BYTES:
                    message = await ask.receive()
                    swallowed += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        break
    return answer._replace(headers=(*answer.headers, (b"connection", b"close")))

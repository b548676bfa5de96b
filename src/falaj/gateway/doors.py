"""The gateway's doors: REST and gRPC in, over the hop to a replica, and back. Bodies pass as they are."""

import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any

from falaj.core.context import HOUSE
from falaj.core.errors import Denied, FalajError, NotFound
from falaj.core.release import VERSION
from falaj.core.trace import SERVER, Tracer, parse
from falaj.gateway import paths
from falaj.gateway.admission import FREE_METHODS, LENGTH, Admission, GrpcLead, Lead, Pending
from falaj.gateway.callers import Caller, Callers, slow_down
from falaj.gateway.holding import Holding
from falaj.gateway.hosts import HostNames
from falaj.gateway.lots import Lot
from falaj.gateway.metrics import Metrics
from falaj.gateway.passing import DIRECT, Passing
from falaj.gateway.paths import Target
from falaj.gateway.pick import pick
from falaj.gateway.plans import Plans
from falaj.gateway.protocols import GrpcPassing, RestPassing, grpc_problem
from falaj.gateway.straight import Straight, Way, way_of
from falaj.gateway.streams import OpenStreams
from falaj.gateway.table import Name, Routed, Table
from falaj.gateway.tally import Pages, Tallies, Tally, at
from falaj.oip.budget import over_budget
from falaj.oip.calls import CODES, NO_HEADERS, UNIMPLEMENTED, Call, GrpcCall, GrpcReply, Reply
from falaj.oip.hop import LOST, Missed
from falaj.oip.http1 import Turned
from falaj.oip.messages import METHODS
from falaj.oip.proto import peek
from falaj.oip.requests import Head
from falaj.oip.rest import problem, refusal, said
from falaj.oip.wire import encode
from falaj.serve.arms import shadowed
from falaj.serve.counts import SHADOW
from falaj.serve.journal import GRPC, JSON, Logged, binary

if TYPE_CHECKING:
    from falaj.platform import House

Cancel = Callable[[], None]
EXTENSIONS = ("binary_tensor_data", "model_configuration", "statistics", "sequence")
_FREE = frozenset({paths.LIVE, paths.READY, paths.ABSENT})
_OWN = frozenset({paths.SERVER, paths.INDEX, paths.CHANGE, paths.METRICS})
MOST_PATHS, MOST_SHADOWS = 4096, 256
_TEXT = b"text/plain; version=0.0.4; charset=utf-8"
_ABOUT = {"name": "falaj", "version": VERSION, "extensions": list(EXTENSIONS)}
_OWN_METHODS = ("ServerLive", "ServerReady", "ServerMetadata", "RepositoryIndex", "RepositoryModelLoad",
                "RepositoryModelUnload")  # fmt: skip


class Doors:
    """A RestDoor and a GrpcDoor. Nothing of a body is looked at before the caller is known."""

    def __init__(self, house: "House", table: Table, callers: Callers, pool: Executor, pages: Pages) -> None:
        self._house, self._table, self._callers, self._pool, self._pages = house, table, callers, pool, pages
        self.holding: Holding
        self.plans: Plans
        self.tallies: Tallies
        self.metrics: Metrics
        self.listening: list[Any] = []
        """What takes callers' connections."""
        self.hosts = HostNames(("localhost",))
        self.streams = OpenStreams(callers)
        self.admission = Admission(callers, self._lead, self.count_refusal)
        self.budget, self.vouch = self.admission.budget, callers.vouch
        self.judge, self.judge_grpc = self.admission.judge, self.admission.judge_grpc
        self.tracer: Tracer | None = None
        self.open = True
        """False while we drain: load balancers look elsewhere."""
        self._targets: dict[bytes, Target] = {}
        self._prefix, self._count = secrets.token_hex(4).encode(), 0
        self._stamp, self._stamped = b"", 0.0
        """How names begin in this millisecond, and when it is over."""
        self._revisions: dict[int, tuple[bytes, tuple[bytes, bytes]]] = {}
        """How each is told, in HTTP and in gRPC."""
        self._shadows = 0

    # What one request needs of us.

    def routed(self, name: Name) -> Routed | None:
        """The endpoint as it is now."""
        return self._table.routes.get(name)

    def tally(self, routed: Routed, arm: str, revision: int) -> Tally:
        """Where an arm is counted that has no share of its own."""
        return self.tallies.of(routed.route, arm, revision)

    def barred(self, routed: Routed, revision: int) -> FalajError | None:
        """Why a revision may not be asked although it runs: its features may not be read."""
        why = self.plans.barred.get((routed.route.tenant, routed.route.ref, revision))
        return Denied("whoever deployed this may not read its features any more", why.message) if why else None

    def hold(self, one: Passing) -> bool:
        """Let it wait for a replica."""
        return self.holding.hold(one)

    def answered(self, one: Passing, reply: Any, status: int, now: float) -> None:
        """Give the answer back, with what names it; then keep a sample, and ask a shadow."""
        line, pair = self._revisions.get(one.revision) or self._revision(one.revision)
        name = one.id or self._new_id(now)
        if reply.__class__ is Reply:
            reply.lines = b"falaj-request: " + name + line
        else:
            reply.metadata = (*reply.metadata, (b"falaj-request", name), pair)
        one.reply(reply)
        if one.span is not None:
            self.traced(one, status)
        if not one.counts:
            return
        sample = one.routed.rules.sample
        kept = sample > 0.0 and random.random() < sample  # noqa: S311 # nosec B311 - a sample
        if kept or one.routed.route.shadow is not None:
            self.after(one, reply, now, kept=kept)

    def after(self, one: Passing, reply: Any, now: float, *, kept: bool) -> None:
        """What follows an answer that was given back."""
        if kept:
            self._keep(one, reply, one.status(reply)[0], one.arm, now - one.began)
        if one.routed.route.shadow is not None and one.arm != DIRECT:
            self._shadow(one, kept)

    def traced(self, one: Passing, status: int) -> None:
        """The span of a request that is over."""
        span = one.span
        if span is None or self.tracer is None:
            return
        span.about = {
            "falaj.endpoint": one.name[1], "falaj.revision": one.revision, "falaj.arm": one.arm,
            "falaj.tries": len(one.tried) + 1, "http.response.status_code": status,
        }  # fmt: skip
        span.failed = str(status) if status >= 500 else ""
        self.tracer.end(span)

    def rest(self, call: Call, reply: Callable[[Reply], Any]) -> Cancel | None:
        """Answer one HTTP request, now or later."""
        lead: Lead | None = call.head.lead if call.head is not None else None
        if lead is None:
            lead = self._lead(call.method, call.path, call.headers, reply)
            if lead is None:
                return None
            if call.head is not None:
                call.head.lead = lead
        caller, now = lead.caller, time.monotonic()
        if caller is None or now >= caller.early:
            caller = lead.caller = self._callers.known(lead.key, lead.who, now)
            lead.turn = -1
            if caller is None:
                pending = self.admission.hold(len(call.body))
                if pending is None:
                    self._refuse(over_budget(), reply)
                    return None
                then = partial(self._later, pending, partial(self._rest, lead, call, reply))
                caller = self._callers.ask(lead.key, lead.who, call.peer, then)
                if caller is None:
                    return pending.cancel
                pending.cancel()
                return self._rest(lead, call, reply, caller, now)
        way = lead.way
        if way is not None and lead.turn == self._table.turn:
            link = way.link
            fit = link.client.ready and not link.fails and way.budget.full
            if fit and call.body.find(paths.SEQUENCE, 0, paths.LOOKED_BYTES) < 0:
                call.path, call.headers, call.name = lead.path, lead.headers, self._new_id(now)
                return Straight(self, way, caller, call, reply, now).start()
        return self._rest(lead, call, reply, caller, now)

    def joins(self, head: Head) -> bool:
        """Whether requests with this head are handed on as one where several come."""
        lead = head.lead
        return isinstance(lead, Lead) and lead.way is not None and lead.turn == self._table.turn

    def pass_on(self, asked: Sequence[tuple[Head, bytes]], came: float, turned: Turned) -> list[int]:
        """Answer requests that one turn of the loop read; their heads are such as `joins` said yes to. Gives those that
        are to be asked by themselves."""
        lots: dict[Any, tuple[Way, Caller, Call, list[int], list[bytes]]] = {}
        left: list[int] = []
        last, lot, now = None, None, time.monotonic()
        for number, (head, body) in enumerate(asked):
            if head is not last:
                last, lot = head, self._lot(head, lots, now)
            if lot is None or body.find(paths.SEQUENCE, 0, paths.LOOKED_BYTES) >= 0:
                left.append(number)
            else:
                lot[3].append(number)
                lot[4].append(body)
        for way, caller, call, numbers, bodies in lots.values():
            names = self._new_ids(now, len(numbers))
            cancel = Lot(self, way, caller, call, came, turned).start(numbers, names, bodies) if numbers else None
            if cancel is None:
                left += numbers
            else:
                turned.asked(numbers, cancel)
        return left

    def _lot(self, head: Head, lots: dict[Any, Any], now: float) -> Any:
        """Where requests with this head belong: heads that differ in the length of a body ask alike. None: nowhere."""
        lead: Any = head.lead
        way: Way | None = lead.way
        caller: Caller | None = lead.caller
        if way is None or caller is None or lead.turn != self._table.turn or now >= caller.early:
            return None
        if not way.link.client.ready or way.link.fails or not way.budget.full:
            return None
        key = id(caller), way.stub.shared
        found = lots.get(key)
        if found is None:
            call = Call(head.method, lead.path, lead.headers, b"", False, "", head)
            found = lots[key] = way, caller, call, [], []
        return found

    def grpc(self, call: GrpcCall, reply: Callable[[GrpcReply], Any]) -> Cancel | None:
        """Answer one message of a gRPC call, now or later."""
        method = call.method
        if method in FREE_METHODS:
            name = "live" if method == "ServerLive" else "ready"
            reply(GrpcReply(encode(METHODS[method][1], {name: self.open or name == "live"})))
            return None
        if method not in METHODS:
            reply(GrpcReply(code=UNIMPLEMENTED, text=f"{method[:60]} is not offered"))
            return None
        try:
            name, version, _ = ("", "", "") if method in _OWN_METHODS else peek(call.message)
            if method not in _OWN_METHODS:
                paths.name_of(name)
            number = paths.version_of(version)
        except FalajError as error:
            reply(grpc_problem(method, CODES[error.code], str(error)))
            return None
        lead: GrpcLead = (call.head.lead if call.head is not None else None) or self.admission.lead_grpc(call)
        key, caller, now = lead.key_for(name), lead.endpoint_caller, time.monotonic()
        if caller is None or now >= caller.early:
            caller = lead.endpoint_caller = self._callers.known(key, lead.who, now)
        if caller is not None:
            return self._grpc(number, call, reply, caller, now)
        pending = self.admission.hold(len(call.message))
        if pending is None:
            reply(GrpcReply(code=CODES["quota-exceeded"], text=str(over_budget()), metadata=((b"retry-after", b"1"),)))
            return None
        then = partial(self._later, pending, partial(self._grpc, number, call, reply))
        caller = self._callers.ask(key, lead.who, call.peer, then)
        if caller is None:
            return pending.cancel
        pending.cancel()
        return self._grpc(number, call, reply, caller, now)

    def _later(self, pending: Pending, go: Callable[[Caller], Cancel | None], caller: Caller) -> None:
        if not pending.cancelled:
            if pending.reservation is not None:
                pending.reservation.release()
            pending.inner = go(caller)

    def _lead(
        self, method: bytes, path: bytes, headers: Mapping[bytes, bytes], reply: Callable[[Reply], Any]
    ) -> Lead | None:
        """What is asked for, and by whom; None where that is answered already."""
        try:
            target = self._targets.get(path) or self._target(path)
        except FalajError as error:
            self._refuse(error, reply)
            return None
        if target.method and method != target.method and (method, target.method) != (b"HEAD", b"GET"):
            told = refusal(405, "this address takes another method", target.method.decode())
            told.headers = ((b"allow", target.method),)
            reply(told)
            return None
        if target.what in _FREE:
            reply(self._plain(target.what))
            return None
        if not self.hosts.accept(headers.get(b"host")):
            self.metrics.refused["denied"] += 1
            reply(refusal(421, "the gateway does not answer to that host name", "add it to the setting `hosts`"))
            return None
        return Lead(target, headers)

    def _rest(
        self, lead: Lead, call: Call, reply: Callable[[Reply], Any], caller: Caller, now: float = 0.0
    ) -> Cancel | None:
        what, now = lead.target.what, now or time.monotonic()
        if caller.refused is not None:
            self._refuse(caller.refused, reply)
            return None
        try:
            if not lead.infers and what in _OWN:
                return self._rest_own(what, caller, reply)
            routed = self._admitted(caller, now)
        except FalajError as error:
            self._refuse(error, reply)
            return None
        if what is paths.MODEL_READY and routed.route.asleep and not lead.version:
            reply(said({"name": lead.target.name, "ready": True}))  # whoever asks it is answered, if a little later
            return None
        headers, body = call.headers, call.body
        self._lay(lead, call, routed)
        # The request is ours alone: what a replica need not know is taken out of it.
        call.path, call.headers = lead.path, lead.headers
        one = RestPassing(self, routed, caller, call, reply, now)
        one.key = headers.get(routed.sticky)
        if lead.version:
            one.version = lead.version
        if not lead.infers:
            one.counts = False
        else:
            call.name = one.id = self._new_id(now)
            if lead.named or body.find(paths.SEQUENCE, 0, paths.LOOKED_BYTES) >= 0:
                one.sequence = paths.sequence_of(headers, body)
                one.key = one.key or one.sequence or one.key
        if self.tracer is not None and one.counts and (link := self._followed(one, headers)):
            call.headers = {**call.headers, b"traceparent": link}
        return one.begin()

    def _rest_own(self, what: str, caller: Caller, reply: Callable[[Reply], Any]) -> Cancel | None:
        """What the gateway answers by itself, by HTTP."""
        if what is paths.METRICS:
            reply(self._told(caller))
            return None
        return self._own(what, caller, lambda rows: reply(said(rows)), lambda no: reply(problem(no)))

    def _grpc_own(
        self, method: str, caller: Caller, reply: Callable[[GrpcReply], Any], no: Callable[[FalajError], Any]
    ) -> Cancel | None:
        """The same by gRPC; a caller who was refused gets the refusal."""
        if caller.refused is not None:
            no(caller.refused)
            return None
        what = {"ServerMetadata": paths.SERVER, "RepositoryIndex": paths.INDEX}.get(method, paths.CHANGE)
        message = METHODS[method][1]
        wrap: Callable[[Any], Any] = (lambda rows: {"models": rows}) if what is paths.INDEX else dict
        return self._own(what, caller, lambda rows: reply(GrpcReply(encode(message, wrap(rows)))), no)

    def _grpc(
        self, version: int, call: GrpcCall, reply: Callable[[GrpcReply], Any], caller: Caller, now: float = 0.0
    ) -> Cancel | None:
        method, metadata, now = call.method, call.metadata, now or time.monotonic()

        def no(error: FalajError) -> None:
            self.count_refusal(error)
            reply(grpc_problem(method, CODES.get(error.code, 13), str(error)))

        try:
            if method in _OWN_METHODS or caller.refused is not None:
                return self._grpc_own(method, caller, reply, no)
            routed = self._admitted(caller, now)
        except FalajError as error:
            no(error)
            return None
        if method == "ModelReady" and routed.route.asleep and not version:
            reply(GrpcReply(encode(METHODS[method][1], {"ready": True})))
            return None
        one = GrpcPassing(self, routed, caller, call, reply, now)
        if 0.0 < call.deadline < one.deadline:
            one.deadline, one.own = call.deadline, False
        call.deadline, call.metadata = one.deadline, NO_HEADERS
        one.key = metadata.get(routed.sticky)
        self.streams.add(one, metadata)
        if version:
            one.version = version
        if method not in ("ModelInfer", "ModelStreamInfer"):
            one.counts = False
        else:
            call.name = one.id = self._new_id(now)
            if sequence := paths.grpc_sequence_of(metadata, call.message):
                one.sequence, one.key = sequence, one.key or sequence
        if self.tracer is not None and one.counts and (link := self._followed(one, metadata)):
            call.metadata = {b"traceparent": link}
        return one.begin()

    def _lay(self, lead: Lead, call: Call, routed: Routed) -> None:
        """Find the way of the next ones with this head, where they have one; good for this turn of the table."""
        if lead.turn == self._table.turn:
            return
        plain = lead.infers and not lead.version and not lead.named and self.tracer is None
        lead.way = way_of(routed, call, lead.headers, lead.path, self._line) if plain else None
        lead.turn = self._table.turn

    def _new_id(self, now: float) -> bytes:
        """What a request is called by the caller, the replica, the journal and late labels: when it came, by whom."""
        if now >= self._stamped:
            self._stamp = b"%012x%b" % (time.time_ns() // 1_000_000, self._prefix)
            self._stamped = now + 0.001
        self._count += 1
        return b"%b%012x" % (self._stamp, self._count)

    def _new_ids(self, now: float, num: int) -> list[bytes]:
        """The same of several at once."""
        if not num:
            return []
        stamp, after = self._new_id(now)[:20], self._count
        self._count += num - 1
        return [b"%b%012x" % (stamp, count) for count in range(after, after + num)]

    def _followed(self, one: Passing, headers: Mapping[bytes, bytes]) -> bytes:
        """Begin a span where this request is traced; what its replica is told then."""
        assert self.tracer is not None  # noqa: S101 # nosec B101 - looked at by whoever calls
        one.span = self.tracer.begin("infer", parse(headers.get(b"traceparent")), SERVER)
        return one.span.link.header.encode() if one.span is not None else b""

    def count_refusal(self, error: FalajError) -> None:
        """One more request that was refused."""
        self.metrics.refused[error.code] += 1

    def _refuse(self, error: FalajError, reply: Callable[[Reply], Any]) -> None:
        self.count_refusal(error)
        reply(problem(error))

    def _told(self, caller: Caller) -> Reply:
        """Counts over all tenants, so only the house's own people and services see them; as the platform's are."""
        if caller.actor is None or caller.actor.tenant != HOUSE:
            raise Denied("metrics count every tenant's calls", "ask with an account of the tenant `house`")
        connected = sum(len(one.connections) for one in self.listening)
        return Reply(200, (self.metrics.text(connected),), kind=_TEXT)

    def _admitted(self, caller: Caller, now: float) -> Routed:
        routed, turn = caller.routed, self._table.turn
        if routed is None or caller.turn != turn:
            routed = self._table.routes.get(caller.name)
            if routed is None:
                hint = "falaj serve list shows those you may call"
                raise NotFound(f"there is no endpoint {caller.name[1][:80]!r}", hint)
            caller.routed, caller.turn = routed, turn
        if routed.rules.per_s > 0.0:
            wait_s = self._callers.take(caller, routed.rules, now)
            if wait_s > 0.0:
                raise slow_down(wait_s, f"more requests than {caller.name[1]} gives one caller")
        return routed

    def _own(
        self, what: str, caller: Caller, give: Callable[[Any], Any], no: Callable[[FalajError], Any]
    ) -> Cancel | None:
        """What the gateway answers by itself."""
        if what is paths.CHANGE or caller.actor is None:
            raise Denied("endpoints are not changed by their callers", "revisions change by: falaj serve deploy")
        if what is paths.SERVER:
            give(_ABOUT)
            return None
        pending, loop = Pending(), self.holding.loop

        def told(rows: Any) -> None:
            if not pending.cancelled:
                (no if isinstance(rows, FalajError) else give)(rows)

        self._pool.submit(lambda: loop.call_soon_threadsafe(told, self._index(caller)))
        return pending.cancel

    def _index(self, caller: Caller) -> Any:
        """In a thread: the endpoints that this caller may see."""
        assert caller.actor is not None  # noqa: S101 # nosec B101 - looked at by whoever calls
        rows: list[dict[str, str]] = []
        ctx, after = self._house.context(caller.actor), ""
        try:
            while True:
                page = self._house.call("serve", "list", ctx, {"after": after})
                for one in page.endpoints:
                    ready = "READY" if one.state in ("ready", "asleep") else "UNAVAILABLE"
                    rows += [{"name": one.name, "version": number, "state": ready} for number in one.traffic]
                after = page.next
                if not after:
                    return rows
        except FalajError as error:
            return error

    def _plain(self, what: str) -> Reply:
        if what is paths.ABSENT:
            return refusal(501, "this is not offered", "see extensions in GET v2 for what is")
        if what is paths.READY and not self.open:
            return refusal(503, "the gateway ends", "ask another one")
        return said({"live": True} if what is paths.LIVE else {"live": True, "ready": True})

    def _target(self, path: bytes) -> Target:
        found = paths.target_of(path)
        if len(self._targets) >= MOST_PATHS:
            self._targets.clear()
        self._targets[path] = found
        return found

    def _line(self, number: int) -> bytes:
        return (self._revisions.get(number) or self._revision(number))[0]

    def _revision(self, number: int) -> tuple[bytes, tuple[bytes, bytes]]:
        said = b"%d" % number
        found = self._revisions[number] = b"\r\nfalaj-revision: " + said + b"\r\n", (b"falaj-revision", said)
        return found

    def _keep(self, one: Passing, reply: Any, status: int, arm: str, seconds: float, revision: int = 0) -> None:
        if isinstance(reply, Reply):
            request, response = one.body.body, b"".join(reply.parts)
            length = one.body.headers.get(LENGTH, b"")
            plain = not length and not reply.json_bytes
            encoding = JSON if plain else binary(int(length) if length.isdigit() else 0, reply.json_bytes)
        else:
            request, response, encoding = one.body.message, reply.message, GRPC
        key = one.key.decode("utf-8", "replace") if one.key else ""
        latency_us, who = int(seconds * 1e6), (one.id.decode(), key, arm, revision or one.revision)
        row = Logged(at(), *who, status, latency_us, one.caller.id, request, response, encoding)
        self._pages.add(one.routed.route, row)

    def _shadow(self, one: Passing, kept: bool) -> None:
        """Ask another revision the same, now that the caller has the answer; nobody sees what it says."""
        revision = shadowed(one.routed.route)
        began = time.monotonic()
        link = pick(one.routed.pools.get(revision, ()), began) if revision else None
        if link is None or self._shadows >= MOST_SHADOWS:
            return
        tally = self.tallies.of(one.routed.route, SHADOW, revision)
        tally.inflight += 1
        self._shadows += 1

        def told(reply: Any) -> None:
            if not getattr(reply, "last", True):
                return  # there is more to come
            tally.inflight -= 1
            self._shadows -= 1
            missed = isinstance(reply, Missed)
            status = 503 if missed else one.status(reply)[0]
            seconds = time.monotonic() - began
            tally.done(seconds, status)
            if kept and not missed:  # both answers or none: who compares them needs pairs
                self._keep(one, reply, status, SHADOW, seconds, revision)

        deadline = began + one.routed.route.rules.timeout_s
        ask = link.client.ask_rest if isinstance(one, RestPassing) else link.client.ask_grpc
        try:
            ask(one.body, deadline, told)
        except FalajError:
            told(LOST)

"""The loop that tells: events to whoever asked for them.

What is to be sent is written down together with how far the log was read; then it is sent, at least once, by a few
threads, and what came of it is written down for all of them together. A receiver that does not answer is tried with one
message at a time and ever more rarely, so that many waiting messages cost nothing.
"""

import random
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from falaj.core.context import HOUSE, Context
from falaj.core.errors import FalajError
from falaj.core.ports import Key
from falaj.core.ref import Ref
from falaj.core.settings import Settings
from falaj.fleet.use import every, tenants
from falaj.flows.cloudevents import MEDIA_TYPE, encoded, source_of
from falaj.flows.ear import Ear
from falaj.flows.hooks import DEAD, MOST_WAITING, OFF, SENT, WAITING, delivery_terms, queue
from falaj.flows.keeping import Keys
from falaj.flows.mail import EVERY_S, MAILTO, MOST_EVENTS, Mailer
from falaj.flows.owners import Sight
from falaj.flows.sending import Post
from falaj.flows.service import Flows
from falaj.flows.signatures import headers_for
from falaj.flows.triggers import matches, trigger_in
from falaj.jobs.standing import barred
from falaj.serve.watch import Watch
from falaj.store.ledger import Ledger, Writer
from falaj.store.loop import Turn
from falaj.store.records import Fact, Record

THREADS, EACH, LOOK_S = 8, 4, 0.2
SUSPENDED_S = 1.0  # deliveries of a suspended owner are looked at again this often, in seconds
FIRST_S, LONGEST_S, GIVE_UP_S = 5.0, 6 * 3600.0, 86_400.0
"""The first pause after a failure, the longest, and how long one message is tried; then it is dead, and kept."""
SWITCH_OFF_S = 5 * 86_400.0
"""A receiver that took nothing for so long is asked no more."""
MOST_DEAD, MOST_RECENT = 1000, 20
GONE = 410


class DeliveryOutcome(NamedTuple):
    """What came of one attempt to deliver: the status that the receiver answered, or why there is none."""

    status: int = 0
    failure: str = ""

    @property
    def accepted(self) -> bool:
        """Whether the receiver took the message."""
        return 200 <= self.status < 300

    def __str__(self) -> str:
        """The text that deliveries and hooks show."""
        return self.failure or str(self.status)


@dataclass(slots=True)
class Line:
    """One hook with all that waits for it, by when it is due."""

    hook: Record
    heap: list[tuple[float, str]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    flying: int = 0

    def add(self, due: float, name: str) -> None:
        """One more waits."""
        if name not in self.names:
            self.names.add(name)
            heappush(self.heap, (due, name))


class Flight(NamedTuple):
    """What one thread is sending to one hook."""

    hook: Key
    sent: tuple[Record, ...]


class HookLoop:
    """Sends events to whoever asked for them."""

    name = "hooks"
    every_s = 0.5

    def __init__(self, ledger: Ledger, desk: Flows, post: Post | None = None, mailer: Mailer | None = None) -> None:
        self._ledger = ledger
        settings, keyring = desk.settings, desk.keyring
        self._source = source_of(settings.installation)
        self._ear, self._sight, self._keys = Ear(ledger, "hooks"), Sight(ledger, desk.act), Keys(ledger, keyring)
        self._post = post or Post(settings.hooks.private, ca=settings.hooks.ca)
        self._mailer = mailer or Mailer(settings.mail, lambda: self._password(settings))
        self._watch = Watch(ledger, "hook")
        self._lines: dict[Key, Line] = {}
        self._overtaken: set[Key] = set()
        """Hooks that somebody changed while we wrote: what waits for them is read anew."""
        self._flights: dict[Future[DeliveryOutcome], Flight] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._token = 0
        self._ctx: Context

    def step(self, turn: Turn) -> bool:
        """Hear what is new, send what is due, and write down what came of it."""
        self._ctx = turn.ctx
        if turn.token != self._token:
            self._ear.open(turn.ctx)
            self._load()
        self._token = 0  # whatever fails on the way, the next turn reads everything anew
        more = self._look(turn)
        self._token = turn.token
        return more and turn.alive()

    def _look(self, turn: Turn) -> bool:
        end = self._ledger.store.end()  # before the hooks are read: whoever comes later hears what is later
        changed = {Key(tenant, ref.kind, ref.project, ref.name) for tenant, ref in self._watch.changed()}
        for key in changed | self._overtaken:
            self._reload(key)
        self._overtaken.clear()
        if not self._lines and not self._flights:
            self._ear.skip(end)
            return False
        more = self._hear(end)
        if turn.alive():
            self._send()
        done = wait(self._flights, LOOK_S, FIRST_COMPLETED).done if self._flights else set()
        if done:
            self._conclude([(self._flights.pop(one), one) for one in done])
        return more or bool(done)

    def close(self) -> None:
        """What is being sent is let go of; it will be sent again."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _load(self) -> None:
        self._lines = {}
        with self._ledger.read(self._ctx) as tx:
            hooks = [one for tenant in tenants(self._ledger) for one in every(tx, "hook", tenant)]
        for hook in hooks:
            self._line(hook)

    def _line(self, hook: Record) -> None:
        """Everything that waits for a hook, read anew; what is in the air stays there."""
        flights = [flight for flight in self._flights.values() if flight.hook == hook.key]
        line = self._lines[hook.key] = Line(hook, flying=len(flights))
        flown = {one.key.name for flight in flights for one in flight.sent}
        with self._ledger.read(self._ctx) as tx:
            found = list(every(tx, "delivery", hook.key.tenant, delivery_terms(hook, WAITING)))
        line.heap = [(one.body["due"], one.key.name) for one in found if one.key.name not in flown]
        line.names = {one.key.name for one in found}
        heapify(line.heap)

    def _reload(self, key: Key) -> None:
        with self._ledger.read(self._ctx) as tx:
            found = tx.key(key)
        known = self._lines.get(key)
        if found is None:
            self._lines.pop(key, None)
        elif known is None or known.hook.rev != found.rev or key in self._overtaken:
            self._line(found)

    def _hear(self, end: str) -> bool:
        """Queue what hooks want to hear of, with the cursor, in one transaction."""
        live = [line for line in self._lines.values() if line.hook.body["state"] != OFF]
        facts, more = self._ear.hear({verb for line in live for verb in line.hook.body["events"]}, end)
        wanted = [(line, fact) for fact in facts for line in live if self._wants(line, fact)]
        self._ear.done()
        if not wanted:
            self._ear.keep(self._ctx, acted=False)
            return more
        with self._ledger.write(self._ctx) as tx:
            for line, fact in wanted:
                if len(line.names) < MOST_WAITING:
                    made = queue(tx, line.hook, fact.event, self._source, self._ctx.now())
                    if made is not None:
                        line.add(0.0, made.key.name)
            for line in {id(line): line for line, _ in wanted}.values():
                self._keep(tx, line, {}, "flows.queue")
            self._ear.write(tx)
        return more

    def _wants(self, line: Line, fact: Fact) -> bool:
        hook, event = line.hook, fact.event
        if event.tenant != hook.key.tenant or fact.pos <= hook.body["heard"] or event.verb == "flows.ping":
            return False
        # What is said of hooks themselves would be told for ever.
        told = event.subject.kind not in ("hook", "delivery", "ear") and matches(trigger_in(hook.body), event)
        return told and self._sight.sees(self._ctx, hook, event.subject)

    def _send(self) -> None:
        now = self._ctx.now()
        for key, line in self._lines.items():
            body = line.hook.body
            mail = body["url"].startswith(MAILTO)
            most = 1 if body["fails"] or mail else EACH
            while line.flying < most and len(self._flights) < THREADS and self._due(line, now):
                names = [heappop(line.heap)[1] for _ in range(MOST_EVENTS if mail else 1) if self._due(line, now)]
                ready = tuple(self._ready(line, names))
                if not ready:
                    continue
                self._pool = self._pool or ThreadPoolExecutor(THREADS, "falaj-hook")
                self._flights[self._pool.submit(*self._call(line.hook, ready))] = Flight(key, ready)
                line.flying += 1

    def _due(self, line: Line, now: float) -> bool:
        body = line.hook.body
        return bool(line.heap) and line.heap[0][0] <= now and body["state"] != OFF and body["held_until"] <= now

    def _ready(self, line: Line, names: list[str]) -> Iterator[Record]:
        """Those of them that are still to be sent and that the owner may see today. While the owner or the tenant is
        suspended all of them wait."""
        hook, refused = line.hook, []
        with self._ledger.read(self._ctx) as tx:
            if barred(tx, hook):
                for name in names:
                    heappush(line.heap, (self._ctx.now() + SUSPENDED_S, name))
                return
            found = [tx.key(Key(hook.key.tenant, "delivery", hook.key.project, name)) for name in names]
        for name, one in zip(names, found, strict=True):
            if one is None or one.body["state"] != WAITING:
                line.names.discard(name)
            elif self._sight.sees(self._ctx, hook, Ref.parse(one.body["subject"])):
                yield one
            else:
                refused.append(one)
        if refused:
            with self._ledger.write(self._ctx) as tx:
                for one in refused:
                    tx.delete(one.key, one.rev)
                    line.names.discard(one.key.name)
                self._keep(tx, line, {"note": "its owner may not see what it was about any more"}, "flows.deliver")

    def _call(self, hook: Record, ready: tuple[Record, ...]) -> tuple[Any, ...]:
        """What a thread does: nothing of ours is asked there."""
        url, events = hook.body["url"], [one.body["event"] for one in ready]
        if url.startswith(MAILTO):
            return _mailed, self._mailer, url, events, f"{hook.key.name}{ready[0].body['id']}"
        try:
            keys = self._keys.of(self._ctx, hook)
        except FalajError as error:
            return _failed, f"the secret cannot be read: {error.code}"
        body = encoded(events[0])
        signed = headers_for(keys, events[0]["id"], int(self._ctx.now()), body)
        return _posted, self._post, url, {"content-type": MEDIA_TYPE, **signed}, body

    def _conclude(self, done: list[tuple[Flight, "Future[DeliveryOutcome]"]]) -> None:
        """Write down what came of it, for all that ended, in one transaction."""
        with self._ledger.write(self._ctx) as tx:
            for flight, future in done:
                line, hook = self._lines.get(flight.hook), tx.key(flight.hook)
                if line is None or hook is None:
                    continue  # the hook is gone, and all that waited for it
                line.flying -= 1
                error = future.exception()
                outcome = future.result() if error is None else DeliveryOutcome(0, f"failed: {type(error).__name__}")
                dead = self._settle(tx, line, flight.sent, outcome)
                changed = concluded(hook.body, flight.sent, outcome, dead, self._ctx.now())
                self._keep(tx, line, changed, "flows.deliver")

    def _settle(self, tx: Writer, line: Line, sent: tuple[Record, ...], outcome: DeliveryOutcome) -> int:
        """Each message by itself: done with, to be tried again, or given up; how many of those."""
        now, good, dead = self._ctx.now(), outcome.accepted, 0
        for old in sent:
            one = tx.key(old.key)
            line.names.discard(old.key.name)
            if one is None:
                continue
            mine = {**one.body, "tries": one.body["tries"] + 1, "at": now, "outcome": str(outcome)}
            given_up = not good and now - mine["begun"] >= GIVE_UP_S
            dead += given_up
            if good or (given_up and line.hook.body["dead"] + dead > MOST_DEAD):
                tx.delete(one.key, one.rev)
                continue
            mine |= {"state": DEAD if given_up else WAITING, "due": now + pause_s(mine["tries"])}
            tx.put(one.key, mine, rev=one.rev, terms=delivery_terms(line.hook, mine["state"]))
            if not given_up:
                line.add(mine["due"], one.key.name)
        return dead

    def _keep(self, tx: Writer, line: Line, changed: dict[str, Any], said: str) -> None:
        """Write a hook down over what is there now; nobody waits for the loop to change theirs."""
        found = tx.key(line.hook.key)
        if found is None:
            return
        if found.rev != line.hook.rev:
            self._overtaken.add(found.key)
        body = {**found.body, **changed, "waiting": len(line.names)}
        line.hook = tx.put(found.key, body, rev=found.rev)
        more = {name: body[name] for name in ("waiting", "sent", "dead", "last", "note")}
        tx.emit(said, line.hook.ref, (), tenant=found.key.tenant, **more)

    def _password(self, settings: Settings) -> str:
        return self._keys.values(self._ctx, HOUSE, settings.mail.password, "mail")[0].decode()


def concluded(
    body: dict[str, Any], sent: tuple[Record, ...], outcome: DeliveryOutcome, dead: int, now: float
) -> dict[str, Any]:
    """What a hook says of itself after an attempt."""
    common = {"last": str(outcome), "last_at": now, "note": ""}
    if outcome.accepted:
        short = [
            {name: one.body[name] for name in ("id", "verb", "subject")}
            | {"state": SENT, "tries": one.body["tries"] + 1, "at": now, "outcome": str(outcome)}
            for one in sent
        ]
        held = now + EVERY_S if body["url"].startswith(MAILTO) else 0.0
        return common | {
            "fails": 0, "failing_since": 0.0, "held_until": held, "sent": body["sent"] + len(sent),
            "recent": [*short, *body["recent"]][:MOST_RECENT],
        }  # fmt: skip
    fails, since, gone = body["fails"] + 1, body["failing_since"] or now, outcome.status == GONE
    changed = common | {
        "fails": fails, "failing_since": since, "held_until": now + pause_s(fails), "dead": body["dead"] + dead,
    }  # fmt: skip
    if gone or now - since >= SWITCH_OFF_S:
        why = "the receiver said that it is gone" if gone else "it took nothing for days"
        changed |= {"state": OFF, "note": f"{why}; `falaj flows redeliver` switches it on again"}
    return changed


def pause_s(tries: int) -> float:
    """How long to rest after so many failures: twice as long each time, and never together with others."""
    longest = min(LONGEST_S, FIRST_S * 2.0 ** min(tries - 1, 30))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311  # nosec B311 - spread, not secrecy


def _posted(post: Post, url: str, headers: dict[str, str], body: bytes) -> DeliveryOutcome:
    try:
        return DeliveryOutcome(post.send(url, headers, body))
    except FalajError as error:
        return DeliveryOutcome(0, error.message[:200])


def _mailed(mailer: Mailer, url: str, events: list[dict[str, Any]], id_: str) -> DeliveryOutcome:
    try:
        return DeliveryOutcome(mailer.send(url, events, id_))
    except FalajError as error:
        return DeliveryOutcome(0, error.message[:200])


def _failed(why: str) -> DeliveryOutcome:
    return DeliveryOutcome(0, why)

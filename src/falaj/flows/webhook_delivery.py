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

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.errors import FalajError
from falaj.core.ports import RecordKey
from falaj.core.ref import Ref
from falaj.core.settings import Settings
from falaj.fleet.fleet_use import iter_records, list_tenants
from falaj.flows.cloudevents import MEDIA_TYPE, encode_cloudevent, make_event_source
from falaj.flows.event_cursor import EventCursor
from falaj.flows.event_mail import MAIL_INTERVAL_S, MAILTO_PREFIX, MAX_EVENTS, Mailer
from falaj.flows.http_sender import WebhookPoster
from falaj.flows.owner_visibility import OwnerVisibility
from falaj.flows.service import FlowService
from falaj.flows.signing_secrets import SigningKeys
from falaj.flows.triggers import matches_event, read_filter
from falaj.flows.webhook_signatures import sign_message
from falaj.flows.webhooks import (
    DELIVERY_DEAD,
    DELIVERY_SENT,
    DELIVERY_WAITING,
    HOOK_OFF,
    MAX_WAITING,
    make_delivery_terms,
    queue_delivery,
)
from falaj.jobs.submitter_standing import find_bar_reason
from falaj.serve.change_watch import ChangeWatch
from falaj.store.ledger import Ledger, LedgerWriter
from falaj.store.reconcile_loop import LoopIteration
from falaj.store.records import LedgerRecord, LoggedEvent

MAX_THREADS, MAX_PER_HOOK, WAIT_TIMEOUT_S = 8, 4, 0.2
SUSPENDED_S = 1.0  # deliveries of a suspended owner are looked at again this often, in seconds
FIRST_PAUSE_S, MAX_PAUSE_S, MESSAGE_TIMEOUT_S = 5.0, 6 * 3600.0, 86_400.0
"""The first pause after a failure, the longest, and how long one message is tried; then it is dead, and kept."""
HOOK_TIMEOUT_S = 5 * 86_400.0
"""A receiver that took nothing for so long is asked no more."""
MAX_DEAD, MAX_RECENT = 1000, 20
GONE_STATUS = 410


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
class HookQueue:
    """One hook with all that waits for it, by when it is due."""

    hook: LedgerRecord
    heap: list[tuple[float, str]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    flying: int = 0

    def add(self, due_at: float, delivery_name: str) -> None:
        """One more waits."""
        if delivery_name not in self.names:
            self.names.add(delivery_name)
            heappush(self.heap, (due_at, delivery_name))


class InFlightDelivery(NamedTuple):
    """What one thread is sending to one hook."""

    hook: RecordKey
    sent: tuple[LedgerRecord, ...]


class WebhookLoop:
    """Sends events to whoever asked for them."""

    name = "hooks"
    every_s = 0.5

    def __init__(
        self, ledger: Ledger, service: FlowService, poster: WebhookPoster | None = None, mailer: Mailer | None = None
    ) -> None:
        self._ledger = ledger
        settings, keyring = service.settings, service.keyring
        self._source = make_event_source(settings.installation)
        self._event_cursor, self._visibility, self._signing_keys = (
            EventCursor(ledger, "hooks"),
            OwnerVisibility(ledger, service.act),
            SigningKeys(ledger, keyring),
        )
        self._poster = poster or WebhookPoster(settings.hooks.private, ca=settings.hooks.ca)
        self._mailer = mailer or Mailer(settings.mail, lambda: self._read_mail_password(settings))
        self._change_watch = ChangeWatch(ledger, "hook")
        self._queues: dict[RecordKey, HookQueue] = {}
        self._changed_hooks: set[RecordKey] = set()
        """Hooks that somebody changed while we wrote: what waits for them is read anew."""
        self._in_flight: dict[Future[DeliveryOutcome], InFlightDelivery] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._fencing_token = 0
        self._ctx: CallContext

    def step(self, iteration: LoopIteration) -> bool:
        """Hear what is new, send what is due, and write down what came of it."""
        self._ctx = iteration.ctx
        if iteration.token != self._fencing_token:
            self._event_cursor.open(iteration.ctx)
            self._load_queues()
        self._fencing_token = 0  # whatever fails on the way, the next turn reads everything anew
        has_more = self._run_once(iteration)
        self._fencing_token = iteration.token
        return has_more and iteration.alive()

    def _run_once(self, iteration: LoopIteration) -> bool:
        end = self._ledger.store.end()  # before the hooks are read: whoever comes later hears what is later
        changed = {RecordKey(tenant, ref.kind, ref.project, ref.name) for tenant, ref in self._change_watch.changed()}
        for key in changed | self._changed_hooks:
            self._reload_hook(key)
        self._changed_hooks.clear()
        if not self._queues and not self._in_flight:
            self._event_cursor.skip(end)
            return False
        has_more = self._queue_events(end)
        if iteration.alive():
            self._start_deliveries()
        finished = wait(self._in_flight, WAIT_TIMEOUT_S, FIRST_COMPLETED).done if self._in_flight else set()
        if finished:
            self._record_outcomes([(self._in_flight.pop(future), future) for future in finished])
        return has_more or bool(finished)

    def close(self) -> None:
        """What is being sent is let go of; it will be sent again."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _load_queues(self) -> None:
        self._queues = {}
        with self._ledger.read(self._ctx) as tx:
            hooks = [
                hook_record for tenant in list_tenants(self._ledger) for hook_record in iter_records(tx, "hook", tenant)
            ]
        for hook in hooks:
            self._load_queue(hook)

    def _load_queue(self, hook: LedgerRecord) -> None:
        """Everything that waits for a hook, read anew; what is in the air stays there."""
        flights = [flight for flight in self._in_flight.values() if flight.hook == hook.key]
        queue = self._queues[hook.key] = HookQueue(hook, flying=len(flights))
        in_flight_names = {delivery.key.name for flight in flights for delivery in flight.sent}
        with self._ledger.read(self._ctx) as tx:
            waiting_deliveries = list(
                iter_records(tx, "delivery", hook.key.tenant, make_delivery_terms(hook, DELIVERY_WAITING))
            )
        queue.heap = [
            (delivery.body["due"], delivery.key.name)
            for delivery in waiting_deliveries
            if delivery.key.name not in in_flight_names
        ]
        queue.names = {delivery.key.name for delivery in waiting_deliveries}
        heapify(queue.heap)

    def _reload_hook(self, key: RecordKey) -> None:
        with self._ledger.read(self._ctx) as tx:
            hook_record = tx.key(key)
        known_queue = self._queues.get(key)
        if hook_record is None:
            self._queues.pop(key, None)
        elif known_queue is None or known_queue.hook.rev != hook_record.rev or key in self._changed_hooks:
            self._load_queue(hook_record)

    def _queue_events(self, end: str) -> bool:
        """Queue what hooks want to hear of, with the cursor, in one transaction."""
        active_queues = [queue for queue in self._queues.values() if queue.hook.body["state"] != HOOK_OFF]
        logged_events, has_more = self._event_cursor.hear(
            {verb for queue in active_queues for verb in queue.hook.body["events"]}, end
        )
        wanted_events = [
            (queue, logged_event)
            for logged_event in logged_events
            for queue in active_queues
            if self._is_wanted(queue, logged_event)
        ]
        self._event_cursor.done()
        if not wanted_events:
            self._event_cursor.keep(self._ctx, has_acted=False)
            return has_more
        with self._ledger.write(self._ctx) as tx:
            for queue, logged_event in wanted_events:
                if len(queue.names) < MAX_WAITING:
                    queued_delivery = queue_delivery(tx, queue.hook, logged_event.event, self._source, self._ctx.now())
                    if queued_delivery is not None:
                        queue.add(0.0, queued_delivery.key.name)
            for queue in {id(queue): queue for queue, _ in wanted_events}.values():
                self._save_hook(tx, queue, {}, "flows.queue")
            self._event_cursor.write(tx)
        return has_more

    def _is_wanted(self, queue: HookQueue, logged_event: LoggedEvent) -> bool:
        hook, event = queue.hook, logged_event.event
        if event.tenant != hook.key.tenant or logged_event.pos <= hook.body["heard"] or event.verb == "flows.ping":
            return False
        # What is said of hooks themselves would be told for ever.
        is_matching = event.subject.kind not in ("hook", "delivery", "ear") and matches_event(
            read_filter(hook.body), event
        )
        return is_matching and self._visibility.sees(self._ctx, hook, event.subject)

    def _start_deliveries(self) -> None:
        now = self._ctx.now()
        for key, queue in self._queues.items():
            body = queue.hook.body
            is_mail = body["url"].startswith(MAILTO_PREFIX)
            max_in_flight = 1 if body["fails"] or is_mail else MAX_PER_HOOK
            while queue.flying < max_in_flight and len(self._in_flight) < MAX_THREADS and self._has_due(queue, now):
                names = [
                    heappop(queue.heap)[1] for _ in range(MAX_EVENTS if is_mail else 1) if self._has_due(queue, now)
                ]
                ready_deliveries = tuple(self._iterate_ready(queue, names))
                if not ready_deliveries:
                    continue
                self._pool = self._pool or ThreadPoolExecutor(MAX_THREADS, "falaj-hook")
                self._in_flight[self._pool.submit(*self._make_call(queue.hook, ready_deliveries))] = InFlightDelivery(
                    key, ready_deliveries
                )
                queue.flying += 1

    def _has_due(self, queue: HookQueue, now: float) -> bool:
        body = queue.hook.body
        return bool(queue.heap) and queue.heap[0][0] <= now and body["state"] != HOOK_OFF and body["held_until"] <= now

    def _iterate_ready(self, queue: HookQueue, names: list[str]) -> Iterator[LedgerRecord]:
        """Those of them that are still to be sent and that the owner may see today. While the owner or the tenant is
        suspended all of them wait."""
        hook, refused_deliveries = queue.hook, []
        with self._ledger.read(self._ctx) as tx:
            if find_bar_reason(tx, hook):
                for name in names:
                    heappush(queue.heap, (self._ctx.now() + SUSPENDED_S, name))
                return
            deliveries = [tx.key(RecordKey(hook.key.tenant, "delivery", hook.key.project, name)) for name in names]
        for name, delivery in zip(names, deliveries, strict=True):
            if delivery is None or delivery.body["state"] != DELIVERY_WAITING:
                queue.names.discard(name)
            elif self._visibility.sees(self._ctx, hook, Ref.parse(delivery.body["subject"])):
                yield delivery
            else:
                refused_deliveries.append(delivery)
        if refused_deliveries:
            with self._ledger.write(self._ctx) as tx:
                for delivery in refused_deliveries:
                    tx.delete(delivery.key, delivery.rev)
                    queue.names.discard(delivery.key.name)
                self._save_hook(
                    tx, queue, {"note": "its owner may not see what it was about any more"}, "flows.deliver"
                )

    def _make_call(self, hook: LedgerRecord, ready_deliveries: tuple[LedgerRecord, ...]) -> tuple[Any, ...]:
        """What a thread does: nothing of ours is asked there."""
        url, events = hook.body["url"], [delivery.body["event"] for delivery in ready_deliveries]
        if url.startswith(MAILTO_PREFIX):
            return _mail_events, self._mailer, url, events, f"{hook.key.name}{ready_deliveries[0].body['id']}"
        try:
            keys = self._signing_keys.of(self._ctx, hook)
        except FalajError as error:
            return _make_failure, f"the secret cannot be read: {error.code}"
        body = encode_cloudevent(events[0])
        signature_headers = sign_message(keys, events[0]["id"], int(self._ctx.now()), body)
        return _post_event, self._poster, url, {"content-type": MEDIA_TYPE, **signature_headers}, body

    def _record_outcomes(self, finished_deliveries: list[tuple[InFlightDelivery, "Future[DeliveryOutcome]"]]) -> None:
        """Write down what came of it, for all that ended, in one transaction."""
        with self._ledger.write(self._ctx) as tx:
            for flight, future in finished_deliveries:
                queue, hook = self._queues.get(flight.hook), tx.key(flight.hook)
                if queue is None or hook is None:
                    continue  # the hook is gone, and all that waited for it
                queue.flying -= 1
                error = future.exception()
                outcome = future.result() if error is None else DeliveryOutcome(0, f"failed: {type(error).__name__}")
                dead_count = self._record_deliveries(tx, queue, flight.sent, outcome)
                hook_changes = compute_hook_changes(hook.body, flight.sent, outcome, dead_count, self._ctx.now())
                self._save_hook(tx, queue, hook_changes, "flows.deliver")

    def _record_deliveries(
        self, tx: LedgerWriter, queue: HookQueue, sent: tuple[LedgerRecord, ...], outcome: DeliveryOutcome
    ) -> int:
        """Each message by itself: done with, to be tried again, or given up; how many of those."""
        now, is_accepted, dead_count = self._ctx.now(), outcome.accepted, 0
        for sent_delivery in sent:
            delivery = tx.key(sent_delivery.key)
            queue.names.discard(sent_delivery.key.name)
            if delivery is None:
                continue
            delivery_body = {**delivery.body, "tries": delivery.body["tries"] + 1, "at": now, "outcome": str(outcome)}
            is_given_up = not is_accepted and now - delivery_body["begun"] >= MESSAGE_TIMEOUT_S
            dead_count += is_given_up
            if is_accepted or (is_given_up and queue.hook.body["dead"] + dead_count > MAX_DEAD):
                tx.delete(delivery.key, delivery.rev)
                continue
            delivery_body |= {
                "state": DELIVERY_DEAD if is_given_up else DELIVERY_WAITING,
                "due": now + compute_pause_s(delivery_body["tries"]),
            }
            tx.put(
                delivery.key,
                delivery_body,
                rev=delivery.rev,
                terms=make_delivery_terms(queue.hook, delivery_body["state"]),
            )
            if not is_given_up:
                queue.add(delivery_body["due"], delivery.key.name)
        return dead_count

    def _save_hook(self, tx: LedgerWriter, queue: HookQueue, changes: dict[str, Any], event_name: str) -> None:
        """Write a hook down over what is there now; nobody waits for the loop to change theirs."""
        hook_record = tx.key(queue.hook.key)
        if hook_record is None:
            return
        if hook_record.rev != queue.hook.rev:
            self._changed_hooks.add(hook_record.key)
        body = {**hook_record.body, **changes, "waiting": len(queue.names)}
        queue.hook = tx.put(hook_record.key, body, rev=hook_record.rev)
        event_fields = {name: body[name] for name in ("waiting", "sent", "dead", "last", "note")}
        tx.emit(event_name, queue.hook.ref, (), tenant=hook_record.key.tenant, **event_fields)

    def _read_mail_password(self, settings: Settings) -> str:
        return self._signing_keys.values(self._ctx, SYSTEM_TENANT, settings.mail.password, "mail")[0].decode()


def compute_hook_changes(
    body: dict[str, Any],
    sent_deliveries: tuple[LedgerRecord, ...],
    outcome: DeliveryOutcome,
    dead_count: int,
    now: float,
) -> dict[str, Any]:
    """What a hook says of itself after an attempt."""
    common_fields = {"last": str(outcome), "last_at": now, "note": ""}
    if outcome.accepted:
        recent_entries = [
            {name: delivery.body[name] for name in ("id", "verb", "subject")}
            | {"state": DELIVERY_SENT, "tries": delivery.body["tries"] + 1, "at": now, "outcome": str(outcome)}
            for delivery in sent_deliveries
        ]
        held_until = now + MAIL_INTERVAL_S if body["url"].startswith(MAILTO_PREFIX) else 0.0
        return common_fields | {
            "fails": 0,
            "failing_since": 0.0,
            "held_until": held_until,
            "sent": body["sent"] + len(sent_deliveries),
            "recent": [*recent_entries, *body["recent"]][:MAX_RECENT],
        }
    failure_count, failing_since, is_gone = (
        body["fails"] + 1,
        body["failing_since"] or now,
        outcome.status == GONE_STATUS,
    )
    changes = common_fields | {
        "fails": failure_count,
        "failing_since": failing_since,
        "held_until": now + compute_pause_s(failure_count),
        "dead": body["dead"] + dead_count,
    }
    if is_gone or now - failing_since >= HOOK_TIMEOUT_S:
        reason = "the receiver said that it is gone" if is_gone else "it took nothing for days"
        changes |= {"state": HOOK_OFF, "note": f"{reason}; `falaj flows redeliver` switches it on again"}
    return changes


def compute_pause_s(tries: int) -> float:
    """How long to rest after so many failures: twice as long each time, and never together with others."""
    max_pause = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(tries - 1, 30))
    return max_pause * random.uniform(0.5, 1.0)  # noqa: S311  # nosec B311 - spread, not secrecy


def _post_event(poster: WebhookPoster, url: str, headers: dict[str, str], body: bytes) -> DeliveryOutcome:
    try:
        return DeliveryOutcome(poster.send(url, headers, body))
    except FalajError as error:
        return DeliveryOutcome(0, error.message[:200])


def _mail_events(mailer: Mailer, url: str, events: list[dict[str, Any]], id_: str) -> DeliveryOutcome:
    try:
        return DeliveryOutcome(mailer.send(url, events, id_))
    except FalajError as error:
        return DeliveryOutcome(0, error.message[:200])


def _make_failure(reason: str) -> DeliveryOutcome:
    return DeliveryOutcome(0, reason)

"""Hooks: who is told of events, by webhook or mail. The loop that tells them is in delivering.py."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from falaj.core.context import CallContext
from falaj.core.errors import Invalid, NotFound
from falaj.core.event import Event, generate_id
from falaj.core.operation import operation
from falaj.core.ports import RecordKey
from falaj.core.ref import Ref
from falaj.fleet.fleet_use import iter_records
from falaj.flows.cloudevents import make_event_source, to_cloudevent
from falaj.flows.event_mail import MAILTO_PREFIX, parse_mailto
from falaj.flows.http_sender import parse_networks, parse_webhook_url
from falaj.flows.owner_visibility import FlowServiceBase
from falaj.flows.signing_secrets import get_secret_reference
from falaj.flows.trigger_records import DeliveryView, EventFilter, HookView
from falaj.flows.triggers import check_filter, check_quota, read_filter, require_record
from falaj.govern.secret_service import looks_like_secret
from falaj.jobs.attempts import to_submitter
from falaj.store.ledger import LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord

HOOK_ON, HOOK_OFF, HOOK_FAILING, HOOK_FULL = "on", "off", "failing", "full"
DELIVERY_WAITING, DELIVERY_SENT, DELIVERY_DEAD = "waiting", "sent", "dead"
MAX_WAITING = 10_000
"""A hook that is further behind than this hears of nothing new until it has caught up."""


class WebhookOperations(FlowServiceBase):
    """Who is told of events."""

    @operation(writes=("hook",), returns_secret=True)
    def hook(  # nosec B107 - the name of a secret, not its value
        self,
        ctx: CallContext,
        hook: Annotated[Ref, "what to call it, for example hook:fraud/ci"],
        url: Annotated[str, "where to: https://… or mailto:…"],
        event: Annotated[tuple[str, ...], "verbs of events, with * and ?: catalog.point, monitor.alert"],
        subject: Annotated[str, "what they must be about: 'model:fraud/*'"] = "*",
        where: Annotated[dict[str, str] | None, "what fields of the event must be like"] = None,
        secret: Annotated[str, "what messages are signed with, secret:project/name; made when left out"] = "",
    ) -> HookView:
        """Tell somebody of events, or change how. It hears of what you may see, and of nothing else.

        Messages are CloudEvents, signed as Standard Webhooks; their id is the event's, so who gets one twice can tell.
        A secret that is made for it is shown this once. Rotate it, and for a day messages carry both signatures.

        Example:
            falaj flows hook hook:fraud/ci https://ci.bank.example/falaj --event catalog.point
        """
        if hook.kind != "hook" or hook.version or len(hook.name) > 80:
            raise Invalid(f"{hook} names no hook", "for example hook:fraud/ci, at most 80 letters", hook)
        event_filter = check_filter(EventFilter(tuple(event), subject, where or {}))
        self._check_url(url)
        is_mail = url.startswith(MAILTO_PREFIX)
        client = self.act(ctx.actor, ctx.purpose)
        reference, value = ("", "") if is_mail else get_secret_reference(client, secret, hook, f"hook-{hook.name}")
        with self._ledger.write(ctx) as tx:
            old_record = tx.get(hook)
            if old_record is None:
                check_quota(tx, "hook")
            body = {
                "id": generate_id(),
                "who": to_submitter(ctx),
                "url": url,
                "events": list(event_filter.events),
                "subject": subject,
                "where": dict(event_filter.where),
                "secret": reference,
                "state": HOOK_ON,
                "heard": self._ledger.store.end(),
                "fails": 0,
                "failing_since": 0.0,
                "held_until": 0.0,
                "sent": 0,
                "dead": 0,
                "waiting": 0,
                "dropped": 0,
                "last": "",
                "last_at": 0.0,
                "note": "",
                "recent": [],
            }
            if old_record is not None:
                body |= {name: old_record.body[name] for name in ("sent", "dead", "waiting", "recent")}
            saved = tx.put(hook, body, rev=old_record.rev if old_record else None)
            channel = "mail" if is_mail else "web"
            tx.emit("flows.hook", saved.ref, events=",".join(event_filter.events), about=subject, by=channel)
        return replace(make_hook_view(saved), secret=value)

    @operation(writes=("hook",))
    def unhook(self, ctx: CallContext, hook: Annotated[Ref, "which one"]) -> HookView:
        """Tell them no more; what waits is dropped.

        Example:
            falaj flows unhook hook:fraud/ci
        """
        with self._ledger.write(ctx) as tx:
            old = require_record(tx, hook, "hook")
            for delivery in list_deliveries(tx, old):
                tx.delete(delivery.key, delivery.rev)
            tx.delete(old.key, old.rev)
            tx.emit("flows.unhook", old.ref)
        return make_hook_view(old)

    @operation()
    def hooks(self, ctx: CallContext, project: Annotated[str, "of one project only"] = "") -> tuple[HookView, ...]:
        """List the hooks you may see, with how they do.

        Example:
            falaj flows hooks --project fraud
        """
        with self._ledger.read(ctx) as tx:
            page = tx.find("hook", project=project, scopes=ctx.cells("hook"), limit=1000)
        return tuple(map(make_hook_view, page.records))

    @operation(reads=("hook",))
    def deliveries(
        self,
        ctx: CallContext,
        hook: Annotated[Ref, "which one"],
        state: Annotated[str, "waiting, sent or dead"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> tuple[DeliveryView, ...]:
        """List what was sent to a hook, what waits, and what was given up; newest first.

        Example:
            falaj flows deliveries hook:fraud/ci --state dead
        """
        with self._ledger.read(ctx) as tx:
            old = require_record(tx, hook, "hook")
            page = tx.find(
                "delivery", terms=make_delivery_terms(old, state), newest_first=True, limit=max(1, min(limit, 1000))
            )
        views = [make_delivery_view(item.body) for item in page.records]
        views += [make_delivery_view(item) for item in old.body["recent"] if state in ("", DELIVERY_SENT)]
        return tuple(sorted(views, key=lambda item: -item.at)[: max(1, limit)])

    @operation(writes=("hook",), group="control")
    def redeliver(
        self,
        ctx: CallContext,
        hook: Annotated[Ref, "which one"],
        event: Annotated[str, "the id of one; all that were given up when left out"] = "",
    ) -> HookView:
        """Send again what was given up, or one event whatever became of it; and switch a hook on that was off.

        Example:
            falaj flows redeliver hook:fraud/ci
        """
        with self._ledger.write(ctx) as tx:
            old = require_record(tx, hook, "hook")
            dead_deliveries = [
                delivery
                for delivery in list_deliveries(tx, old)
                if delivery.body["state"] == DELIVERY_DEAD and event in ("", delivery.body["id"])
            ]
            for delivery in dead_deliveries:
                requeued = {**delivery.body, "state": DELIVERY_WAITING, "tries": 0, "due": 0.0, "begun": ctx.now()}
                tx.put(delivery.key, requeued, rev=delivery.rev, terms={**delivery.terms, "state": DELIVERY_WAITING})
            if event and not dead_deliveries:
                self._requeue_event(tx, ctx, old, event)
            counts = {
                "dead": old.body["dead"] - len(dead_deliveries),
                "waiting": old.body["waiting"] + max(len(dead_deliveries), bool(event)),
            }
            changes = {"state": HOOK_ON, "held_until": 0.0, "fails": 0, "failing_since": 0.0, "note": ""} | counts
            saved = tx.put(old.key, {**old.body, **changes}, rev=old.rev)
            tx.emit("flows.redeliver", saved.ref, again=max(len(dead_deliveries), bool(event)))
        return make_hook_view(saved)

    @operation(writes=("hook",), group="control")
    def ping(self, ctx: CallContext, hook: Annotated[Ref, "which one"]) -> HookView:
        """Send a hook an event of its own, to see that it arrives; `deliveries` shows what came of it.

        Example:
            falaj flows ping hook:fraud/ci
        """
        with self._ledger.write(ctx) as tx:
            old = require_record(tx, hook, "hook")
            saved = tx.put(old.key, {**old.body, "waiting": old.body["waiting"] + 1}, rev=old.rev)
            event = tx.emit("flows.ping", saved.ref, message="is anybody there?")
            queue_delivery(tx, saved, event, make_event_source(self._settings.installation), ctx.now())
        return make_hook_view(saved)

    def _check_url(self, url: str) -> None:
        if looks_like_secret(url):
            raise Invalid("the address holds a secret, and would be kept in the clear", "sign with --secret instead")
        if url.startswith(MAILTO_PREFIX):
            parse_mailto(url)
            if not self._settings.mail.server:
                raise Invalid("this installation sends no mail", "whoever runs it can set mail.server")
        else:
            parse_networks(self._settings.hooks.private)
            parse_webhook_url(url, self._settings.hooks.private)

    def _requeue_event(self, tx: LedgerWriter, ctx: CallContext, hook: LedgerRecord, id_: str) -> None:
        if not any(recent_entry["id"] == id_ for recent_entry in hook.body["recent"]):
            raise NotFound(f"no event {id_[:40]} was sent to {hook.ref.bare}", "falaj flows deliveries shows them")
        logged_events = self._ledger.tail(tenant=ctx.tenant, id=id_, limit=1)
        if not logged_events:
            raise NotFound(f"there is no event {id_[:40]}", "falaj flows deliveries shows them")
        queue_delivery(tx, hook, logged_events[0].event, make_event_source(self._settings.installation), ctx.now())


def queue_delivery(tx: LedgerWriter, hook: LedgerRecord, event: Event, source: str, now: float) -> LedgerRecord | None:
    """One event on its way to one hook; None when it is on its way already."""
    key = RecordKey(hook.key.tenant, "delivery", hook.key.project, f"{hook.key.name}.{event.id}")
    if tx.key(key) is not None:
        return None
    body = {
        "id": event.id,
        "verb": event.verb,
        "subject": str(event.subject),
        "state": DELIVERY_WAITING,
        "tries": 0,
        "due": 0.0,
        "at": now,
        "begun": now,
        "outcome": "",
        "event": to_cloudevent(event, source),
    }
    terms = make_delivery_terms(hook, DELIVERY_WAITING)
    return tx.put(key, body, label=hook.label, zone=hook.zone, author=hook.author, terms=terms)


def list_deliveries(tx: LedgerReader, hook: LedgerRecord, state: str = "") -> list[LedgerRecord]:
    """All that waits for a hook or was given up; bounded by what may wait."""
    return list(iter_records(tx, "delivery", hook.key.tenant, make_delivery_terms(hook, state)))


def make_delivery_terms(hook: LedgerRecord, state: str = "") -> dict[str, str]:
    """What the deliveries of a hook are found by."""
    return {"hook": f"{hook.key.project}/{hook.key.name}", **({"state": state} if state else {})}


def make_hook_view(record: LedgerRecord) -> HookView:
    """A hook as its people see it."""
    body, event_filter = record.body, read_filter(record.body)
    return HookView(
        record.ref.bare,
        body["url"],
        event_filter.events,
        event_filter.subject,
        event_filter.where,
        body["who"]["id"],
        get_hook_state(body),
        body["waiting"],
        body["sent"],
        body["dead"],
        body["last"],
        body["last_at"],
        body["note"],
        body["secret"],
    )


def get_hook_state(body: Mapping[str, Any]) -> str:
    """How a hook does, in a word."""
    if body["state"] == HOOK_OFF:
        return HOOK_OFF
    return HOOK_FULL if body["waiting"] >= MAX_WAITING else HOOK_FAILING if body["fails"] else HOOK_ON


def make_delivery_view(body: Mapping[str, Any]) -> DeliveryView:
    """One event on its way."""
    return DeliveryView(
        body["id"],
        body["verb"],
        body["subject"],
        body["state"],
        body["tries"],
        body["at"],
        body["outcome"],
        body.get("due", 0.0),
    )

"""Hooks: who is told of events, by webhook or mail. The loop that tells them is in delivering.py."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from falaj.core.context import Context
from falaj.core.errors import Invalid, NotFound
from falaj.core.event import Event, new_id
from falaj.core.ports import Key
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.fleet.use import every
from falaj.flows.asks import DeliveryView, HookView, Trigger
from falaj.flows.cloudevents import source_of, told
from falaj.flows.keeping import reference_of
from falaj.flows.mail import MAILTO, read_mailto
from falaj.flows.owners import Shared
from falaj.flows.sending import networks, read_url
from falaj.flows.triggers import checked, need, room_for, trigger_in
from falaj.govern.secrets import contains_secret
from falaj.jobs.attempts import who_of
from falaj.store.ledger import Reader, Writer
from falaj.store.records import Record

ON, OFF, FAILING, FULL = "on", "off", "failing", "full"
WAITING, SENT, DEAD = "waiting", "sent", "dead"
MOST_WAITING = 10_000
"""A hook that is further behind than this hears of nothing new until it has caught up."""


class Hooks(Shared):
    """Who is told of events."""

    @verb(writes=("hook",), once=True)
    def hook(  # nosec B107 - the name of a secret, not its value
        self,
        ctx: Context,
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
        wanted = checked(Trigger(tuple(event), subject, where or {}))
        self._check_place(url)
        mail = url.startswith(MAILTO)
        here = self.act(ctx.actor, ctx.purpose)
        reference, value = ("", "") if mail else reference_of(here, secret, hook, f"hook-{hook.name}")
        with self._ledger.write(ctx) as tx:
            old = tx.get(hook)
            if old is None:
                room_for(tx, "hook")
            body = {
                "id": new_id(), "who": who_of(ctx), "url": url, "events": list(wanted.events), "subject": subject,
                "where": dict(wanted.where), "secret": reference, "state": ON, "heard": self._ledger.store.end(),
                "fails": 0, "failing_since": 0.0, "held_until": 0.0, "sent": 0, "dead": 0, "waiting": 0, "dropped": 0,
                "last": "", "last_at": 0.0, "note": "", "recent": [],
            }  # fmt: skip
            if old is not None:
                body |= {name: old.body[name] for name in ("sent", "dead", "waiting", "recent")}
            kept = tx.put(hook, body, rev=old.rev if old else None)
            tx.emit("flows.hook", kept.ref, events=",".join(wanted.events), about=subject, by="mail" if mail else "web")
        return replace(hook_view(kept), secret=value)

    @verb(writes=("hook",))
    def unhook(self, ctx: Context, hook: Annotated[Ref, "which one"]) -> HookView:
        """Tell them no more; what waits is dropped.

        Example:
            falaj flows unhook hook:fraud/ci
        """
        with self._ledger.write(ctx) as tx:
            old = need(tx, hook, "hook")
            for one in deliveries_of(tx, old):
                tx.delete(one.key, one.rev)
            tx.delete(old.key, old.rev)
            tx.emit("flows.unhook", old.ref)
        return hook_view(old)

    @verb()
    def hooks(self, ctx: Context, project: Annotated[str, "of one project only"] = "") -> tuple[HookView, ...]:
        """List the hooks you may see, with how they do.

        Example:
            falaj flows hooks --project fraud
        """
        with self._ledger.read(ctx) as tx:
            page = tx.find("hook", project=project, cells=ctx.cells("hook"), limit=1000)
        return tuple(map(hook_view, page.records))

    @verb(reads=("hook",))
    def deliveries(
        self,
        ctx: Context,
        hook: Annotated[Ref, "which one"],
        state: Annotated[str, "waiting, sent or dead"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> tuple[DeliveryView, ...]:
        """List what was sent to a hook, what waits, and what was given up; newest first.

        Example:
            falaj flows deliveries hook:fraud/ci --state dead
        """
        with self._ledger.read(ctx) as tx:
            old = need(tx, hook, "hook")
            found = tx.find("delivery", terms=delivery_terms(old, state), newest=True, limit=max(1, min(limit, 1000)))
        kept = [delivery_view(one.body) for one in found.records]
        kept += [delivery_view(one) for one in old.body["recent"] if state in ("", SENT)]
        return tuple(sorted(kept, key=lambda one: -one.at)[: max(1, limit)])

    @verb(writes=("hook",), group="control")
    def redeliver(
        self,
        ctx: Context,
        hook: Annotated[Ref, "which one"],
        event: Annotated[str, "the id of one; all that were given up when left out"] = "",
    ) -> HookView:
        """Send again what was given up, or one event whatever became of it; and switch a hook on that was off.

        Example:
            falaj flows redeliver hook:fraud/ci
        """
        with self._ledger.write(ctx) as tx:
            old = need(tx, hook, "hook")
            found = [
                one for one in deliveries_of(tx, old) if one.body["state"] == DEAD and event in ("", one.body["id"])
            ]
            for one in found:
                again = {**one.body, "state": WAITING, "tries": 0, "due": 0.0, "begun": ctx.now()}
                tx.put(one.key, again, rev=one.rev, terms={**one.terms, "state": WAITING})
            if event and not found:
                self._again(tx, ctx, old, event)
            counts = {
                "dead": old.body["dead"] - len(found),
                "waiting": old.body["waiting"] + max(len(found), bool(event)),
            }
            changed = {"state": ON, "held_until": 0.0, "fails": 0, "failing_since": 0.0, "note": ""} | counts
            kept = tx.put(old.key, {**old.body, **changed}, rev=old.rev)
            tx.emit("flows.redeliver", kept.ref, again=max(len(found), bool(event)))
        return hook_view(kept)

    @verb(writes=("hook",), group="control")
    def ping(self, ctx: Context, hook: Annotated[Ref, "which one"]) -> HookView:
        """Send a hook an event of its own, to see that it arrives; `deliveries` shows what came of it.

        Example:
            falaj flows ping hook:fraud/ci
        """
        with self._ledger.write(ctx) as tx:
            old = need(tx, hook, "hook")
            kept = tx.put(old.key, {**old.body, "waiting": old.body["waiting"] + 1}, rev=old.rev)
            event = tx.emit("flows.ping", kept.ref, message="is anybody there?")
            queue(tx, kept, event, source_of(self._settings.installation), ctx.now())
        return hook_view(kept)

    def _check_place(self, url: str) -> None:
        if contains_secret(url):
            raise Invalid("the address holds a secret, and would be kept in the clear", "sign with --secret instead")
        if url.startswith(MAILTO):
            read_mailto(url)
            if not self._settings.mail.server:
                raise Invalid("this installation sends no mail", "whoever runs it can set mail.server")
        else:
            networks(self._settings.hooks.private)
            read_url(url, self._settings.hooks.private)

    def _again(self, tx: Writer, ctx: Context, hook: Record, id_: str) -> None:
        if not any(one["id"] == id_ for one in hook.body["recent"]):
            raise NotFound(f"no event {id_[:40]} was sent to {hook.ref.bare}", "falaj flows deliveries shows them")
        facts = self._ledger.tail(tenant=ctx.tenant, id=id_, limit=1)
        if not facts:
            raise NotFound(f"there is no event {id_[:40]}", "falaj flows deliveries shows them")
        queue(tx, hook, facts[0].event, source_of(self._settings.installation), ctx.now())


def queue(tx: Writer, hook: Record, event: Event, source: str, now: float) -> Record | None:
    """One event on its way to one hook; None when it is on its way already."""
    key = Key(hook.key.tenant, "delivery", hook.key.project, f"{hook.key.name}.{event.id}")
    if tx.key(key) is not None:
        return None
    body = {
        "id": event.id, "verb": event.verb, "subject": str(event.subject), "state": WAITING, "tries": 0, "due": 0.0,
        "at": now, "begun": now, "outcome": "", "event": told(event, source),
    }  # fmt: skip
    terms = delivery_terms(hook, WAITING)
    return tx.put(key, body, label=hook.label, zone=hook.zone, author=hook.author, terms=terms)


def deliveries_of(tx: Reader, hook: Record, state: str = "") -> list[Record]:
    """All that waits for a hook or was given up; bounded by what may wait."""
    return list(every(tx, "delivery", hook.key.tenant, delivery_terms(hook, state)))


def delivery_terms(hook: Record, state: str = "") -> dict[str, str]:
    """What the deliveries of a hook are found by."""
    return {"hook": f"{hook.key.project}/{hook.key.name}", **({"state": state} if state else {})}


def hook_view(record: Record) -> HookView:
    """A hook as its people see it."""
    body, wanted = record.body, trigger_in(record.body)
    return HookView(
        record.ref.bare, body["url"], wanted.events, wanted.subject, wanted.where, body["who"]["id"], state_of(body),
        body["waiting"], body["sent"], body["dead"], body["last"], body["last_at"], body["note"],
        body["secret"],
    )  # fmt: skip


def state_of(body: Mapping[str, Any]) -> str:
    """How a hook does, in a word."""
    if body["state"] == OFF:
        return OFF
    return FULL if body["waiting"] >= MOST_WAITING else FAILING if body["fails"] else ON


def delivery_view(body: Mapping[str, Any]) -> DeliveryView:
    """One event on its way."""
    return DeliveryView(
        body["id"], body["verb"], body["subject"], body["state"], body["tries"], body["at"], body["outcome"],
        body.get("due", 0.0),
    )  # fmt: skip

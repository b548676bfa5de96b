"""Triggers: events that begin flows. What matches is decided here, purely; listening.py acts on it."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any

from falaj.core.context import Context
from falaj.core.errors import Conflict, Invalid, NotFound, QuotaExceeded
from falaj.core.event import Event, new_id
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.flows.asks import Trigger, TriggerView
from falaj.flows.cloudevents import INNER
from falaj.flows.owners import Shared
from falaj.govern.secrets import contains_secret
from falaj.jobs.attempts import who_of
from falaj.store.ledger import Reader
from falaj.store.records import Record

OWN = ("secrets.resolve", "flows.hear", "flows.heard", "flows.queue", "flows.deliver", "flows.refuse", "guard.deny")
"""What listening itself leaves in the log is heard by nobody: it would never end."""
MOST_PARAMS, MOST_TEXT, MOST_COOL_S = 64, 4096, 30 * 86_400.0
MOST_EACH = 500
"""Triggers, schedules, hooks of one tenant."""
MOST_DEPTH = 8
"""A run that was begun by an event of a run that was begun by an event …: so often and no further."""
_PATTERN = re.compile(r"[a-z*?][a-z0-9_*?-]*(\.[a-z0-9_*?-]+)?")
_FIELD = re.compile(r"\{([a-z_][a-z0-9_.]*)\}")


class Triggers(Shared):
    """Events that begin flows."""

    @verb(writes=("flow",))
    def on(
        self,
        ctx: Context,
        flow: Annotated[Ref, "what is run, for example flow:fraud/retrain"],
        event: Annotated[tuple[str, ...], "verbs of events, with * and ?: catalog.publish, flows.knock"],
        subject: Annotated[str, "what the event must be about: 'dataset:fraud/*'"] = "*",
        where: Annotated[
            dict[str, str] | None, "what fields of the event must be like, or not like: state=succeeded, unchanged=!1"
        ] = None,
        params: Annotated[dict[str, Any] | None, "what the flow is given; {subject} and {field} are filled in"] = None,
        name: Annotated[str, "of the trigger; the flow's when left out"] = "",
        cool_s: Annotated[float, "after a start, events are passed over for so long"] = 0.0,
    ) -> TriggerView:
        """Begin a flow whenever something happens, in your name and with the rights you have then.

        You hear only of things that you may see. In params, {subject}, {project}, {name}, {version}, {verb}, {event}
        and {at} are of the event, and any field of its body stands by its own name. One event begins one run, however
        often it is read.

        Example:
            falaj flows on flow:fraud/retrain --event catalog.publish --subject 'dataset:*' --params data={subject}
        """
        trigger = checked(Trigger(tuple(event), subject, where or {}))
        if not 0.0 <= cool_s <= MOST_COOL_S:
            raise Invalid(f"a pause of {cool_s} s", f"0 to {MOST_COOL_S:.0f}")
        with self._ledger.write(ctx) as tx:
            key = begins(tx, flow, "trigger", name)
            old = tx.get(key)
            body = {
                "id": new_id(), "who": who_of(ctx), "flow": str(flow), "events": list(trigger.events),
                "subject": subject, "where": dict(trigger.where), "params": checked_params(params), "cool_s": cool_s,
                "started": 0, "last_at": 0.0, "heard": self._ledger.store.end(), "note": "",
            }  # fmt: skip
            kept = tx.put(key, body, rev=old.rev if old else None, terms={"live": "1"})
            tx.emit("flows.on", kept.ref, flow=str(flow), events=",".join(trigger.events), about=subject)
        return trigger_view(kept)

    @verb(writes=("trigger",))
    def off(self, ctx: Context, trigger: Annotated[Ref, "which one, for example trigger:fraud/retrain"]) -> TriggerView:
        """Take a trigger away. Runs that it began go on.

        Example:
            falaj flows off trigger:fraud/retrain
        """
        with self._ledger.write(ctx) as tx:
            old = need(tx, trigger, "trigger")
            tx.delete(old.key, old.rev)
            tx.emit("flows.off", old.ref, flow=old.body["flow"])
        return trigger_view(old)

    @verb()
    def triggers(self, ctx: Context, project: Annotated[str, "of one project only"] = "") -> tuple[TriggerView, ...]:
        """List the triggers you may see, with what they began.

        Example:
            falaj flows triggers --project fraud
        """
        with self._ledger.read(ctx) as tx:
            page = tx.find("trigger", project=project, cells=ctx.cells("trigger"), limit=1000)
        return tuple(map(trigger_view, page.records))

    @verb(often=True)
    def hear(self, ctx: Context, kind: Annotated[str, "of things, for example dataset"]) -> tuple[str, ...]:
        """Say of which things of a kind you may hear; what listens in your name asks this.

        Example:
            falaj flows hear dataset
        """
        return tuple(sorted(ctx.cells(kind)))


def checked(trigger: Trigger) -> Trigger:
    """The same, or Invalid: what can be listened for."""
    if not 0 < len(trigger.events) <= 32:
        raise Invalid(f"{len(trigger.events)} kinds of events", "1 to 32: --event catalog.publish")
    for one in trigger.events:
        if len(one) > 80 or not _PATTERN.fullmatch(one):
            raise Invalid(f"{one[:80]!r} is no verb of events", "for example catalog.publish or catalog.*")
    texts = (trigger.subject, *trigger.where, *trigger.where.values())
    if len(trigger.where) > 16 or any(len(text) > 300 for text in texts):
        raise Invalid("what is listened for is too long", "at most 16 fields, of 300 letters each")
    return trigger


def checked_params(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """The same, or Invalid: small, and no secrets."""
    given = dict(params or {})
    if len(given) > MOST_PARAMS or any(len(str(value)) > MOST_TEXT for value in given.values()):
        raise Invalid("too many parameters, or too long", f"at most {MOST_PARAMS}, of {MOST_TEXT} letters each")
    bad = next((name for name, value in given.items() if contains_secret(f"{name}={value}")), None)
    if bad is not None:
        raise Invalid(f"{bad} looks like a secret, and would be kept in the clear", "flows take secrets by reference")
    return given


def begins(tx: Reader, flow: Ref, kind: str, name: str) -> Ref:
    """What the thing is called that begins a flow; that name may be in use for the same flow only."""
    if flow.kind != "flow":
        raise Invalid(f"{flow} names no flow", "for example flow:fraud/retrain", flow)
    if tx.get(flow.bare) is None:
        raise NotFound(f"there is no {flow.bare}", "save it first: falaj flows save FILE", flow)
    key = Ref(kind, flow.project, name or flow.name)
    old = tx.get(key)
    if old is None:
        room_for(tx, kind)
    if old is not None and Ref.parse(old.body["flow"]).bare != flow.bare:
        raise Conflict(f"{key} begins {old.body['flow']}", "choose another --name", key)
    return key


def room_for(tx: Reader, kind: str) -> None:
    """QuotaExceeded when a tenant has as many as one may have: each looks at every event."""
    if len(tx.find(kind, limit=MOST_EACH).records) >= MOST_EACH:
        raise QuotaExceeded(f"there are {MOST_EACH} of the kind {kind} already", "take away what is not needed")


def need(tx: Reader, ref: Ref, kind: str) -> Record:
    """The record, or what is wrong with the name."""
    if ref.kind != kind:
        raise Invalid(f"{ref} names no {kind}", f"for example {kind}:fraud/nightly", ref)
    return tx.need(ref.bare)


def matches(wanted: Trigger, event: Event) -> bool:
    """True when an event is one that is listened for."""
    if event.verb in OWN or not any(fnmatchcase(event.verb, one) for one in wanted.events):
        return False
    about = (str(event.subject), str(event.subject.bare))
    if not any(fnmatchcase(text, wanted.subject) for text in about):
        return False
    return all(_like(event.body.get(name), like) for name, like in wanted.where.items())


def filled(params: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with what is known put in; one that is nothing but a field keeps the field's type."""

    def value(name: str) -> Any:
        if name not in known:
            raise Invalid(f"there is no {name} to fill in", f"there are: {', '.join(sorted(known))[:300]}")
        return known[name]

    def fill(text: str) -> Any:
        whole = _FIELD.fullmatch(text)
        return value(whole[1]) if whole else _FIELD.sub(lambda found: _text(value(found[1])), text)

    return {name: fill(given) if isinstance(given, str) else given for name, given in params.items()}


def known_of(event: Event) -> dict[str, Any]:
    """What parameters may take from an event."""
    subject = event.subject
    body = {name: value for name, value in event.body.items() if name not in INNER}
    return {
        **body, "subject": str(subject), "project": subject.project, "name": subject.name,
        "version": subject.version, "verb": event.verb, "event": event.id, "at": event.at,
    }  # fmt: skip


def depth_of(cause: str) -> int:
    """How many runs, each begun by an event of the one before, stand behind a cause."""
    tail = cause.rpartition("~")[2]
    return int(tail) if "~" in cause and tail.isdigit() and len(tail) < 4 else 0


def trigger_in(body: Mapping[str, Any]) -> Trigger:
    """What a record listens for."""
    return Trigger(tuple(body["events"]), body["subject"], body["where"])


def trigger_view(record: Record) -> TriggerView:
    """A trigger as its people see it."""
    body, wanted = record.body, trigger_in(record.body)
    return TriggerView(
        record.ref.bare, Ref.parse(body["flow"]), wanted.events, wanted.subject, wanted.where, body["params"],
        body["cool_s"], body["who"]["id"], body["started"], body["last_at"], body["note"],
    )  # fmt: skip


def _like(value: object, like: str) -> bool:
    if like.startswith("!"):
        return not _like(value, like[1:])
    return value is not None and fnmatchcase(_text(value), like)


def _text(value: object) -> str:
    return format(value, "g") if isinstance(value, float) else str(value)

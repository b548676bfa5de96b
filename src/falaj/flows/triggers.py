"""Triggers: events that begin flows. What matches is decided here, purely; listening.py acts on it."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Invalid, NotFound, QuotaExceeded
from falaj.core.event import Event, generate_id
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.flows.cloudevents import INTERNAL_FIELDS
from falaj.flows.owner_visibility import FlowServiceBase
from falaj.flows.trigger_records import EventFilter, TriggerView
from falaj.govern.secret_service import looks_like_secret
from falaj.jobs.attempts import to_submitter
from falaj.store.ledger import LedgerReader
from falaj.store.records import LedgerRecord

IGNORED_VERBS = (
    "secrets.resolve",
    "flows.hear",
    "flows.heard",
    "flows.queue",
    "flows.deliver",
    "flows.refuse",
    "guard.deny",
)
"""What listening itself leaves in the log is heard by nobody: it would never end."""
MAX_PARAMETERS, MAX_TEXT_CHARS, MAX_COOL_DOWN_S = 64, 4096, 30 * 86_400.0
MAX_PER_KIND = 500
"""Triggers, schedules, hooks of one tenant."""
MAX_CHAIN_DEPTH = 8
"""A run that was begun by an event of a run that was begun by an event …: so often and no further."""
_VERB_PATTERN = re.compile(r"[a-z*?][a-z0-9_*?-]*(\.[a-z0-9_*?-]+)?")
_FIELD_PATTERN = re.compile(r"\{([a-z_][a-z0-9_.]*)\}")


class TriggerOperations(FlowServiceBase):
    """Events that begin flows."""

    @operation(writes=("flow",))
    def on(
        self,
        ctx: CallContext,
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
        event_filter = check_filter(EventFilter(tuple(event), subject, where or {}))
        if not 0.0 <= cool_s <= MAX_COOL_DOWN_S:
            raise Invalid(f"a pause of {cool_s} s", f"0 to {MAX_COOL_DOWN_S:.0f}")
        with self._ledger.write(ctx) as tx:
            key = make_start_ref(tx, flow, "trigger", name)
            old_record = tx.get(key)
            body = {
                "id": generate_id(),
                "who": to_submitter(ctx),
                "flow": str(flow),
                "events": list(event_filter.events),
                "subject": subject,
                "where": dict(event_filter.where),
                "params": check_parameters(params),
                "cool_s": cool_s,
                "started": 0,
                "last_at": 0.0,
                "heard": self._ledger.store.end(),
                "note": "",
            }
            saved = tx.put(key, body, rev=old_record.rev if old_record else None, terms={"live": "1"})
            tx.emit("flows.on", saved.ref, flow=str(flow), events=",".join(event_filter.events), about=subject)
        return make_trigger_view(saved)

    @operation(writes=("trigger",))
    def off(
        self, ctx: CallContext, trigger: Annotated[Ref, "which one, for example trigger:fraud/retrain"]
    ) -> TriggerView:
        """Take a trigger away. Runs that it began go on.

        Example:
            falaj flows off trigger:fraud/retrain
        """
        with self._ledger.write(ctx) as tx:
            old = require_record(tx, trigger, "trigger")
            tx.delete(old.key, old.rev)
            tx.emit("flows.off", old.ref, flow=old.body["flow"])
        return make_trigger_view(old)

    @operation()
    def triggers(
        self, ctx: CallContext, project: Annotated[str, "of one project only"] = ""
    ) -> tuple[TriggerView, ...]:
        """List the triggers you may see, with what they began.

        Example:
            falaj flows triggers --project fraud
        """
        with self._ledger.read(ctx) as tx:
            page = tx.find("trigger", project=project, scopes=ctx.cells("trigger"), limit=1000)
        return tuple(map(make_trigger_view, page.records))

    @operation(is_high_rate=True)
    def hear(self, ctx: CallContext, kind: Annotated[str, "of things, for example dataset"]) -> tuple[str, ...]:
        """Say of which things of a kind you may hear; what listens in your name asks this.

        Example:
            falaj flows hear dataset
        """
        return tuple(sorted(ctx.cells(kind)))


def check_filter(event_filter: EventFilter) -> EventFilter:
    """The same, or Invalid: what can be listened for."""
    if not 0 < len(event_filter.events) <= 32:
        raise Invalid(f"{len(event_filter.events)} kinds of events", "1 to 32: --event catalog.publish")
    for verb_pattern in event_filter.events:
        if len(verb_pattern) > 80 or not _VERB_PATTERN.fullmatch(verb_pattern):
            raise Invalid(f"{verb_pattern[:80]!r} is no verb of events", "for example catalog.publish or catalog.*")
    texts = (event_filter.subject, *event_filter.where, *event_filter.where.values())
    if len(event_filter.where) > 16 or any(len(text) > 300 for text in texts):
        raise Invalid("what is listened for is too long", "at most 16 fields, of 300 letters each")
    return event_filter


def check_parameters(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """The same, or Invalid: small, and no secrets."""
    parameters = dict(params or {})
    if len(parameters) > MAX_PARAMETERS or any(len(str(value)) > MAX_TEXT_CHARS for value in parameters.values()):
        raise Invalid("too many parameters, or too long", f"at most {MAX_PARAMETERS}, of {MAX_TEXT_CHARS} letters each")
    secret_name = next((name for name, value in parameters.items() if looks_like_secret(f"{name}={value}")), None)
    if secret_name is not None:
        raise Invalid(
            f"{secret_name} looks like a secret, and would be kept in the clear", "flows take secrets by reference"
        )
    return parameters


def make_start_ref(tx: LedgerReader, flow: Ref, kind: str, name: str) -> Ref:
    """What the thing is called that begins a flow; that name may be in use for the same flow only."""
    if flow.kind != "flow":
        raise Invalid(f"{flow} names no flow", "for example flow:fraud/retrain", flow)
    if tx.get(flow.bare) is None:
        raise NotFound(f"there is no {flow.bare}", "save it first: falaj flows save FILE", flow)
    key = Ref(kind, flow.project, name or flow.name)
    old = tx.get(key)
    if old is None:
        check_quota(tx, kind)
    if old is not None and Ref.parse(old.body["flow"]).bare != flow.bare:
        raise Conflict(f"{key} begins {old.body['flow']}", "choose another --name", key)
    return key


def check_quota(tx: LedgerReader, kind: str) -> None:
    """QuotaExceeded when a tenant has as many as one may have: each looks at every event."""
    if len(tx.find(kind, limit=MAX_PER_KIND).records) >= MAX_PER_KIND:
        raise QuotaExceeded(f"there are {MAX_PER_KIND} of the kind {kind} already", "take away what is not needed")


def require_record(tx: LedgerReader, ref: Ref, kind: str) -> LedgerRecord:
    """The record, or what is wrong with the name."""
    if ref.kind != kind:
        raise Invalid(f"{ref} names no {kind}", f"for example {kind}:fraud/nightly", ref)
    return tx.need(ref.bare)


def matches_event(event_filter: EventFilter, event: Event) -> bool:
    """True when an event is one that is listened for."""
    if event.verb in IGNORED_VERBS or not any(
        fnmatchcase(event.verb, verb_pattern) for verb_pattern in event_filter.events
    ):
        return False
    subject_texts = (str(event.subject), str(event.subject.bare))
    if not any(fnmatchcase(text, event_filter.subject) for text in subject_texts):
        return False
    return all(
        _matches_pattern(event.body.get(name), value_pattern) for name, value_pattern in event_filter.where.items()
    )


def fill_parameters(params: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with what is known put in; one that is nothing but a field keeps the field's type."""

    def get_field(name: str) -> Any:
        if name not in fields:
            raise Invalid(f"there is no {name} to fill in", f"there are: {', '.join(sorted(fields))[:300]}")
        return fields[name]

    def fill_template(text: str) -> Any:
        single_field = _FIELD_PATTERN.fullmatch(text)
        return (
            get_field(single_field[1])
            if single_field
            else _FIELD_PATTERN.sub(lambda field_match: _to_text(get_field(field_match[1])), text)
        )

    return {
        name: fill_template(template) if isinstance(template, str) else template for name, template in params.items()
    }


def make_event_fields(event: Event) -> dict[str, Any]:
    """What parameters may take from an event."""
    subject = event.subject
    body = {name: value for name, value in event.body.items() if name not in INTERNAL_FIELDS}
    return {
        **body,
        "subject": str(subject),
        "project": subject.project,
        "name": subject.name,
        "version": subject.version,
        "verb": event.verb,
        "event": event.id,
        "at": event.at,
    }


def get_chain_depth(cause: str) -> int:
    """How many runs, each begun by an event of the one before, stand behind a cause."""
    depth_text = cause.rpartition("~")[2]
    return int(depth_text) if "~" in cause and depth_text.isdigit() and len(depth_text) < 4 else 0


def read_filter(body: Mapping[str, Any]) -> EventFilter:
    """What a record listens for."""
    return EventFilter(tuple(body["events"]), body["subject"], body["where"])


def make_trigger_view(record: LedgerRecord) -> TriggerView:
    """A trigger as its people see it."""
    body, event_filter = record.body, read_filter(record.body)
    return TriggerView(
        record.ref.bare,
        Ref.parse(body["flow"]),
        event_filter.events,
        event_filter.subject,
        event_filter.where,
        body["params"],
        body["cool_s"],
        body["who"]["id"],
        body["started"],
        body["last_at"],
        body["note"],
    )


def _matches_pattern(value: object, pattern: str) -> bool:
    if pattern.startswith("!"):
        return not _matches_pattern(value, pattern[1:])
    return value is not None and fnmatchcase(_to_text(value), pattern)


def _to_text(value: object) -> str:
    return format(value, "g") if isinstance(value, float) else str(value)

"""What begins flows and who is told: schedules, triggers, hooks with what was sent to them, knocks."""

from collections.abc import Mapping, Sequence
from typing import Any

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page, href
from falaj.console.parts import Column, Row
from falaj.console.view import View
from falaj.core.errors import NotFound
from falaj.core.ref import Ref
from falaj.flows.asks import DeliveryView, HookView, KnockView, ScheduleView, TriggerView
from falaj.flows.cron import read_cron, read_zone
from falaj.flows.hooks import DEAD, WAITING

COMING = 5
SOME = Ref("flow", "fraud", "retrain")
"""The flow of examples, where none is meant."""


def schedules(view: View, found: Sequence[ScheduleView], flow: Ref = SOME) -> Html:
    """Clocks, with when each comes next, in Gulf time."""
    if not found:
        line = f"falaj flows schedule {flow} '30 3 * * sun-thu' --zone Asia/Dubai"
        return parts.empty(view, view.t("flows.no_schedules"), view.t("flows.no_schedules_hint"), line)
    rows = [
        Row((parts.ref(view, one.ref, short=True), parts.ref(view, one.flow, short=True), _cron(one),
             view.when(one.next_at), view.ago(one.last_at), view.number(one.started)), id=str(one.ref))
        for one in found
    ]  # fmt: skip
    heads = (view.t("console.name"), view.t("flows.flow"), view.t("console.when"), view.t("flows.next"),
             view.t("flows.last"), Column(view.t("flows.started"), "n"))  # fmt: skip
    return parts.table(view, heads, rows, view.t("flows.schedules"))


def _cron(one: ScheduleView) -> Html:
    return h.code(f"{one.cron}  {one.zone}", dir="ltr")


def triggers(view: View, found: Sequence[TriggerView], flow: Ref = SOME) -> Html:
    """Events that begin flows."""
    if not found:
        line = f"falaj flows on {flow} --event catalog.publish --subject 'dataset:{flow.project}/*'"
        return parts.empty(view, view.t("flows.no_triggers"), view.t("flows.no_triggers_hint"), line)
    rows = [
        Row((parts.ref(view, one.ref, short=True), parts.ref(view, one.flow, short=True), _events(one.events),
             h.code(one.subject, dir="ltr"), view.ago(one.last_at), view.number(one.started)), id=str(one.ref))
        for one in found
    ]  # fmt: skip
    heads = (view.t("console.name"), view.t("flows.flow"), view.t("flows.events"), view.t("flows.about"),
             view.t("flows.last"), Column(view.t("flows.started"), "n"))  # fmt: skip
    return parts.table(view, heads, rows, view.t("flows.triggers"))


def _events(events: Sequence[str]) -> Html:
    return join([h.code(one, dir="ltr", class_="tag") for one in events])


def hooks(view: View, found: Sequence[HookView]) -> Html:
    """Who is told of events, and how that goes."""
    if not found:
        line = "falaj flows hook hook:fraud/ci https://ci.example/falaj --event catalog.point"
        return parts.empty(view, view.t("flows.no_hooks"), view.t("flows.no_hooks_hint"), line)
    rows = [
        Row((parts.ref(view, one.ref, short=True), parts.badge(view, one.state), h.code(one.url, dir="ltr"),
             _events(one.events), view.number(one.sent), view.number(one.waiting), view.number(one.dead),
             h.span(one.last, dir="auto")), id=str(one.ref))
        for one in found
    ]  # fmt: skip
    heads = (view.t("console.name"), view.t("console.state"), view.t("flows.to"), view.t("flows.events"),
             Column(view.t("flows.sent"), "n"), Column(view.t("flows.waiting"), "n"),
             Column(view.t("flows.dead"), "n"), view.t("flows.last"))  # fmt: skip
    return parts.table(view, heads, rows, view.t("flows.hooks"))


def knocks(view: View, found: Sequence[KnockView]) -> Html:
    """Ways in for the events of others."""
    if not found:
        line = "falaj flows listen knock:fraud/github --style github --take branch=ref"
        return parts.empty(view, view.t("flows.no_knocks"), view.t("flows.no_knocks_hint"), line)
    rows = [
        Row((parts.ref(view, one.ref, short=True), h.bdi(one.style), h.code(one.path, dir="ltr"),
             view.number(one.heard), view.ago(one.last_at)), id=str(one.ref))
        for one in found
    ]  # fmt: skip
    heads = (view.t("console.name"), view.t("flows.style"), view.t("flows.path"), Column(view.t("flows.heard"), "n"),
             view.t("flows.last"))  # fmt: skip
    return parts.table(view, heads, rows, view.t("flows.knocks"))


def schedule(view: View, ref: Ref) -> Page:
    """One clock: its next moments."""
    one: ScheduleView = _found(view.here.flows.schedules(project=ref.project), ref)
    body = join(
        h.div(parts.action(view, "flows", "unschedule", {"schedule": ref}, view.t("flows.stop_clock"), danger=True,
                           confirm=view.t("flows.stop_clock_sure"), back=href(one.flow)), class_="actions"),
        parts.card(view.t("console.overview"), parts.facts([
            (view.t("flows.flow"), parts.ref(view, one.flow)), (view.t("console.when"), _cron(one)),
            (view.t("flows.catch_up"), view.t.of("flows.catching", one.catch_up)),
            (view.t("console.owner"), h.bdi(one.owner)), (view.t("flows.last"), view.when(one.last_at)),
            (view.t("flows.started"), view.number(one.started)), *_params(one.params),
            (view.t("console.note"), h.span(one.note, dir="auto") if one.note else ""),
        ])),
        parts.card(view.t("flows.coming"), h.ol([h.li(view.when(at)) for at in coming(one)])),
    )  # fmt: skip
    return Page(h.bdi(ref.name), body, live=("flows",))


def coming(one: ScheduleView) -> list[float]:
    """The next moments of a clock."""
    clock, zone, found = read_cron(one.cron), read_zone(one.zone), [one.next_at]
    while len(found) < COMING and (after := clock.after(found[-1], zone)) is not None:
        found.append(after)
    return found


def trigger(view: View, ref: Ref) -> Page:
    """One trigger."""
    one: TriggerView = _found(view.here.flows.triggers(project=ref.project), ref)
    body = join(
        h.div(parts.action(view, "flows", "off", {"trigger": ref}, view.t("flows.off"), danger=True,
                           confirm=view.t("flows.off_sure"), back=href(one.flow)), class_="actions"),
        parts.card(view.t("console.overview"), parts.facts([
            (view.t("flows.flow"), parts.ref(view, one.flow)), (view.t("flows.events"), _events(one.events)),
            (view.t("flows.about"), h.code(one.subject, dir="ltr")),
            (view.t("flows.pause"), view.duration(one.cool_s) if one.cool_s else ""),
            (view.t("console.owner"), h.bdi(one.owner)), (view.t("flows.last"), view.when(one.last_at)),
            (view.t("flows.started"), view.number(one.started)), *_params(one.where), *_params(one.params),
            (view.t("console.note"), h.span(one.note, dir="auto") if one.note else ""),
        ])),
    )  # fmt: skip
    return Page(h.bdi(ref.name), body, live=("flows",))


def hook(view: View, ref: Ref) -> Page:
    """One hook: what was sent, what waits, what was given up."""
    one: HookView = _found(view.here.flows.hooks(project=ref.project), ref)
    t = view.t
    body = join(
        h.div(
            parts.badge(view, one.state),
            parts.action(view, "flows", "ping", {"hook": ref}, t("flows.ping")),
            parts.action(view, "flows", "redeliver", {"hook": ref}, t("flows.redeliver_all")) if one.dead else None,
            parts.action(view, "flows", "unhook", {"hook": ref}, t("console.delete"), danger=True,
                         confirm=t("flows.unhook_sure"), back="/console/flows?tab=hooks"), class_="actions"),
        parts.card(t("console.overview"), parts.facts([
            (t("flows.to"), h.code(one.url, dir="ltr")), (t("flows.events"), _events(one.events)),
            (t("flows.about"), h.code(one.subject, dir="ltr")), *_params(one.where),
            (t("console.owner"), h.bdi(one.owner)), (t("flows.sent"), view.number(one.sent)),
            (t("flows.waiting"), view.number(one.waiting)), (t("flows.dead"), view.number(one.dead)),
            (t("flows.signed"), h.code(one.reference, dir="ltr") if one.reference else ""),
            (t("console.note"), h.span(one.note, dir="auto") if one.note else ""),
        ])),
        parts.card(t("flows.deliveries"), view.part(lambda: _deliveries(view, ref)), id="deliveries"),
    )  # fmt: skip
    return Page(h.bdi(ref.name), body, live=("flows",))


def _deliveries(view: View, ref: Ref) -> Html:
    found: tuple[DeliveryView, ...] = view.here.flows.deliveries(ref, limit=50)
    if not found:
        return parts.empty(view, view.t("flows.no_deliveries"), view.t("flows.no_deliveries_hint"))
    rows = [
        Row((h.code(one.verb, dir="ltr"), h.bdi(one.subject), parts.badge(view, one.state), view.number(one.tries),
             view.ago(one.at), h.span(one.outcome, dir="auto"), _again(view, ref, one)), id=f"delivery-{one.id}")
        for one in found
    ]  # fmt: skip
    heads = (view.t("console.event"), view.t("flows.about"), view.t("console.state"),
             Column(view.t("flows.tries"), "n"), view.t("console.when"), view.t("flows.last"),
             view.t("console.actions"))  # fmt: skip
    return parts.table(view, heads, rows, view.t("flows.deliveries"))


def _again(view: View, ref: Ref, one: DeliveryView) -> Html:
    if one.state == WAITING:
        return EMPTY
    label = view.t("flows.redeliver") if one.state == DEAD else view.t("flows.send_again")
    return parts.action(view, "flows", "redeliver", {"hook": ref, "event": one.id}, label)


def knock(view: View, ref: Ref) -> Page:
    """One way in."""
    one: KnockView = _found(view.here.flows.knocks(project=ref.project), ref)
    body = join(
        h.div(parts.action(view, "flows", "mute", {"knock": ref}, view.t("flows.mute"), danger=True,
                           confirm=view.t("flows.mute_sure"), back="/console/flows?tab=hooks"), class_="actions"),
        parts.card(view.t("console.overview"), parts.facts([
            (view.t("flows.path"), parts.copyable(view, one.path)), (view.t("flows.style"), h.bdi(one.style)),
            (view.t("flows.signed"), h.code(one.secret, dir="ltr")), (view.t("console.owner"), h.bdi(one.owner)),
            (view.t("flows.heard"), view.number(one.heard)), (view.t("flows.last"), view.when(one.last_at)),
            *_params(one.take), (view.t("console.note"), h.span(one.note, dir="auto") if one.note else ""),
        ])),
    )  # fmt: skip
    return Page(h.bdi(ref.name), body, live=("flows",))


def _params(given: Mapping[str, Any]) -> list[tuple[Html, Html]]:
    return [(h.bdi(name), h.code(value, dir="ltr")) for name, value in given.items()]


def _found(every: Sequence[Any], ref: Ref) -> Any:
    for one in every:
        if one.ref.bare == ref.bare:
            return one
    raise NotFound(f"there is no {ref}, or you may not see it", "follow a link of the list", ref)

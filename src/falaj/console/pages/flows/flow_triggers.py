"""What begins flows and who is told: schedules, triggers, hooks with what was sent to them, knocks."""

from collections.abc import Mapping, Sequence
from typing import Any

from falaj.console import components
from falaj.console.components import ColumnHeader, TableRow
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page, build_resource_url
from falaj.console.page_view import PageView
from falaj.core.errors import NotFound
from falaj.core.ref import Ref
from falaj.flows.cron import load_time_zone, parse_cron
from falaj.flows.trigger_records import DeliveryView, HookView, InboundWebhookView, ScheduleView, TriggerView
from falaj.flows.webhooks import DELIVERY_DEAD, DELIVERY_WAITING

NUM_UPCOMING = 5
EXAMPLE_FLOW = Ref("flow", "fraud", "retrain")
"""The flow of examples, where none is meant."""


def render_schedule_table(view: PageView, definitions: Sequence[ScheduleView], flow: Ref = EXAMPLE_FLOW) -> Html:
    """Clocks, with when each comes next, in Gulf time."""
    if not definitions:
        command_line = f"falaj flows schedule {flow} '30 3 * * sun-thu' --zone Asia/Dubai"
        return components.empty_state(
            view, view.t("flows.no_schedules"), view.t("flows.no_schedules_hint"), command_line
        )
    rows = [
        TableRow(
            (
                components.ref_link(view, schedule_view.ref, short=True),
                components.ref_link(view, schedule_view.flow, short=True),
                _render_cron(schedule_view),
                view.when(schedule_view.next_at),
                view.ago(schedule_view.last_at),
                view.number(schedule_view.started),
            ),
            id=str(schedule_view.ref),
        )
        for schedule_view in definitions
    ]
    headers = (
        view.t("console.name"),
        view.t("flows.flow"),
        view.t("console.when"),
        view.t("flows.next"),
        view.t("flows.last"),
        ColumnHeader(view.t("flows.started"), "n"),
    )
    return components.table(view, headers, rows, view.t("flows.schedules"))


def _render_cron(schedule_view: ScheduleView) -> Html:
    return h.code(f"{schedule_view.cron}  {schedule_view.zone}", dir="ltr")


def render_trigger_table(view: PageView, definitions: Sequence[TriggerView], flow: Ref = EXAMPLE_FLOW) -> Html:
    """Events that begin flows."""
    if not definitions:
        command_line = f"falaj flows on {flow} --event catalog.publish --subject 'dataset:{flow.project}/*'"
        return components.empty_state(view, view.t("flows.no_triggers"), view.t("flows.no_triggers_hint"), command_line)
    rows = [
        TableRow(
            (
                components.ref_link(view, trigger_view.ref, short=True),
                components.ref_link(view, trigger_view.flow, short=True),
                _render_events(trigger_view.events),
                h.code(trigger_view.subject, dir="ltr"),
                view.ago(trigger_view.last_at),
                view.number(trigger_view.started),
            ),
            id=str(trigger_view.ref),
        )
        for trigger_view in definitions
    ]
    headers = (
        view.t("console.name"),
        view.t("flows.flow"),
        view.t("flows.events"),
        view.t("flows.about"),
        view.t("flows.last"),
        ColumnHeader(view.t("flows.started"), "n"),
    )
    return components.table(view, headers, rows, view.t("flows.triggers"))


def _render_events(events: Sequence[str]) -> Html:
    return join_html([h.code(event_name, dir="ltr", class_="tag") for event_name in events])


def render_webhook_table(view: PageView, definitions: Sequence[HookView]) -> Html:
    """Who is told of events, and how that goes."""
    if not definitions:
        command_line = "falaj flows hook hook:fraud/ci https://ci.example/falaj --event catalog.point"
        return components.empty_state(view, view.t("flows.no_hooks"), view.t("flows.no_hooks_hint"), command_line)
    rows = [
        TableRow(
            (
                components.ref_link(view, webhook.ref, short=True),
                components.badge(view, webhook.state),
                h.code(webhook.url, dir="ltr"),
                _render_events(webhook.events),
                view.number(webhook.sent),
                view.number(webhook.waiting),
                view.number(webhook.dead),
                h.span(webhook.last, dir="auto"),
            ),
            id=str(webhook.ref),
        )
        for webhook in definitions
    ]
    headers = (
        view.t("console.name"),
        view.t("console.state"),
        view.t("flows.to"),
        view.t("flows.events"),
        ColumnHeader(view.t("flows.sent"), "n"),
        ColumnHeader(view.t("flows.waiting"), "n"),
        ColumnHeader(view.t("flows.dead"), "n"),
        view.t("flows.last"),
    )
    return components.table(view, headers, rows, view.t("flows.hooks"))


def render_inbound_webhook_table(view: PageView, definitions: Sequence[InboundWebhookView]) -> Html:
    """Ways in for the events of others."""
    if not definitions:
        command_line = "falaj flows listen knock:fraud/github --style github --take branch=ref"
        return components.empty_state(view, view.t("flows.no_knocks"), view.t("flows.no_knocks_hint"), command_line)
    rows = [
        TableRow(
            (
                components.ref_link(view, inbound_webhook.ref, short=True),
                h.bdi(inbound_webhook.style),
                h.code(inbound_webhook.path, dir="ltr"),
                view.number(inbound_webhook.heard),
                view.ago(inbound_webhook.last_at),
            ),
            id=str(inbound_webhook.ref),
        )
        for inbound_webhook in definitions
    ]
    headers = (
        view.t("console.name"),
        view.t("flows.style"),
        view.t("flows.path"),
        ColumnHeader(view.t("flows.heard"), "n"),
        view.t("flows.last"),
    )
    return components.table(view, headers, rows, view.t("flows.knocks"))


def render_schedule_page(view: PageView, ref: Ref) -> Page:
    """One clock: its next moments."""
    schedule_view: ScheduleView = _require_listed(view.here.flows.schedules(project=ref.project), ref)
    body = join_html(
        h.div(
            components.action_button(
                view,
                "flows",
                "unschedule",
                {"schedule": ref},
                view.t("flows.stop_clock"),
                danger=True,
                confirm=view.t("flows.stop_clock_sure"),
                back=build_resource_url(schedule_view.flow),
            ),
            class_="actions",
        ),
        components.card(
            view.t("console.overview"),
            components.fact_list(
                [
                    (view.t("flows.flow"), components.ref_link(view, schedule_view.flow)),
                    (view.t("console.when"), _render_cron(schedule_view)),
                    (view.t("flows.catch_up"), view.t.of("flows.catching", schedule_view.catch_up)),
                    (view.t("console.owner"), h.bdi(schedule_view.owner)),
                    (view.t("flows.last"), view.when(schedule_view.last_at)),
                    (view.t("flows.started"), view.number(schedule_view.started)),
                    *_render_params(schedule_view.params),
                    (view.t("console.note"), h.span(schedule_view.note, dir="auto") if schedule_view.note else ""),
                ]
            ),
        ),
        components.card(
            view.t("flows.coming"),
            h.ol([h.li(view.when(timestamp)) for timestamp in list_upcoming_times(schedule_view)]),
        ),
    )
    return Page(h.bdi(ref.name), body, live=("flows",))


def list_upcoming_times(schedule_view: ScheduleView) -> list[float]:
    """The next moments of a clock."""
    clock, zone, times = parse_cron(schedule_view.cron), load_time_zone(schedule_view.zone), [schedule_view.next_at]
    while len(times) < NUM_UPCOMING and (next_time := clock.after(times[-1], zone)) is not None:
        times.append(next_time)
    return times


def render_trigger_page(view: PageView, ref: Ref) -> Page:
    """One trigger."""
    trigger_view: TriggerView = _require_listed(view.here.flows.triggers(project=ref.project), ref)
    body = join_html(
        h.div(
            components.action_button(
                view,
                "flows",
                "off",
                {"trigger": ref},
                view.t("flows.off"),
                danger=True,
                confirm=view.t("flows.off_sure"),
                back=build_resource_url(trigger_view.flow),
            ),
            class_="actions",
        ),
        components.card(
            view.t("console.overview"),
            components.fact_list(
                [
                    (view.t("flows.flow"), components.ref_link(view, trigger_view.flow)),
                    (view.t("flows.events"), _render_events(trigger_view.events)),
                    (view.t("flows.about"), h.code(trigger_view.subject, dir="ltr")),
                    (view.t("flows.pause"), view.duration(trigger_view.cool_s) if trigger_view.cool_s else ""),
                    (view.t("console.owner"), h.bdi(trigger_view.owner)),
                    (view.t("flows.last"), view.when(trigger_view.last_at)),
                    (view.t("flows.started"), view.number(trigger_view.started)),
                    *_render_params(trigger_view.where),
                    *_render_params(trigger_view.params),
                    (view.t("console.note"), h.span(trigger_view.note, dir="auto") if trigger_view.note else ""),
                ]
            ),
        ),
    )
    return Page(h.bdi(ref.name), body, live=("flows",))


def render_webhook_page(view: PageView, ref: Ref) -> Page:
    """One hook: what was sent, what waits, what was given up."""
    webhook: HookView = _require_listed(view.here.flows.hooks(project=ref.project), ref)
    t = view.t
    body = join_html(
        h.div(
            components.badge(view, webhook.state),
            components.action_button(view, "flows", "ping", {"hook": ref}, t("flows.ping")),
            components.action_button(view, "flows", "redeliver", {"hook": ref}, t("flows.redeliver_all"))
            if webhook.dead
            else None,
            components.action_button(
                view,
                "flows",
                "unhook",
                {"hook": ref},
                t("console.delete"),
                danger=True,
                confirm=t("flows.unhook_sure"),
                back="/console/flows?tab=hooks",
            ),
            class_="actions",
        ),
        components.card(
            t("console.overview"),
            components.fact_list(
                [
                    (t("flows.to"), h.code(webhook.url, dir="ltr")),
                    (t("flows.events"), _render_events(webhook.events)),
                    (t("flows.about"), h.code(webhook.subject, dir="ltr")),
                    *_render_params(webhook.where),
                    (t("console.owner"), h.bdi(webhook.owner)),
                    (t("flows.sent"), view.number(webhook.sent)),
                    (t("flows.waiting"), view.number(webhook.waiting)),
                    (t("flows.dead"), view.number(webhook.dead)),
                    (t("flows.signed"), h.code(webhook.reference, dir="ltr") if webhook.reference else ""),
                    (t("console.note"), h.span(webhook.note, dir="auto") if webhook.note else ""),
                ]
            ),
        ),
        components.card(t("flows.deliveries"), view.part(lambda: _render_deliveries(view, ref)), id="deliveries"),
    )
    return Page(h.bdi(ref.name), body, live=("flows",))


def _render_deliveries(view: PageView, ref: Ref) -> Html:
    deliveries: tuple[DeliveryView, ...] = view.here.flows.deliveries(ref, limit=50)
    if not deliveries:
        return components.empty_state(view, view.t("flows.no_deliveries"), view.t("flows.no_deliveries_hint"))
    rows = [
        TableRow(
            (
                h.code(delivery.verb, dir="ltr"),
                h.bdi(delivery.subject),
                components.badge(view, delivery.state),
                view.number(delivery.tries),
                view.ago(delivery.at),
                h.span(delivery.outcome, dir="auto"),
                _render_redeliver_button(view, ref, delivery),
            ),
            id=f"delivery-{delivery.id}",
        )
        for delivery in deliveries
    ]
    headers = (
        view.t("console.event"),
        view.t("flows.about"),
        view.t("console.state"),
        ColumnHeader(view.t("flows.tries"), "n"),
        view.t("console.when"),
        view.t("flows.last"),
        view.t("console.actions"),
    )
    return components.table(view, headers, rows, view.t("flows.deliveries"))


def _render_redeliver_button(view: PageView, ref: Ref, delivery: DeliveryView) -> Html:
    if delivery.state == DELIVERY_WAITING:
        return EMPTY
    label = view.t("flows.redeliver") if delivery.state == DELIVERY_DEAD else view.t("flows.send_again")
    return components.action_button(view, "flows", "redeliver", {"hook": ref, "event": delivery.id}, label)


def render_inbound_webhook_page(view: PageView, ref: Ref) -> Page:
    """One way in."""
    inbound_webhook: InboundWebhookView = _require_listed(view.here.flows.knocks(project=ref.project), ref)
    body = join_html(
        h.div(
            components.action_button(
                view,
                "flows",
                "mute",
                {"knock": ref},
                view.t("flows.mute"),
                danger=True,
                confirm=view.t("flows.mute_sure"),
                back="/console/flows?tab=hooks",
            ),
            class_="actions",
        ),
        components.card(
            view.t("console.overview"),
            components.fact_list(
                [
                    (view.t("flows.path"), components.copyable_code(view, inbound_webhook.path)),
                    (view.t("flows.style"), h.bdi(inbound_webhook.style)),
                    (view.t("flows.signed"), h.code(inbound_webhook.secret, dir="ltr")),
                    (view.t("console.owner"), h.bdi(inbound_webhook.owner)),
                    (view.t("flows.heard"), view.number(inbound_webhook.heard)),
                    (view.t("flows.last"), view.when(inbound_webhook.last_at)),
                    *_render_params(inbound_webhook.take),
                    (view.t("console.note"), h.span(inbound_webhook.note, dir="auto") if inbound_webhook.note else ""),
                ]
            ),
        ),
    )
    return Page(h.bdi(ref.name), body, live=("flows",))


def _render_params(params: Mapping[str, Any]) -> list[tuple[Html, Html]]:
    return [(h.bdi(name), h.code(value, dir="ltr")) for name, value in params.items()]


def _require_listed(definitions: Sequence[Any], ref: Ref) -> Any:
    for definition in definitions:
        if definition.ref.bare == ref.bare:
            return definition
    raise NotFound(f"there is no {ref}, or you may not see it", "follow a link of the list", ref)

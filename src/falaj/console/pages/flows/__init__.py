"""Flows: pipelines and their runs, and what begins them: clocks, events, other people's webhooks."""

from falaj.console.markup import h
from falaj.console.page import Page, PageRoute
from falaj.console.page_view import PageView
from falaj.console.pages.flows import flow_list, flow_page, flow_run_page, flow_triggers
from falaj.core.errors import NotFound
from falaj.core.ref import Ref

_RENDERER_BY_KIND = {
    "flow": flow_page.render_flow_page,
    "turn": flow_run_page.render_run_page,
    "hook": flow_triggers.render_webhook_page,
    "schedule": flow_triggers.render_schedule_page,
    "trigger": flow_triggers.render_trigger_page,
    "knock": flow_triggers.render_inbound_webhook_page,
}


def render_flow_resource_page(view: PageView) -> Page:
    """The page of one thing of this room, by its kind."""
    ref = Ref.parse(view.args["ref"])
    if ref.kind not in _RENDERER_BY_KIND:
        raise NotFound(f"{ref} is no thing of flows", "follow a link of the list of flows")
    return _RENDERER_BY_KIND[ref.kind](view, ref)


def render_flows_page(view: PageView) -> Page:
    """The list, part by part."""
    return Page(view.t("console.room.flows"), h.div(flow_list.render_list(view)), live=("flows",))


ROUTES = (
    PageRoute("flows", render_flows_page, walk=("flows", "flows?tab=runs", "flows?tab=clocks", "flows?tab=hooks")),
    PageRoute("flows/<ref>", render_flow_resource_page, walk=(
        "flows/flow:fraud/retrain", "flows/turn:fraud/retrain-1", "flows/turn:fraud/retrain-2",
        "flows/turn:fraud/retrain-3", "flows/schedule:fraud/weekly", "flows/trigger:fraud/new-rows",
    )),
)  # fmt: skip

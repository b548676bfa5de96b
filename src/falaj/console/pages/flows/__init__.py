"""Flows: pipelines and their runs, and what begins them: clocks, events, other people's webhooks."""

from falaj.console.markup import h
from falaj.console.page import Page, Route
from falaj.console.pages.flows import flow, listing, starts, turn
from falaj.console.view import View
from falaj.core.errors import NotFound
from falaj.core.ref import Ref

_PAGES = {
    "flow": flow.page,
    "turn": turn.page,
    "hook": starts.hook,
    "schedule": starts.schedule,
    "trigger": starts.trigger,
    "knock": starts.knock,
}


def thing(view: View) -> Page:
    """The page of one thing of this room, by its kind."""
    ref = Ref.parse(view.args["ref"])
    if ref.kind not in _PAGES:
        raise NotFound(f"{ref} is no thing of flows", "follow a link of the list of flows")
    return _PAGES[ref.kind](view, ref)


def flows(view: View) -> Page:
    """The list, part by part."""
    return Page(view.t("console.room.flows"), h.div(listing.body(view)), live=("flows",))


ROUTES = (
    Route("flows", flows, walk=("flows", "flows?tab=runs", "flows?tab=clocks", "flows?tab=hooks")),
    Route("flows/<ref>", thing, walk=(
        "flows/flow:fraud/retrain", "flows/turn:fraud/retrain-1", "flows/turn:fraud/retrain-2",
        "flows/turn:fraud/retrain-3", "flows/schedule:fraud/weekly", "flows/trigger:fraud/new-rows",
    )),
)  # fmt: skip

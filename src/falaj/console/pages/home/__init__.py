"""Home: how the platform is now, as its reader may see it; for a newcomer, the first steps."""

from falaj.console.markup import Html, h, join
from falaj.console.page import Page, Route, address
from falaj.console.pages.clusters.sandbox import sandbox_notices
from falaj.console.pages.home import cards, changes, newcomer, work
from falaj.console.pages.home.answers import Answers
from falaj.console.parts import card
from falaj.console.view import View

LIVE = ("jobs", "flows", "serve", "monitor", "approvals", "catalog", "track", "clusters")


def home(view: View) -> Page:
    """What runs, waits, serves, drifts, and what waits for the reader."""
    told = Answers(view.here)
    if newcomer.is_new(told):
        warnings = sandbox_notices(view, told.seen("clusters", "list") or ())
        return Page(view.t("home.welcome"), join(newcomer.steps(view), warnings), live=LIVE)
    body = join(
        sandbox_notices(view, told.seen("clusters", "list") or ()),
        h.div(cards.figures(view, told), class_="stats"),
        h.div(_board(view, told), class_="board"),
        changes.changed(view, told),
    )
    return Page(view.t("home.title"), body, live=LIVE, every_s=30.0, scripts=("plots.js",), wide=True)


def _board(view: View, told: Answers) -> list[Html]:
    """A card for each part of the story; those with nothing to tell come last."""
    t = view.t
    made = (
        ("approve", t("home.approve"), cards.approvals, t("home.none_approve"), address("approvals")),
        ("drifts", t("home.drifts"), cards.drifts, t("home.none_drift"), address("monitor")),
        ("waits", t("home.waits"), work.waits, t("home.none_wait"), address("jobs", {"state": "waiting"})),
        ("runs", t("home.runs"), work.runs, t("home.none_run"), address("jobs", {"state": "running"})),
        ("serves", t("home.serves"), cards.serves, t("home.none_serve"), address("serve")),
        ("flows", t("home.flows"), work.flows, t("home.none_flow"), address("flows")),
        ("use", t("home.use"), cards.use, t("home.none_cluster"), address("clusters")),
        ("mine", t("home.my_runs"), work.mine, t("home.none_mine"), address("track")),
    )
    full, calm = list[Html](), list[Html]()
    for key, title, make, nothing, more in made:
        body = view.part(lambda make=make: make(view, told))  # type: ignore[misc]
        shown = body or h.p(nothing, class_="soft")
        (full if body else calm).append(card(title, shown, id=key, more=more))
    return [*full, *calm]


ROUTES = (Route("", home, walk=("",)),)

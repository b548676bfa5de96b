"""Home: how the platform is now, as its reader may see it; for a newcomer, the first steps."""

from falaj.console.markup import h, join
from falaj.console.page import Page, Route
from falaj.console.pages.home import cards, changes, newcomer, work
from falaj.console.pages.home.answers import Answers
from falaj.console.view import View

LIVE = ("jobs", "flows", "serve", "monitor", "approvals", "catalog", "track", "clusters")


def home(view: View) -> Page:
    """What runs, waits, serves, drifts, and what waits for the reader."""
    told = Answers(view.here)
    if newcomer.is_new(told):
        return Page(view.t("home.welcome"), newcomer.steps(view), live=LIVE)
    body = join(
        h.div(cards.figures(view, told), class_="stats"),
        h.div(
            cards.mine_to_approve(view, told),
            cards.drifts(view, told),
            work.waits(view, told),
            work.runs(view, told),
            cards.serves(view, told),
            work.flows(view, told),
            cards.use(view, told),
            work.my_runs(view, told),
            class_="board",
        ),
        changes.changed(view, told),
    )
    return Page(view.t("home.title"), body, live=LIVE, every_s=30.0, scripts=("plots.js",), wide=True)


ROUTES = (Route("", home, walk=("",)),)

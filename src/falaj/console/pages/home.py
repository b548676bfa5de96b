"""Home: how the platform is now."""

from falaj.console.markup import h
from falaj.console.page import Page, Route
from falaj.console.view import View


def home(view: View) -> Page:
    """What runs, waits, serves, drifts, and what waits for the reader."""
    return Page(view.t("console.home"), h.p(view.t("console.home")))


ROUTES = (Route("", home, walk=("",)),)

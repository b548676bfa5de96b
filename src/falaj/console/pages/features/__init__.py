"""Features: entities, views and services; how fresh and sound they are, and who relies on them."""

from falaj.console.page import Page, Route
from falaj.console.pages.features import defined, listing, service
from falaj.console.pages.features import view as views
from falaj.console.view import View
from falaj.core.errors import NotFound
from falaj.core.ref import Ref

_PAGES = {"view": views.page, "service": service.page, "entity": defined.entity}


def thing(view: View) -> Page:
    """The page of one definition, by its kind."""
    ref = Ref.parse(view.args["ref"])
    if ref.kind not in _PAGES:
        raise NotFound(f"{ref} is no definition of features", "follow a link of the list of features")
    return _PAGES[ref.kind](view, ref)


ROUTES = (
    Route("features", listing.page, walk=("features", "features?tab=service", "features?tab=entity")),
    Route("features/<ref>", thing, walk=(
        "features/view:fraud/card-stats", "features/view:fraud/card-stats?tab=quality",
        "features/view:fraud/card-stats?tab=users", "features/view:fraud/card-spent", "features/service:fraud/scoring",
        "features/service:fraud/scoring?tab=skew", "features/entity:fraud/card",
    )),
)  # fmt: skip

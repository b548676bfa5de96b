"""Features: entities, views and services; how fresh and sound they are, and who relies on them."""

from falaj.console.page import Page, PageRoute
from falaj.console.page_view import PageView
from falaj.console.pages.features import definition_list, definition_parts, feature_service_page
from falaj.console.pages.features import feature_view_page as views
from falaj.core.errors import NotFound
from falaj.core.ref import Ref

_RENDERER_BY_KIND = {
    "view": views.render_feature_view_page,
    "service": feature_service_page.render_feature_service_page,
    "entity": definition_parts.render_entity_page,
}


def render_feature_page(view: PageView) -> Page:
    """The page of one definition, by its kind."""
    ref = Ref.parse(view.args["ref"])
    if ref.kind not in _RENDERER_BY_KIND:
        raise NotFound(f"{ref} is no definition of features", "follow a link of the list of features")
    return _RENDERER_BY_KIND[ref.kind](view, ref)


ROUTES = (
    PageRoute(
        "features",
        definition_list.render_definitions_page,
        walk=("features", "features?tab=service", "features?tab=entity"),
    ),
    PageRoute(
        "features/<ref>",
        render_feature_page,
        walk=(
            "features/view:fraud/card-stats",
            "features/view:fraud/card-stats?tab=quality",
            "features/view:fraud/card-stats?tab=users",
            "features/view:fraud/card-spent",
            "features/service:fraud/scoring",
            "features/service:fraud/scoring?tab=skew",
            "features/entity:fraud/card",
        ),
    ),
)

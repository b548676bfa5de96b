"""Zones: legal places on a map, laws as data, what may go where, and the grants that let it."""

from falaj.console.page import PageRoute, RouteResult
from falaj.console.page_view import PageView
from falaj.console.pages.zones.grant_pages import render_grant_page, render_grants_page
from falaj.console.pages.zones.legal_regimes import render_regime_page, render_regimes_page, render_residency_check_page
from falaj.console.pages.zones.zone_pages import render_zone_page, render_zones_page


def render_zone_resource_page(view: PageView) -> RouteResult:
    """A zone or a grant, by its name."""
    return render_grant_page(view) if view.args["ref"].startswith("grant:") else render_zone_page(view)


ROUTES: tuple[PageRoute, ...] = (
    PageRoute("zones", render_zones_page, ("zones",)),
    PageRoute(
        "zones/check",
        render_residency_check_page,
        ("zones/check", "zones/check?thing=dataset:fraud/transactions@v3&to=eu-west"),
    ),
    PageRoute("zones/grants", render_grants_page, ("zones/grants", "zones/grants?state=waiting")),
    PageRoute("zones/regimes", render_regimes_page, ("zones/regimes",)),
    PageRoute("zones/regimes/<name>", render_regime_page, ("zones/regimes/AE-PDPL", "zones/regimes/EU-GDPR")),
    PageRoute("zones/<ref>", render_zone_resource_page, ("zones/zone:house/ae-dubai", "zones/zone:house/eu-west")),
)

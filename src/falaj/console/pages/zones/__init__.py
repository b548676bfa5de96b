"""Zones: legal places on a map, laws as data, what may go where, and the grants that let it."""

from falaj.console.page import Made, Route
from falaj.console.pages.zones.grants import grant, grants
from falaj.console.pages.zones.law import check, regime, regimes
from falaj.console.pages.zones.places import zone, zones
from falaj.console.view import View


def thing(view: View) -> Made:
    """A zone or a grant, by its name."""
    return grant(view) if view.args["ref"].startswith("grant:") else zone(view)


ROUTES: tuple[Route, ...] = (
    Route("zones", zones, ("zones",)),
    Route("zones/check", check, ("zones/check", "zones/check?thing=dataset:fraud/transactions@v3&to=eu-west")),
    Route("zones/grants", grants, ("zones/grants", "zones/grants?state=waiting")),
    Route("zones/regimes", regimes, ("zones/regimes",)),
    Route("zones/regimes/<name>", regime, ("zones/regimes/AE-PDPL", "zones/regimes/EU-GDPR")),
    Route("zones/<ref>", thing, ("zones/zone:house/ae-dubai", "zones/zone:house/eu-west")),
)

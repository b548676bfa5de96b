"""Pages of endpoints."""

from falaj.console.page import Route
from falaj.console.pages.serve.endpoint import endpoint
from falaj.console.pages.serve.listing import endpoints

_ONE = "serve/endpoint:fraud/scorer"
ROUTES: tuple[Route, ...] = (
    Route("serve", endpoints, walk=("serve", "serve?project=nothing")),
    Route(
        "serve/<ref>",
        endpoint,
        walk=(
            _ONE,
            *(f"{_ONE}?tab={tab}" for tab in ("traffic", "try", "logs", "settings")),
            "serve/endpoint:fraud/old",
        ),
        takes=True,
    ),
)

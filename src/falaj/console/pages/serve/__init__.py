"""Pages of endpoints."""

from falaj.console.page import PageRoute
from falaj.console.pages.serve.endpoint_list import render_endpoints_page
from falaj.console.pages.serve.endpoint_page import render_endpoint_page

_ENDPOINT_PATH = "serve/endpoint:fraud/scorer"
ROUTES: tuple[PageRoute, ...] = (
    PageRoute("serve", render_endpoints_page, walk=("serve", "serve?project=nothing")),
    PageRoute(
        "serve/<ref>",
        render_endpoint_page,
        walk=(
            _ENDPOINT_PATH,
            *(f"{_ENDPOINT_PATH}?tab={tab}" for tab in ("traffic", "try", "logs", "settings")),
            "serve/endpoint:fraud/old",
        ),
        takes=True,
    ),
)

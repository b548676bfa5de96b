"""Pages of watches and incidents."""

from falaj.console.page import Page, Route
from falaj.console.pages.monitor.incident import incident, incidents
from falaj.console.pages.monitor.listing import watches
from falaj.console.pages.monitor.watch import watch
from falaj.console.view import View


def _one(view: View) -> Page:
    """A watch or an incident, by its name."""
    return incident(view) if view.args["ref"].startswith("incident:") else watch(view)


_WATCH = "monitor/watch:fraud/scorer"
ROUTES: tuple[Route, ...] = (
    Route("monitor", watches, walk=("monitor", "monitor?project=nothing")),
    Route("monitor/incidents", incidents, walk=("monitor/incidents", "monitor/incidents?state=resolved")),
    Route(
        "monitor/<ref>",
        _one,
        walk=(
            *(_WATCH if not tab else f"{_WATCH}?tab={tab}" for tab in ("", "drift", "service", "verdicts", "plan")),
            "monitor/incident:fraud/scorer-1",
        ),
    ),
)

"""Pages of watches and incidents."""

from falaj.console.page import Page, PageRoute
from falaj.console.page_view import PageView
from falaj.console.pages.monitor.incident_pages import render_incident_page, render_incidents_page
from falaj.console.pages.monitor.watch_list import render_watches_page
from falaj.console.pages.monitor.watch_page import render_watch_page


def render_monitor_resource_page(view: PageView) -> Page:
    """A watch or an incident, by its name."""
    return render_incident_page(view) if view.args["ref"].startswith("incident:") else render_watch_page(view)


_WATCH_PATH = "monitor/watch:fraud/scorer"
ROUTES: tuple[PageRoute, ...] = (
    PageRoute("monitor", render_watches_page, walk=("monitor", "monitor?project=nothing")),
    PageRoute(
        "monitor/incidents", render_incidents_page, walk=("monitor/incidents", "monitor/incidents?state=resolved")
    ),
    PageRoute(
        "monitor/<ref>",
        render_monitor_resource_page,
        walk=(
            *(
                _WATCH_PATH if not tab else f"{_WATCH_PATH}?tab={tab}"
                for tab in ("", "drift", "service", "verdicts", "plan")
            ),
            "monitor/incident:fraud/scorer-1",
        ),
    ),
)

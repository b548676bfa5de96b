"""Home: how the platform is now, as its reader may see it; for a newcomer, the first steps."""

from falaj.console.components import card
from falaj.console.markup import Html, h, join_html
from falaj.console.page import Page, PageRoute, build_url
from falaj.console.page_view import PageView
from falaj.console.pages.clusters.sandbox_notices import render_sandbox_notices
from falaj.console.pages.home import first_steps, overview_cards, own_work, recent_changes
from falaj.console.pages.home.answers import CachedAnswers

LIVE_SERVICES = ("jobs", "flows", "serve", "monitor", "approvals", "catalog", "track", "clusters")


def render_home_page(view: PageView) -> Page:
    """What runs, waits, serves, drifts, and what waits for the reader."""
    answers = CachedAnswers(view.here)
    if first_steps.is_newcomer(answers):
        warnings = render_sandbox_notices(view, answers.seen("clusters", "list") or ())
        return Page(
            view.t("home.welcome"), join_html(first_steps.render_first_steps(view), warnings), live=LIVE_SERVICES
        )
    body = join_html(
        render_sandbox_notices(view, answers.seen("clusters", "list") or ()),
        h.div(overview_cards.render_figures(view, answers), class_="stats"),
        h.div(_render_board(view, answers), class_="board"),
        recent_changes.render_changes(view, answers),
    )
    return Page(view.t("home.title"), body, live=LIVE_SERVICES, every_s=30.0, scripts=("plots.js",), wide=True)


def _render_board(view: PageView, answers: CachedAnswers) -> list[Html]:
    """A card for each part of the story; those with nothing to tell come last."""
    t = view.t
    card_specs = (
        ("approve", t("home.approve"), overview_cards.render_approvals, t("home.none_approve"), build_url("approvals")),
        ("drifts", t("home.drifts"), overview_cards.render_drifts, t("home.none_drift"), build_url("monitor")),
        (
            "waits",
            t("home.waits"),
            own_work.render_waiting_jobs,
            t("home.none_wait"),
            build_url("jobs", {"state": "waiting"}),
        ),
        (
            "runs",
            t("home.runs"),
            own_work.render_running_jobs,
            t("home.none_run"),
            build_url("jobs", {"state": "running"}),
        ),
        ("serves", t("home.serves"), overview_cards.render_endpoints, t("home.none_serve"), build_url("serve")),
        ("flows", t("home.flows"), own_work.render_flow_runs, t("home.none_flow"), build_url("flows")),
        ("use", t("home.use"), overview_cards.render_cluster_use, t("home.none_cluster"), build_url("clusters")),
        ("mine", t("home.my_runs"), own_work.render_own_runs, t("home.none_mine"), build_url("track")),
    )
    full_cards, empty_cards = list[Html](), list[Html]()
    for key, title, render, empty_text, section_url in card_specs:
        body = view.part(lambda render=render: render(view, answers))  # type: ignore[misc]
        card_body = body or h.p(empty_text, class_="soft")
        (full_cards if body else empty_cards).append(card(title, card_body, id=key, heading_link=section_url))
    return [*full_cards, *empty_cards]


ROUTES = (PageRoute("", render_home_page, walk=("",)),)

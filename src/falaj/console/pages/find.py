"""Search over everything: names that have the words in them, room by room, a few of each."""

from collections.abc import Callable, Iterable
from typing import Any

from falaj.console import components
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page, PageRoute, build_resource_url
from falaj.console.page_view import PageView
from falaj.core.errors import FalajError
from falaj.core.ref import Ref

_MAX_HITS_SHOWN, _CATALOG_LIMIT, _LIST_LIMIT = 8, 60, 200
SearchHit = tuple[Ref, str, str]
"""A thing, what else is known of it in a word, and its state."""


def render_search_page(view: PageView) -> Page:
    """What is called so, of every kind."""
    t, text = view.t, view.query("q").strip()[:100]
    search_form = components.filter_form(view, (components.FormField("q", t("find.what"), "search"),))
    if not text:
        return Page(
            t("console.search"), join_html(search_form, components.empty_state(view, t("find.ask"), t("find.ask_hint")))
        )
    groups = [_render_group(view, name, text, run_search) for name, run_search in SEARCHES]
    results = join_html(groups) or components.empty_state(view, t("find.nothing", text=text), t("find.nothing_hint"))
    return Page(
        t("console.search"),
        join_html(search_form, _render_exact_match(view, text), results and components.card_grid(results)),
    )


def _render_exact_match(view: PageView, text: str) -> Html:
    """A reference that somebody pasted leads straight to its page."""
    try:
        ref = Ref.parse(text)
    except FalajError:
        return EMPTY
    return h.p(view.t("find.go"), " ", components.ref_link(view, ref))


def _render_group(
    view: PageView, name: str, text: str, run_search: Callable[[PageView, str], Iterable[SearchHit]]
) -> Html:
    """The hits of one room; a room that the reader may not see has none."""
    try:
        hits = list(run_search(view, text))
    except FalajError:
        return EMPTY
    if not hits:
        return EMPTY
    rows = [
        h.li(
            h.a(h.bdi(get_hit_name(ref, description)), href=build_resource_url(ref), class_="ref"),
            " ",
            components.badge(view, state) if state else None,
            h.div(
                h.bdi(ref.project),
                f" · {description}" if description and description != get_hit_name(ref, description) else "",
                class_="soft small",
            ),
        )
        for ref, description, state in hits[:_MAX_HITS_SHOWN]
    ]
    more_note = (
        h.p(view.t("find.more", n=len(hits) - _MAX_HITS_SHOWN), class_="soft") if len(hits) > _MAX_HITS_SHOWN else None
    )
    return components.card(
        view.t.of("find.group", name), h.ul(rows, class_="plain-list"), more_note, id=f"found-{name}"
    )


def get_hit_name(ref: Ref, description: str) -> str:
    """What a hit is called: a run by its title, all else by its name."""
    return description if ref.kind == "run" and description else ref.name


def matches_text(text: str, *values: object) -> bool:
    """Whether every word that was typed is in what is known of a thing."""
    searched_text = " ".join(map(str, values)).casefold()
    return all(word in searched_text for word in text.casefold().split())


def _make_catalog_search(kind: str) -> Callable[[PageView, str], Iterable[SearchHit]]:
    def search_catalog(view: PageView, text: str) -> Iterable[SearchHit]:
        longest_word = max(text.split(), key=len)
        page = view.here.catalog.list(kind=kind, search=longest_word.rpartition("/")[2], limit=_CATALOG_LIMIT)
        return [
            (version.ref.bare, version.message[:60], "") for version in page.versions if matches_text(text, version.ref)
        ]

    return search_catalog


def _search_runs(view: PageView, text: str) -> Iterable[SearchHit]:
    escaped_text = text.replace("'", "").replace("%", "").replace("\\", "")
    page = view.here.track.list(where=f"attributes.run_name ILIKE '%{escaped_text}%'", limit=_MAX_HITS_SHOWN + 1)
    return [(run.ref, run.title, run.status) for run in page.runs]


def _search_experiments(view: PageView, text: str) -> Iterable[SearchHit]:
    page = view.here.track.experiments(limit=_LIST_LIMIT)
    return [
        (experiment.ref, experiment.title[:60], "")
        for experiment in page.experiments
        if matches_text(text, experiment.ref, experiment.title)
    ]


def _make_list_search(
    service_name: str, operation_name: str, items_field: str, **list_arguments: Any
) -> Callable[[PageView, str], Iterable[SearchHit]]:
    def search_list(view: PageView, text: str) -> Iterable[SearchHit]:
        list_result = getattr(getattr(view.here, service_name), operation_name)(**list_arguments)
        items = getattr(list_result, items_field) if items_field else list_result
        return [
            (item.ref.bare, str(getattr(item, "about", ""))[:60], str(getattr(item, "state", "")))
            for item in items
            if matches_text(text, item.ref, getattr(item, "about", ""))
        ]

    return search_list


SEARCHES: tuple[tuple[str, Callable[[PageView, str], Iterable[SearchHit]]], ...] = (
    ("dataset", _make_catalog_search("dataset")),
    ("model", _make_catalog_search("model")),
    ("code", _make_catalog_search("code")),
    ("view", _make_list_search("features", "list", "items", kind="view", limit=_LIST_LIMIT)),
    ("service", _make_list_search("features", "list", "items", kind="service", limit=_LIST_LIMIT)),
    ("experiment", _search_experiments),
    ("run", _search_runs),
    ("job", _make_list_search("jobs", "list", "jobs", limit=_LIST_LIMIT)),
    ("endpoint", _make_list_search("serve", "list", "endpoints", limit=_LIST_LIMIT)),
    ("flow", _make_list_search("flows", "list", "")),
)
ROUTES: tuple[PageRoute, ...] = (
    PageRoute("find", render_search_page, ("find", "find?q=scor", "find?q=zzz", "find?q=hostile")),
)

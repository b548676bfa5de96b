"""Frame: what stands around every page: the way to the rooms, the reader's choices, the same as a command."""

import re
from collections.abc import Sequence
from html import unescape

from falaj.console.assets import get_asset_url
from falaj.console.components import copyable_code, notice
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import ROOT_PATH, Page, build_url
from falaj.console.page_view import DisplayPreferences, PageView
from falaj.console.recorded_calls import RecordedCall
from falaj.console.words import LANGUAGES, Translator

NAVIGATION: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("", ("home",)),
    ("make", ("catalog", "features", "track", "sweeps", "jobs", "flows")),
    ("run", ("serve", "monitor")),
    ("share", ("queues", "clusters")),
    ("govern", ("approvals", "zones", "policy", "people", "keys", "audit")),
)
"""The navigation: groups of rooms."""
_MAX_SHOWN_CALLS = 12


def render_full_page(view: PageView, page: Page, flash_message: tuple[str, str] = ("", "")) -> Html:
    """The whole document."""
    t = view.t
    body = join_html(
        h.a(t("console.skip"), href="#main", class_="skip"),
        _render_header(view),
        h.div(_render_navigation(view), render_main(view, page, flash_message), class_="shell"),
    )
    # Whoever draws need not remember what makes a drawing answer.
    chart_scripts = ("plots.js",) if " data-plot=" in page.body else ()
    scripts = dict.fromkeys(("console.js", "live.js", *page.scripts, *chart_scripts))
    return render_document(t, view.look, f"{_to_plain_text(page.title)} · Falaj", body, tuple(scripts))


def render_main(view: PageView, page: Page, flash_message: tuple[str, str] = ("", "")) -> Html:
    """The part that changes from page to page, and that a live page fetches again."""
    kind, message = flash_message
    summary_text, _, detail_text = message.partition("\n")
    detail = h.p(view.english(detail_text), class_="soft") if detail_text else None
    flash_notice = h.div(h.p(h.bdi(summary_text)), detail, class_=f"notice {kind}", role="status") if kind else None
    page_head = h.div(_render_breadcrumbs(view, page), h.h1(page.title), class_="head")
    live_attributes = {"data_live": " ".join(page.live) or None, "data_every": page.every_s or None}
    width_class = "wide" if page.wide else None
    fence_notice = (
        notice("bad", view.t("console.fenced"), view.t("console.fenced_hint")) if view.here.house.fence.is_up else None
    )
    return h.main(
        fence_notice,
        flash_notice,
        page_head,
        page.body,
        _render_equivalent_calls(view),
        id="main",
        tabindex="-1",
        class_=width_class,
        **live_attributes,
    )


def render_document(
    t: Translator, preferences: DisplayPreferences, title: str, body: Html, scripts: Sequence[str]
) -> Html:
    """A document in the reader's language, direction and theme."""
    document_head = join_html(
        h.meta(charset="utf-8"),
        h.meta(name="viewport", content="width=device-width, initial-scale=1"),
        h.meta(name="color-scheme", content="light dark"),
        h.title(title),
        [h.link(rel="stylesheet", href=get_asset_url(name)) for name in ("tokens.css", "console.css", "plots.css")],
        h.link(rel="icon", href=get_asset_url("icon.svg"), type="image/svg+xml"),
        [h.script(src=get_asset_url(name), type="module") for name in scripts],
    )
    document_html = h.html(
        h.head(document_head),
        h.body(body),
        lang=t.lang,
        dir="rtl" if t.rtl else "ltr",
        data_theme=preferences.theme or None,
    )
    return Html(f"<!doctype html>{document_html}")


def _to_plain_text(title: str | Html) -> str:
    """A title as text: a window's name has no elements in it."""
    return unescape(re.sub("<[^>]*>", "", title)) if isinstance(title, Html) else title


def _render_header(view: PageView) -> Html:
    t = view.t
    menu_button = h.button(
        "☰",
        type="button",
        class_="menu quiet",
        aria_label=t("console.menu"),
        aria_controls="rooms",
        aria_expanded="false",
    )
    search_form = h.form(
        h.input(type="search", name="q", placeholder=t("console.find"), aria_label=t("console.find"), dir="auto"),
        method="get",
        action=build_url("find"),
        role="search",
        class_="find",
    )
    return h.header(
        menu_button,
        h.a(h.span("falaj", class_="mark"), href=ROOT_PATH, class_="brand"),
        search_form,
        render_user_menu(view),
        class_="top",
    )


def render_user_menu(view: PageView) -> Html:
    """Language, theme, purpose, and who is signed in."""
    t, preferences, return_field = view.t, view.look, h.input(type="hidden", name="back", value=view.link())
    other_language = next(lang for lang in LANGUAGES if lang != preferences.lang)
    language_form = h.form(
        return_field,
        h.button(LANGUAGES[other_language], name="lang", value=other_language, class_="quiet", lang=other_language),
        method="post",
        action=f"{ROOT_PATH}/look",
    )
    themes = [
        h.button(
            t.of("console.theme", name),
            name="theme",
            value=name,
            class_="quiet",
            aria_pressed="true" if preferences.theme == name.replace("system", "") else "false",
        )
        for name in ("system", "light", "dark")
    ]
    digits_button = (
        h.button(
            t("console.digits_latin") if preferences.indic else t("console.digits_indic"),
            class_="quiet",
            name="digits",
            value="latin" if preferences.indic else "indic",
        )
        if t.rtl
        else None
    )
    purpose_label = h.label(
        h.span(t("console.purpose")), h.input(name="purpose", value=preferences.purpose, dir="auto")
    )
    account_menu = h.details(
        h.summary(h.bdi(view.actor.id), class_="quiet button"),
        h.div(
            h.p(
                t("console.signed_in", tenant=view.actor.tenant, roles=", ".join(sorted(view.actor.roles))),
                class_="soft",
            ),
            h.form(return_field, h.div(themes, class_="row"), digits_button, method="post", action=f"{ROOT_PATH}/look"),
            h.form(
                return_field,
                purpose_label,
                h.button(t("console.keep"), class_="quiet"),
                method="post",
                action=f"{ROOT_PATH}/look",
            ),
            h.form(h.button(t("console.sign_out"), class_="quiet"), method="post", action=f"{ROOT_PATH}/sign-out"),
            class_="sheet",
        ),
        class_="person",
    )
    return h.div(language_form, account_menu, class_="choices")


def _render_navigation(view: PageView) -> Html:
    current_section = view.path.partition("/")[0] or "home"
    groups = [
        join_html(
            h.p(view.t.of("console.group", group), class_="group") if group else None,
            h.ul(
                [
                    h.li(
                        h.a(
                            view.t.of("console.room", section),
                            href=build_url("" if section == "home" else section),
                            aria_current="page" if section == current_section else None,
                            data_room=section,
                        )
                    )
                    for section in sections
                ]
            ),
        )
        for group, sections in NAVIGATION
    ]
    return h.nav(groups, id="rooms", class_="rooms", aria_label=view.t("console.rooms"))


def _render_breadcrumbs(view: PageView, page: Page) -> Html:
    section = view.path.partition("/")[0]
    if not section:
        return EMPTY
    trail = (
        [(view.t.of("console.room", section), build_url(section)), *page.crumbs]
        if "/" in view.path
        else list(page.crumbs)
    )
    items = [h.li(h.a(label, href=url)) for label, url in trail]
    return h.nav(h.ol(items), class_="crumbs", aria_label=view.t("console.crumbs")) if items else EMPTY


def _render_equivalent_calls(view: PageView) -> Html:
    """How to ask for the same at a terminal, and from a program."""
    call_by_command: dict[str, RecordedCall] = {}
    for call in view.here.asked:
        call_by_command.setdefault(call.shell(), call)
    if not call_by_command:
        return EMPTY
    shown_calls = list(call_by_command.values())[:_MAX_SHOWN_CALLS]
    shell_lines = [copyable_code(view, call.shell()) for call in shown_calls]
    python_lines = [
        copyable_code(view, call) for call in ("here = falaj.connect()", *(call.python() for call in shown_calls))
    ]
    body = h.div(
        h.h2(view.t("console.at_terminal")),
        shell_lines,
        h.h2(view.t("console.in_python")),
        python_lines,
        class_="lines",
    )
    return h.details(h.summary(view.t("console.same_elsewhere")), body, class_="drawer", id="drawer")

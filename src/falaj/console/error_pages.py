"""Refused: an error as a page. What is true, what to do; nothing of our insides."""

from falaj.console.markup import Html, h
from falaj.console.page import ROOT_PATH, Page
from falaj.console.page_frame import render_document, render_full_page
from falaj.console.page_view import DisplayPreferences, PageView, render_error_text
from falaj.console.page_view import render_error as notice
from falaj.console.words import Translator
from falaj.core.errors import FalajError


def render_error_page(t: Translator, preferences: DisplayPreferences, view: PageView | None, error: FalajError) -> Html:
    """Within the frame for whoever is signed in; else by itself."""
    title = t.of("console.error", error.code)
    home_link = h.p(h.a(t("console.back_home"), href=ROOT_PATH))
    if view is not None:
        return render_full_page(view, Page(title, Html(notice(view, error) + home_link)))
    body = h.main(h.h1(title), render_error_text(t, error), home_link, class_="sign-in", id="main")
    return render_document(t, preferences, f"{title} · Falaj", body, ("console.js",))


def render_internal_error_page(t: Translator, preferences: DisplayPreferences, request_id: str) -> Html:
    """Something that is our fault: an id to tell the operator, and no more."""
    explanation = h.p(t("console.broke", id=request_id))
    body = h.main(
        h.h1(t("console.broken")),
        explanation,
        h.p(h.a(t("console.back_home"), href=ROOT_PATH)),
        class_="sign-in",
        id="main",
    )
    return render_document(t, preferences, "Falaj", body, ("console.js",))

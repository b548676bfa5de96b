"""Refused: an error as a page. What is true, what to do; nothing of our insides."""

from falaj.console.frame import document, whole
from falaj.console.markup import Html, h
from falaj.console.page import ROOT, Page
from falaj.console.view import Look, View, told_of
from falaj.console.view import said as notice
from falaj.console.words import Words
from falaj.core.errors import FalajError


def refused(t: Words, look: Look, view: View | None, error: FalajError) -> Html:
    """Within the frame for whoever is signed in; else by itself."""
    title = t.of("console.error", error.code)
    home = h.p(h.a(t("console.back_home"), href=ROOT))
    if view is not None:
        return whole(view, Page(title, Html(notice(view, error) + home)))
    body = h.main(h.h1(title), told_of(t, error), home, class_="sign-in", id="main")
    return document(t, look, f"{title} · Falaj", body, ("console.js",))


def opaque_page(t: Words, look: Look, request: str) -> Html:
    """Something that is our fault: an id to tell the operator, and no more."""
    told = h.p(t("console.broke", id=request))
    body = h.main(
        h.h1(t("console.broken")), told, h.p(h.a(t("console.back_home"), href=ROOT)), class_="sign-in", id="main"
    )
    return document(t, look, "Falaj", body, ("console.js",))

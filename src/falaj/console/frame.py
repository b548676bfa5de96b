"""Frame: what stands around every page: the way to the rooms, the reader's choices, the same as a command."""

import re
from collections.abc import Sequence
from html import unescape

from falaj.console.assets import at
from falaj.console.lines import Line
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import ROOT, Page, address
from falaj.console.parts import copyable, notice
from falaj.console.view import Look, View
from falaj.console.words import LANGUAGES, Words

ROOMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("", ("home",)),
    ("make", ("catalog", "features", "track", "sweeps", "jobs", "flows")),
    ("run", ("serve", "monitor")),
    ("share", ("queues", "clusters")),
    ("govern", ("approvals", "zones", "policy", "people", "keys", "audit")),
)
"""The navigation: groups of rooms."""
_SHOWN = 12


def whole(view: View, page: Page, said: tuple[str, str] = ("", "")) -> Html:
    """The whole document."""
    t = view.t
    body = join(
        h.a(t("console.skip"), href="#main", class_="skip"),
        _header(view),
        h.div(_rooms(view), main(view, page, said), class_="shell"),
    )
    # Whoever draws need not remember what makes a drawing answer.
    drawn = ("plots.js",) if " data-plot=" in page.body else ()
    scripts = dict.fromkeys(("console.js", "live.js", *page.scripts, *drawn))
    return document(t, view.look, f"{_plain(page.title)} · Falaj", body, tuple(scripts))


def main(view: View, page: Page, said: tuple[str, str] = ("", "")) -> Html:
    """The part that changes from page to page, and that a live page fetches again."""
    kind, message = said
    ours, _, theirs = message.partition("\n")
    detail = h.p(view.english(theirs), class_="soft") if theirs else None
    told = h.div(h.p(h.bdi(ours)), detail, class_=f"notice {kind}", role="status") if kind else None
    head = h.div(_crumbs(view, page), h.h1(page.title), class_="head")
    live = {"data_live": " ".join(page.live) or None, "data_every": page.every_s or None}
    wide = "wide" if page.wide else None
    fenced = (
        notice("bad", view.t("console.fenced"), view.t("console.fenced_hint")) if view.here.house.fence.is_up else None
    )
    return h.main(fenced, told, head, page.body, _lines(view), id="main", tabindex="-1", class_=wide, **live)


def document(t: Words, look: Look, title: str, body: Html, scripts: Sequence[str]) -> Html:
    """A document in the reader's language, direction and theme."""
    head = join(
        h.meta(charset="utf-8"),
        h.meta(name="viewport", content="width=device-width, initial-scale=1"),
        h.meta(name="color-scheme", content="light dark"),
        h.title(title),
        [h.link(rel="stylesheet", href=at(name)) for name in ("tokens.css", "console.css", "plots.css")],
        h.link(rel="icon", href=at("icon.svg"), type="image/svg+xml"),
        [h.script(src=at(name), type="module") for name in scripts],
    )
    page = h.html(h.head(head), h.body(body), lang=t.lang, dir="rtl" if t.rtl else "ltr", data_theme=look.theme or None)
    return Html(f"<!doctype html>{page}")


def _plain(title: str | Html) -> str:
    """A title as text: a window's name has no elements in it."""
    return unescape(re.sub("<[^>]*>", "", title)) if isinstance(title, Html) else title


def _header(view: View) -> Html:
    t = view.t
    menu = h.button("☰", type="button", class_="menu quiet", aria_label=t("console.menu"), aria_controls="rooms",
                    aria_expanded="false")  # fmt: skip
    find = h.form(
        h.input(type="search", name="q", placeholder=t("console.find"), aria_label=t("console.find"), dir="auto"),
        method="get", action=address("find"), role="search", class_="find",
    )  # fmt: skip
    return h.header(
        menu, h.a(h.span("falaj", class_="mark"), href=ROOT, class_="brand"), find, choices(view), class_="top"
    )


def choices(view: View) -> Html:
    """Language, theme, purpose, and who is signed in."""
    t, look, back = view.t, view.look, h.input(type="hidden", name="back", value=view.link())
    other = next(lang for lang in LANGUAGES if lang != look.lang)
    language = h.form(back, h.button(LANGUAGES[other], name="lang", value=other, class_="quiet", lang=other),
                      method="post", action=f"{ROOT}/look")  # fmt: skip
    themes = [
        h.button(t.of("console.theme", name), name="theme", value=name, class_="quiet",
                 aria_pressed="true" if look.theme == name.replace("system", "") else "false")
        for name in ("system", "light", "dark")
    ]  # fmt: skip
    digits = h.button(t("console.digits_latin") if look.indic else t("console.digits_indic"), class_="quiet",
                      name="digits", value="latin" if look.indic else "indic") if t.rtl else None  # fmt: skip
    purpose = h.label(h.span(t("console.purpose")), h.input(name="purpose", value=look.purpose, dir="auto"))
    person = h.details(
        h.summary(h.bdi(view.actor.id), class_="quiet button"),
        h.div(
            h.p(
                t("console.signed_in", tenant=view.actor.tenant, roles=", ".join(sorted(view.actor.roles))),
                class_="soft",
            ),
            h.form(back, h.div(themes, class_="row"), digits, method="post", action=f"{ROOT}/look"),
            h.form(back, purpose, h.button(t("console.keep"), class_="quiet"), method="post", action=f"{ROOT}/look"),
            h.form(h.button(t("console.sign_out"), class_="quiet"), method="post", action=f"{ROOT}/sign-out"),
            class_="sheet",
        ),
        class_="person",
    )
    return h.div(language, person, class_="choices")


def _rooms(view: View) -> Html:
    now = view.path.partition("/")[0] or "home"
    groups = [
        join(h.p(view.t.of("console.group", group), class_="group") if group else None, h.ul([
            h.li(h.a(view.t.of("console.room", room), href=address("" if room == "home" else room),
                     aria_current="page" if room == now else None, data_room=room))
            for room in rooms
        ]))
        for group, rooms in ROOMS
    ]  # fmt: skip
    return h.nav(groups, id="rooms", class_="rooms", aria_label=view.t("console.rooms"))


def _crumbs(view: View, page: Page) -> Html:
    room = view.path.partition("/")[0]
    if not room:
        return EMPTY
    trail = [(view.t.of("console.room", room), address(room)), *page.crumbs] if "/" in view.path else list(page.crumbs)
    items = [h.li(h.a(name, href=to)) for name, to in trail]
    return h.nav(h.ol(items), class_="crumbs", aria_label=view.t("console.crumbs")) if items else EMPTY


def _lines(view: View) -> Html:
    """How to ask for the same at a terminal, and from a program."""
    seen: dict[str, Line] = {}
    for line in view.here.asked:
        seen.setdefault(line.shell(), line)
    if not seen:
        return EMPTY
    shown = list(seen.values())[:_SHOWN]
    shell = [copyable(view, line.shell()) for line in shown]
    python = [copyable(view, line) for line in ("here = falaj.connect()", *(line.python() for line in shown))]
    body = h.div(h.h2(view.t("console.at_terminal")), shell, h.h2(view.t("console.in_python")), python, class_="lines")
    return h.details(h.summary(view.t("console.same_elsewhere")), body, class_="drawer", id="drawer")

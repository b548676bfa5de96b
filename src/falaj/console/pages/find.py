"""Search over everything: names that have the words in them, room by room, a few of each."""

from collections.abc import Callable, Iterable
from typing import Any

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page, Route, href
from falaj.console.view import View
from falaj.core.errors import FalajError
from falaj.core.ref import Ref

_EACH, _SOME, _LOOKED = 8, 60, 200
Hit = tuple[Ref, str, str]
"""A thing, what else is known of it in a word, and its state."""


def find(view: View) -> Page:
    """What is called so, of every kind."""
    t, text = view.t, view.query("q").strip()[:100]
    form = parts.filters(view, (parts.Field("q", t("find.what"), "search"),))
    if not text:
        return Page(t("console.search"), join(form, parts.empty(view, t("find.ask"), t("find.ask_hint"))))
    found = [_group(view, name, text, look) for name, look in ROOMS]
    shown = join(found) or parts.empty(view, t("find.nothing", text=text), t("find.nothing_hint"))
    return Page(t("console.search"), join(form, _exact(view, text), shown and parts.cards(shown)))


def _exact(view: View, text: str) -> Html:
    """A reference that somebody pasted leads straight to its page."""
    try:
        ref = Ref.parse(text)
    except FalajError:
        return EMPTY
    return h.p(view.t("find.go"), " ", parts.ref(view, ref))


def _group(view: View, name: str, text: str, look: Callable[[View, str], Iterable[Hit]]) -> Html:
    """The hits of one room; a room that the reader may not see has none."""
    try:
        hits = list(look(view, text))
    except FalajError:
        return EMPTY
    if not hits:
        return EMPTY
    rows = [
        h.li(h.a(h.bdi(shown(ref, word)), href=href(ref), class_="ref"), " ",
             parts.badge(view, state) if state else None,
             h.div(h.bdi(ref.project), f" · {word}" if word and word != shown(ref, word) else "", class_="soft small"))
        for ref, word, state in hits[:_EACH]
    ]  # fmt: skip
    more = h.p(view.t("find.more", n=len(hits) - _EACH), class_="soft") if len(hits) > _EACH else None
    return parts.card(view.t.of("find.group", name), h.ul(rows, class_="plain-list"), more, id=f"found-{name}")


def shown(ref: Ref, word: str) -> str:
    """What a hit is called: a run by its title, all else by its name."""
    return word if ref.kind == "run" and word else ref.name


def fits(text: str, *words: object) -> bool:
    """Whether every word that was typed is in what is known of a thing."""
    known = " ".join(map(str, words)).casefold()
    return all(word in known for word in text.casefold().split())


def _catalog(kind: str) -> Callable[[View, str], Iterable[Hit]]:
    def look(view: View, text: str) -> Iterable[Hit]:
        first = max(text.split(), key=len)
        page = view.here.catalog.list(kind=kind, search=first.rpartition("/")[2], limit=_SOME)
        return [(one.ref.bare, one.message[:60], "") for one in page.versions if fits(text, one.ref)]

    return look


def _runs(view: View, text: str) -> Iterable[Hit]:
    safe = text.replace("'", "").replace("%", "").replace("\\", "")
    page = view.here.track.list(where=f"attributes.run_name ILIKE '%{safe}%'", limit=_EACH + 1)
    return [(one.ref, one.title, one.status) for one in page.runs]


def _experiments(view: View, text: str) -> Iterable[Hit]:
    page = view.here.track.experiments(limit=_LOOKED)
    return [(one.ref, one.title[:60], "") for one in page.experiments if fits(text, one.ref, one.title)]


def _listed(desk: str, verb: str, field: str, **more: Any) -> Callable[[View, str], Iterable[Hit]]:
    def look(view: View, text: str) -> Iterable[Hit]:
        given = getattr(getattr(view.here, desk), verb)(**more)
        some = getattr(given, field) if field else given
        return [(one.ref.bare, str(getattr(one, "about", ""))[:60], str(getattr(one, "state", "")))
                for one in some if fits(text, one.ref, getattr(one, "about", ""))]  # fmt: skip

    return look


ROOMS: tuple[tuple[str, Callable[[View, str], Iterable[Hit]]], ...] = (
    ("dataset", _catalog("dataset")),
    ("model", _catalog("model")),
    ("code", _catalog("code")),
    ("view", _listed("features", "list", "items", kind="view", limit=_LOOKED)),
    ("service", _listed("features", "list", "items", kind="service", limit=_LOOKED)),
    ("experiment", _experiments),
    ("run", _runs),
    ("job", _listed("jobs", "list", "jobs", limit=_LOOKED)),
    ("endpoint", _listed("serve", "list", "endpoints", limit=_LOOKED)),
    ("flow", _listed("flows", "list", "")),
)
ROUTES: tuple[Route, ...] = (Route("find", find, ("find", "find?q=scor", "find?q=zzz", "find?q=hostile")),)

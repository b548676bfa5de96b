"""Searching the log: newest first, by thing, act, person and time; the address is the search."""

from datetime import datetime

from falaj.audit.records import Entries, Entry
from falaj.console.markup import Html, h, join
from falaj.console.page import Page, address, href
from falaj.console.parts import Field, Row, badge, empty, filters, pager, table
from falaj.console.plots.shell import cut
from falaj.console.view import View
from falaj.console.writing import GULF
from falaj.core.errors import Invalid

_PAGE = 50
_DAY_S = 86_400.0
DENIED = "guard.deny"


def search(view: View) -> Page:
    """What happened."""
    t = view.t
    form = filters(view, (
        Field("about", t("audit.about")), Field("verb", t("audit.verb")), Field("actor", t("console.who")),
        Field("from", t("audit.from"), "date"), Field("to", t("audit.to"), "date"),
    ))  # fmt: skip
    ways = (
        h.a(t("audit.verify"), href=address("audit/verify"), class_="button primary"),
        h.a(t("audit.checkpoints"), href=address("audit/checkpoints"), class_="button"),
        h.a(t("audit.denials"), href=address("audit", {"verb": DENIED}), class_="button"),
    )
    body = join(h.div(ways, class_="actions"), form, view.part(lambda: _found(view)))
    # Looking is itself an event, so a page that follows every event would follow itself.
    return Page(t("audit.title"), body)


def day(text: str, *, end: bool = False) -> float:
    """The first moment of a day in the Gulf, or of the day after; 0 for none."""
    if not text:
        return 0.0
    try:
        begins = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=GULF).timestamp()
    except ValueError:
        raise Invalid(f"{text!r:.20} is no day", "write it as 2026-11-30") from None
    return begins + _DAY_S if end else begins


def _found(view: View) -> Html:
    t, until = view.t, day(view.query("to"), end=True)
    found: Entries = view.here.audit.log(
        about=view.query("about"),
        verb=view.query("verb"),
        actor=view.query("actor"),
        since=day(view.query("from")),
        older=view.query("page") or (str(until) if until else ""),
        limit=_PAGE,
    )
    if not found.entries:
        return empty(view, t("audit.none"), t("audit.none_hint"), "falaj audit log --limit 20")
    heads = (t("console.when"), t("console.who"), t("audit.verb"), t("audit.subject"), t("console.details"))
    rows = [_row(view, one) for one in found.entries]
    return join(table(view, heads, rows, t("audit.title")), pager(view, found.older))


def _row(view: View, one: Entry) -> Row:
    subject = str(one.subject)
    cells = (
        h.a(view.when(one.at), href=address(f"audit/event/{one.id}"), class_="nowrap"),
        h.a(h.bdi(cut(one.actor, 20)), href=view.link(actor=one.actor, page=""), class_="ref nowrap", title=one.actor),
        h.code(one.verb, dir="ltr"),
        h.a(h.bdi(cut(subject, 38)), href=href(one.subject), class_="ref nowrap", title=subject),
        join(badge(view, "denied") if one.verb == DENIED else None, " ", h.bdi(gist(one), class_="soft any")),
    )
    return Row(cells, id=f"e{one.id}", state="bad" if one.verb == DENIED else "")


def gist(one: Entry) -> str:
    """The beginning of what it says, without the facts of its decision."""
    said = [f"{name}={value}" for name, value in (one.body or {}).items() if name != "facts" and value]
    whole = " ".join(said)
    return whole if len(whole) <= 80 else f"{whole[:79]}…"

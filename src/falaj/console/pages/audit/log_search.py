"""Searching the log: newest first, by thing, act, person and time; the address is the search."""

from datetime import datetime

from falaj.audit.records import LogEntry, LogEntryPage
from falaj.console.components import FormField, TableRow, badge, empty_state, filter_form, pager, table
from falaj.console.formatting import GULF_TIMEZONE
from falaj.console.markup import Html, h, join_html
from falaj.console.page import Page, build_resource_url, build_url
from falaj.console.page_view import PageView
from falaj.console.plots.chart_frame import truncate_middle
from falaj.core.errors import Invalid

_PAGE_SIZE = 50
_DAY_S = 86_400.0
DENIED_ACTION = "guard.deny"


def render_search_page(view: PageView) -> Page:
    """What happened."""
    t = view.t
    search_form = filter_form(view, (
        FormField("about", t("audit.about")), FormField("verb", t("audit.verb")), FormField("actor", t("console.who")),
        FormField("from", t("audit.from"), "date"), FormField("to", t("audit.to"), "date"),
    ))  # fmt: skip
    links = (
        h.a(t("audit.verify"), href=build_url("audit/verify"), class_="button primary"),
        h.a(t("audit.checkpoints"), href=build_url("audit/checkpoints"), class_="button"),
        h.a(t("audit.denials"), href=build_url("audit", {"verb": DENIED_ACTION}), class_="button"),
    )
    body = join_html(h.div(links, class_="actions"), search_form, view.part(lambda: _render_entries(view)))
    # Looking is itself an event, so a page that follows every event would follow itself.
    return Page(t("audit.title"), body)


def parse_day(day_text: str, *, is_end: bool = False) -> float:
    """The first moment of a day in the Gulf, or of the day after; 0 for none."""
    if not day_text:
        return 0.0
    try:
        day_start = datetime.strptime(day_text, "%Y-%m-%d").replace(tzinfo=GULF_TIMEZONE).timestamp()
    except ValueError:
        raise Invalid(f"{day_text!r:.20} is no day", "write it as 2026-11-30") from None
    return day_start + _DAY_S if is_end else day_start


def _render_entries(view: PageView) -> Html:
    t, until_time = view.t, parse_day(view.query("to"), is_end=True)
    page: LogEntryPage = view.here.audit.log(
        about=view.query("about"),
        verb=view.query("verb"),
        actor=view.query("actor"),
        since=parse_day(view.query("from")),
        older=view.query("page") or (str(until_time) if until_time else ""),
        limit=_PAGE_SIZE,
    )
    if not page.entries:
        return empty_state(view, t("audit.none"), t("audit.none_hint"), "falaj audit log --limit 20")
    headers = (t("console.when"), t("console.who"), t("audit.verb"), t("audit.subject"), t("console.details"))
    rows = [_make_row(view, entry) for entry in page.entries]
    return join_html(table(view, headers, rows, t("audit.title")), pager(view, page.older))


def _make_row(view: PageView, entry: LogEntry) -> TableRow:
    subject = str(entry.subject)
    cells = (
        h.a(view.when(entry.at), href=build_url(f"audit/event/{entry.id}"), class_="nowrap"),
        h.a(
            h.bdi(truncate_middle(entry.actor, 20)),
            href=view.link(actor=entry.actor, page=""),
            class_="ref nowrap",
            title=entry.actor,
        ),
        h.code(entry.verb, dir="ltr"),
        h.a(
            h.bdi(truncate_middle(subject, 38)),
            href=build_resource_url(entry.subject),
            class_="ref nowrap",
            title=subject,
        ),
        join_html(
            badge(view, "denied") if entry.verb == DENIED_ACTION else None,
            " ",
            h.bdi(summarize_entry(entry), class_="soft any"),
        ),
    )
    return TableRow(cells, id=f"e{entry.id}", state="bad" if entry.verb == DENIED_ACTION else "")


def summarize_entry(entry: LogEntry) -> str:
    """The beginning of what it says, without the facts of its decision."""
    field_texts = [f"{name}={value}" for name, value in (entry.body or {}).items() if name != "facts" and value]
    summary_text = " ".join(field_texts)
    return summary_text if len(summary_text) <= 80 else f"{summary_text[:79]}…"

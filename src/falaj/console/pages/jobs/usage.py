"""Who used how much: GPU-hours, CPU-hours and money by queue, project, person, job or model, over a time."""

from collections.abc import Sequence

from falaj.console import parts
from falaj.console.markup import Html, h, join, text
from falaj.console.page import Page, href
from falaj.console.pages.jobs.figures import span_filter
from falaj.console.parts import Column
from falaj.console.plots import bars
from falaj.console.view import View
from falaj.core.errors import FalajError
from falaj.fleet.usage import BY, UsageRow, UsageTable

SPANS = ("24h", "7d", "30d", "90d", "365d")
MOST_ROWS, MOST_BARS = 100, 20


def usage(view: View) -> Page:
    """The report."""
    t = view.t
    by = view.query("by") if view.query("by") in BY else BY[0]
    since = view.query("since") if view.query("since") in SPANS else "30d"
    found: UsageTable = view.here.jobs.usage(by=by, since=since)
    tabs = parts.tabs(view, [(name, t.of("jobs.by", name)) for name in BY], "by")
    rows = sorted(found.rows, key=lambda row: (-row.money, -row.gpu_hours, -row.cpu_hours))
    shown = _report(view, rows, by) if rows else parts.empty(view, t("jobs.no_cost"), t("jobs.cost_hint"),
                                                             f"falaj jobs usage --by {by} --since {since}")  # fmt: skip
    return Page(t("jobs.usage"), join(tabs, span_filter(view, since, SPANS), shown))


def _report(view: View, rows: Sequence[UsageRow], by: str) -> Html:
    t = view.t
    measure, title, unit = measured(rows)
    amounts = [(row.name, float(getattr(row, measure))) for row in rows[:MOST_BARS]]
    words = t.of("jobs.measure", title)
    drawn = h.section(bars(view, amounts, title=str(words), unit=unit), class_="card")
    names = ("gpu_hours", "lost_gpu_hours", "idle_gpu_hours", "cpu_hours", "money")
    columns: tuple[Column | str, ...] = (
               t.of("jobs.by", by), *(Column(t.of("jobs.measure", name), "n") for name in names),
               Column(t("jobs.attempts"), "n"), t("jobs.lost_to"))  # fmt: skip
    made = [
        (_named(row.name), *(view.number(getattr(row, name)) for name in names), view.number(row.attempts),
         [h.div(t.of("console.state", cause), " ", view.number(amount)) for cause, amount in row.lost_to.items()])
        for row in rows[:MOST_ROWS]
    ]  # fmt: skip
    price = h.p(t("jobs.no_price"), class_="soft") if not any(row.money for row in rows) else None
    return join(drawn, parts.table(view, columns, made, t("jobs.usage")), price)


def measured(rows: Sequence[UsageRow]) -> tuple[str, str, str]:
    """What is worth drawing: money where nodes have a price, else GPUs where there are any."""
    if any(row.money for row in rows):
        return "money", "money", ""
    gpus = any(row.gpu_hours for row in rows)
    return ("gpu_hours", "gpu_hours", "h") if gpus else ("cpu_hours", "cpu_hours", "h")


def _named(name: str) -> Html:
    """A thing is a link to its page; a queue, project or person is its name."""
    try:
        return h.a(h.bdi(name), href=href(name), class_="ref") if ":" in name else h.bdi(name)
    except FalajError:
        return text(name)

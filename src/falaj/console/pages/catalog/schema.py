"""The columns of a table: types, what the law says of each, and the statistics that are kept."""

from datetime import datetime

from falaj.catalog.records import Version
from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h
from falaj.console.pages.catalog.shown import at
from falaj.console.parts import Row
from falaj.console.view import View
from falaj.content.records import Column, Table

_MOST = 200


def schema(view: View, version: Version) -> Html:
    """A row for each column; what would show values of people is not kept, and says so."""
    t, table = view.t, version.table
    if table is None:
        return EMPTY
    columns = (
        t("console.column"), parts.Column(t("catalog.type"), "code"), t("console.label"),
        parts.Column(t("catalog.nulls"), "n"), parts.Column(t("catalog.distinct"), "n"), t("catalog.least"),
        t("catalog.mean"), t("catalog.greatest"), "",
    )  # fmt: skip
    rows = [_row(view, version, table, one) for one in table.columns[:_MOST]]
    more = len(table.columns) > _MOST and h.p(t("catalog.more", n=len(table.columns) - _MOST), class_="soft")
    there = sum(bool(one.type) for one in table.columns)
    about = None
    if table.rows is not None:
        about = h.p(t("catalog.table_of", rows=table.rows, n=there, format=table.format), class_="soft")
    return parts.card(t("catalog.schema"), about, parts.table(view, columns, rows, t("catalog.schema")), more or None,
                      id="schema")  # fmt: skip


def _row(view: View, version: Version, table: Table, one: Column) -> Row:
    walk = h.a(view.t("console.lineage"), href=at(version.ref, "lineage", column=one.name))
    private = h.span(view.t.of("catalog.category", one.category), class_="badge warn") if one.category else ""
    nulls = view.percent(one.nulls / table.rows) if table.rows else view.number(one.nulls)
    if not one.type:
        nulls = EMPTY  # it was declared for an earlier version, and is not in this one
    hidden = h.span(view.t("catalog.not_kept"), class_="soft small") if one.category else ""
    cells = (
        h.bdi(one.name), one.type, private, nulls,
        view.number(one.distinct) if one.distinct is not None else "", h.bdi(one.low[:60]) if one.low else hidden,
        _mean(view, one), h.bdi(one.high[:60]), walk,
    )  # fmt: skip
    return Row(cells, id=f"column-{one.name}")


def _mean(view: View, one: Column) -> Html:
    """The mean, and where it lies between the ends."""
    if one.mean is None:
        return EMPTY
    place = position(one)
    meter = h.meter(min="0", max="1", value=f"{place:.3f}", aria_label=view.t("catalog.mean_at", name=one.name),
                    class_="mean") if place is not None else None  # fmt: skip
    return h.div(view.number(one.mean), meter)


def position(one: Column) -> float | None:
    """How far the mean is from the least value to the greatest, from 0 to 1; None where that means nothing."""
    low, high = _number(one.low), _number(one.high)
    if one.mean is None or low is None or high is None or not high > low:
        return None
    return min(1.0, max(0.0, (one.mean - low) / (high - low)))


def _number(said: str) -> float | None:
    try:
        found = float(said)
    except ValueError:
        try:
            found = datetime.fromisoformat(said).timestamp()
        except (ValueError, OverflowError):
            return None
    return found if found == found and abs(found) != float("inf") else None

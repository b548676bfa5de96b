"""The columns of a table: types, what the law says of each, and the statistics that are kept."""

from datetime import datetime

from falaj.catalog.records import CatalogVersion
from falaj.console import components
from falaj.console.components import TableRow
from falaj.console.markup import EMPTY, Html, h
from falaj.console.page_view import PageView
from falaj.console.pages.catalog.version_parts import build_version_url
from falaj.content.records import TableColumn, TableDescription

_MAX_COLUMNS = 200


def render_schema(view: PageView, version: CatalogVersion) -> Html:
    """A row for each column; what would show values of people is not kept, and says so."""
    t, table = view.t, version.table
    if table is None:
        return EMPTY
    columns = (
        t("console.column"),
        components.ColumnHeader(t("catalog.type"), "code"),
        t("console.label"),
        components.ColumnHeader(t("catalog.nulls"), "n"),
        components.ColumnHeader(t("catalog.distinct"), "n"),
        t("catalog.least"),
        t("catalog.mean"),
        t("catalog.greatest"),
        "",
    )
    rows = [_make_row(view, version, table, column) for column in table.columns[:_MAX_COLUMNS]]
    truncation_note = len(table.columns) > _MAX_COLUMNS and h.p(
        t("catalog.more", n=len(table.columns) - _MAX_COLUMNS), class_="soft"
    )
    num_present = sum(bool(column.type) for column in table.columns)
    summary_line = None
    if table.rows is not None:
        summary_line = h.p(t("catalog.table_of", rows=table.rows, n=num_present, format=table.format), class_="soft")
    return components.card(
        t("catalog.schema"),
        summary_line,
        components.table(view, columns, rows, t("catalog.schema")),
        truncation_note or None,
        id="schema",
    )


def _make_row(view: PageView, version: CatalogVersion, table: TableDescription, column: TableColumn) -> TableRow:
    lineage_link = h.a(view.t("console.lineage"), href=build_version_url(version.ref, "lineage", column=column.name))
    category_badge = (
        h.span(view.t.of("catalog.category", column.category), class_="badge warn") if column.category else ""
    )
    nulls = view.percent(column.nulls / table.rows) if table.rows else view.number(column.nulls)
    if not column.type:
        nulls = EMPTY  # it was declared for an earlier version, and is not in this one
    hidden_note = h.span(view.t("catalog.not_kept"), class_="soft small") if column.category else ""
    cells = (
        h.bdi(column.name),
        column.type,
        category_badge,
        nulls,
        view.number(column.distinct) if column.distinct is not None else "",
        h.bdi(column.low[:60]) if column.low else hidden_note,
        _render_mean(view, column),
        h.bdi(column.high[:60]),
        lineage_link,
    )
    return TableRow(cells, id=f"column-{column.name}")


def _render_mean(view: PageView, column: TableColumn) -> Html:
    """The mean, and where it lies between the ends."""
    if column.mean is None:
        return EMPTY
    mean_position = compute_mean_position(column)
    meter = (
        h.meter(
            min="0",
            max="1",
            value=f"{mean_position:.3f}",
            aria_label=view.t("catalog.mean_at", name=column.name),
            class_="mean",
        )
        if mean_position is not None
        else None
    )
    return h.div(view.number(column.mean), meter)


def compute_mean_position(column: TableColumn) -> float | None:
    """How far the mean is from the least value to the greatest, from 0 to 1; None where that means nothing."""
    low, high = _parse_number(column.low), _parse_number(column.high)
    if column.mean is None or low is None or high is None or not high > low:
        return None
    return min(1.0, max(0.0, (column.mean - low) / (high - low)))


def _parse_number(value_text: str) -> float | None:
    try:
        parsed_value = float(value_text)
    except ValueError:
        try:
            parsed_value = datetime.fromisoformat(value_text).timestamp()
        except (ValueError, OverflowError):
            return None
    return parsed_value if parsed_value == parsed_value and abs(parsed_value) != float("inf") else None

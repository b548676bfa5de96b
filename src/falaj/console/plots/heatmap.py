"""Heat: a table whose cells say by their shade, and in words, how much there is."""

from collections.abc import Sequence
from typing import TypedDict, Unpack

from falaj.console.formatting import NO_VALUE
from falaj.console.markup import Html, h
from falaj.console.plots.axis_scales import ChartView, format_short, to_drawable_number
from falaj.console.plots.chart_frame import chart_figure, empty_chart, to_plain_text

_NUM_SHADES = 8
_MAX_WORDED_COLUMNS = 16


class HeatmapOptions(TypedDict, total=False):
    """Which values are palest and darkest, and an address for each cell (empty for none)."""

    low: float
    high: float
    links: Sequence[str]


def heatmap(
    view: ChartView,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[float | None],
    *,
    title: str,
    **options: Unpack[HeatmapOptions],
) -> Html:
    """Cells by row and column, `values` and `links` row by row; None is no data. Without ends they are 0 and 1."""
    low, high, links = options.get("low", 0.0), options.get("high", 1.0), options.get("links", ())
    if not rows or not columns:
        return empty_chart(view, "heat", title)
    has_words = len(columns) <= _MAX_WORDED_COLUMNS
    value_step = (high - low) / 10 if high > low else 0.0
    header_row = h.tr(h.td(), [h.th(h.bdi(column_name), scope="col", title=column_name) for column_name in columns])
    body_rows = []
    for row_index, row in enumerate(rows):
        cells = []
        for n, column in enumerate(columns, start=row_index * len(columns)):
            value = to_drawable_number(values[n]) if n < len(values) else None
            value_text = NO_VALUE if value is None else format_short(view, value, value_step)
            description = f"{to_plain_text(row)} · {to_plain_text(column)}: {value_text}"
            cell_content = value_text if has_words else h.span(value_text, class_="unseen")
            link = links[n] if n < len(links) else ""
            cells.append(
                h.td(
                    h.a(cell_content, href=link) if link else cell_content,
                    class_=_get_shade_class(value, low, high),
                    title=description,
                )
            )
        body_rows.append(h.tr(h.th(h.bdi(row), scope="row", title=row), cells))
    table = h.table(
        h.thead(header_row), h.tbody(body_rows), class_="heat wordy" if has_words else "heat dense", aria_label=title
    )
    scale_legend = h.span(
        h.span(format_short(view, low)),
        [h.i(class_=f"q{n}") for n in range(_NUM_SHADES)],
        h.span(format_short(view, high)),
        class_="heat-key",
        aria_hidden="true",
    )
    scroll_box = h.div(table, class_="plot-scroll", tabindex=0, role="region", aria_label=title)
    return chart_figure("heat", title, scroll_box, legend=scale_legend)


def _get_shade_class(value: float | None, low: float, high: float) -> str:
    if value is None:
        return "qn"
    share = (value - low) / (high - low) if high > low else 0.5
    return f"q{int(max(0.0, min(0.999, share)) * _NUM_SHADES)}"

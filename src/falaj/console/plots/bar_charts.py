"""Amounts: horizontal bars, one bar of shares, and a histogram beside another."""

import math
from collections.abc import Sequence

from falaj.console.formatting import format_number
from falaj.console.markup import EMPTY, Html, h
from falaj.console.plots.axis_scales import ChartView, format_short, make_scale, to_drawable_number
from falaj.console.plots.chart_frame import (
    STATE_SIGNS,
    chart_figure,
    empty_chart,
    format_coordinate,
    format_percentage,
    get_series_class,
    horizontal_grid,
    to_plain_text,
)
from falaj.console.state_tones import get_tone

_PLOT_HEIGHT = 160


def bar_chart(view: ChartView, items: Sequence[tuple[str, float]], *, title: str, unit: str = "") -> Html:
    """A bar for each item, the longest as wide as there is room; what is below zero is hatched."""
    amounts = [(name, to_drawable_number(value)) for name, value in items]
    if not amounts:
        return empty_chart(view, "bars", title)
    largest = max((abs(amount) for _, amount in amounts if amount is not None), default=0.0) or 1.0
    rows = [
        h.li(
            h.bdi(name, class_="name", title=name),
            _render_bar(view, abs(amount or 0.0) / largest, (amount or 0.0) < 0),
            _render_amount(view, amount, unit),
        )
        for name, amount in amounts
    ]
    return chart_figure("bars", title, h.ul(rows, class_="bar-list", aria_label=title))


def _render_bar(view: ChartView, share: float, is_negative: bool) -> Html:
    rect = h.rect(
        x=format_percentage(1 - share) if view.rtl else 0,
        width=format_percentage(share),
        height="100%",
        rx=2,
        class_="fill",
    )
    return h.svg(rect, class_="bar s1 below" if is_negative else "bar s0", width="100%", height=12, aria_hidden="true")


def _render_amount(view: ChartView, value: float | None, unit: str = "") -> Html:
    return h.bdi(format_number(view.t, value), unit and f" {unit}", class_="n", dir="ltr")


def share_bar(view: ChartView, parts: Sequence[tuple[str, float, str]], *, title: str) -> Html:
    """One bar cut into parts. A part is its name, its amount and a word on it: a state, or any note."""
    positive_parts = [(name, max(0.0, to_drawable_number(amount) or 0.0), note) for name, amount, note in parts]
    total = sum(amount for _, amount, _ in positive_parts)
    if total <= 0 or math.isinf(total):
        return empty_chart(view, "shares", title)
    segments, entries, filled_share = [], [], 0.0
    for index, (name, amount, note) in enumerate(positive_parts):
        share = amount / total
        start = 1 - filled_share - share if view.rtl else filled_share
        percent_text = _format_percent(view, share, 0.01)
        segments.append(
            _render_segment(f"{to_plain_text(name)}: {percent_text}", start, share, _get_part_class(index, note))
        )
        entries.append(
            _render_legend_entry(
                name, (percent_text, format_number(view.t, amount)), note, _get_part_class(index, note)
            )
        )
        filled_share += share
    bar_element = h.svg(segments, class_="share-bar", width="100%", height=20, role="img", aria_label=title)
    return chart_figure("shares", title, bar_element, h.ul(entries, class_="share-list"))


def _format_percent(view: ChartView, share: float, step: float = 0.0) -> str:
    return format_short(view, 100 * share, 100 * step) + view.t.digits("%")


def _get_part_class(index: int, note: str) -> str:
    """The colour of a state, else of the series; the dash tells parts apart without it."""
    return f"t-{get_tone(note)} {get_series_class(index).split()[1]}" if get_tone(note) else get_series_class(index)


def _render_segment(description: str, start: float, share: float, css_class: str) -> Html:
    return h.g(
        h.title(description),
        h.rect(x=format_percentage(start), width=format_percentage(share), height="100%", class_="fill"),
        h.line(x1=format_percentage(start), x2=format_percentage(start + share), y1="50%", y2="50%", class_="weave"),
        class_=css_class,
    )


def _render_legend_entry(name: str, amount_texts: tuple[str, str], note: str, css_class: str) -> Html:
    swatch = h.svg(_render_segment("", 0.0, 1.0, css_class), width=20, height=12, aria_hidden="true", class_="swatch")
    return h.li(
        swatch,
        h.bdi(name, class_="name"),
        h.bdi(amount_texts[0], class_="n", dir="ltr"),
        h.span(amount_texts[1], class_="n quiet"),
        note
        and h.span(f"{STATE_SIGNS[get_tone(note)]} {to_plain_text(note)}" if get_tone(note) else note, class_="quiet"),
    )


def histogram(
    view: ChartView,
    edges: Sequence[float],
    counts: Sequence[float],
    *,
    title: str,
    reference_counts: Sequence[float] = (),
) -> Html:
    """How often each range came. With `reference_counts` (another time's counts, drawn paler) both are shares of their
    own total. Every range is as wide as the others, and its ends are written: quantiles and powers read as well as even
    steps."""
    current_values, reference_values = (
        [max(0.0, to_drawable_number(count) or 0.0) for count in series_values[: max(0, len(edges) - 1)]]
        for series_values in (counts, reference_counts)
    )
    if not current_values or max(current_values + reference_values) <= 0:
        return empty_chart(view, "histogram", title)
    if any(reference_values):
        current_values, reference_values = (
            _normalize_values(series_values) for series_values in (current_values, reference_values)
        )
    y_scale = make_scale((0.0, *current_values, *reference_values), rounded=True)
    ticks = y_scale.ticks()
    tick_ys = [6 + _PLOT_HEIGHT - _PLOT_HEIGHT * y_scale.at(tick) for tick in ticks]
    tick_step = ticks[1] - ticks[0] if len(ticks) > 1 else 0.0
    has_reference = any(reference_values)
    grid, y_axis = horizontal_grid(
        [_format_value(view, has_reference, tick, tick_step) for tick in ticks], tick_ys, _PLOT_HEIGHT + 30
    )
    bin_elements = [
        _render_bin(view, edges, n, (value, y_scale.at(value)), (series_index, len(current_values), has_reference))
        for series_index, series_values in enumerate((current_values, reference_values))
        for n, value in enumerate(series_values[: len(current_values)])
    ]
    plot_area = h.svg(
        grid,
        bin_elements,
        _render_edge_labels(view, edges, len(current_values)),
        class_="area s0",
        width="100%",
        height=_PLOT_HEIGHT + 30,
        role="img",
        aria_label=title,
    )
    legend_entries = [
        _render_legend_kind("now", view.t("plots.now")),
        _render_legend_kind("then", view.t("plots.then")),
    ]
    legend_list = h.ul(legend_entries, class_="plot-legend") if has_reference else EMPTY
    return chart_figure("histogram", title, h.div(y_axis, plot_area, class_="plot-box", dir="ltr"), legend=legend_list)


def _normalize_values(values: Sequence[float]) -> list[float]:
    largest = max(values) or 1.0  # first by the largest: a sum of huge values would not be finite
    total = sum(value / largest for value in values) or 1.0
    return [value / largest / total for value in values]


def _format_value(view: ChartView, is_share: bool, value: float, step: float) -> str:
    return _format_percent(view, value, step) if is_share else format_short(view, value, step)


def _render_legend_kind(kind: str, name: str) -> Html:
    swatch = h.svg(
        h.rect(x=1, y=1, width=10, height=10, class_=f"fill {kind}"), width=12, height=12, aria_hidden="true"
    )
    return h.li(h.span(swatch, name, class_="s0 entry"))


def _render_bin(
    view: ChartView,
    edges: Sequence[float],
    n: int,
    value_and_share: tuple[float, float],
    placement: tuple[int, int, bool],
) -> Html:
    (value, share), (series_index, bin_count, has_reference) = value_and_share, placement
    bin_width, bin_offset = (0.42, 0.06 + 0.46 * series_index) if has_reference else (0.94, 0.03)
    description = (
        f"{_format_edge(view, edges[n])} \u2013 {_format_edge(view, edges[n + 1])}: "
        f"{_format_value(view, has_reference, value, 0.0)}"
    )
    return h.rect(
        h.title(description),
        x=format_percentage((n + bin_offset) / bin_count),
        width=format_percentage(bin_width / bin_count),
        y=format_coordinate(6 + _PLOT_HEIGHT * (1 - share)),
        height=format_coordinate(_PLOT_HEIGHT * share),
        class_="fill then" if series_index else "fill now",
    )


def _format_edge(view: ChartView, value: float) -> str:
    if math.isnan(value):
        return "?"
    return ("∞" if value > 0 else "-∞") if math.isinf(value) else format_short(view, value)


def _render_edge_labels(view: ChartView, edges: Sequence[float], bin_count: int) -> list[Html]:
    label_stride = max(1, math.ceil(bin_count / 6))
    return [
        h.text(
            _format_edge(view, edges[n]),
            x=format_percentage(n / bin_count),
            y=_PLOT_HEIGHT + 22,
            class_="odd" if (n // label_stride) % 2 else None,
            text_anchor="start" if n == 0 else "end" if n == bin_count else "middle",
        )
        for n in range(0, bin_count + 1, label_stride)
    ]

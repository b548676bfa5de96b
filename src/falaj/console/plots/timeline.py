"""Timelines: what ran when, a row for each thing and a bar for each time it ran."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from falaj.console.markup import Html, h
from falaj.console.plots.axis_scales import (
    AxisScale,
    ChartView,
    format_period,
    format_tick_time,
    make_scale,
    to_drawable_number,
)
from falaj.console.plots.chart_frame import (
    STATE_SIGNS,
    chart_figure,
    describe_mark,
    empty_chart,
    format_percentage,
    to_plain_text,
)
from falaj.console.state_tones import get_tone

_LANE_HEIGHT = 24
MAX_SPANS = 1000


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """A time in a row, from `start` to `end` (seconds since 1970; None: it still goes on)."""

    row: str
    name: str
    start: float
    end: float | None
    state: str
    link: str = ""


def timeline(view: ChartView, spans: Sequence[TimelineSpan], *, title: str) -> Html:
    """Rows in the order they first come; spans of a row that overlap lie below each other."""
    valid_spans = [span for span in spans if to_drawable_number(span.start) is not None][:MAX_SPANS]
    if not valid_spans:
        return empty_chart(view, "timeline", title)
    time_scale = make_scale((timestamp for span in valid_spans for timestamp in (span.start, span.end)), time=True)
    ticks = time_scale.ticks(6)
    rows: dict[str, list[TimelineSpan]] = {}
    for span in valid_spans:
        rows.setdefault(span.row, []).append(span)
    row_elements = [
        h.div(h.bdi(row, class_="row-name", title=row), _render_track(view, row_spans, time_scale, ticks))
        for row, row_spans in rows.items()
    ]
    axis_labels = [
        h.text(
            format_tick_time(view, tick, time_scale.high - time_scale.low),
            x=format_percentage(time_scale.at(tick)),
            y=14,
            text_anchor="middle",
            class_="odd" if n % 2 else None,
        )
        for n, tick in enumerate(ticks)
    ]
    footer = h.div(h.span(), h.svg(axis_labels, class_="area", width="100%", height=20, aria_hidden="true"))
    # Rows begin where the language does; the time within them runs from left to right in Arabic, too (plots.css).
    period_label = h.span(format_period(view, time_scale), class_="plot-unit")
    return chart_figure("timeline", title, h.div(row_elements, footer, class_="rows"), legend=period_label)


def _render_track(
    view: ChartView, spans: Sequence[TimelineSpan], time_scale: AxisScale, ticks: Sequence[float]
) -> Html:
    lane_spans = list(_assign_lanes(spans, time_scale.high))
    track_height = _LANE_HEIGHT * (1 + max(lane for lane, _ in lane_spans))
    grid_lines = [
        h.line(x1=format_percentage(time_scale.at(tick)), x2=format_percentage(time_scale.at(tick)), y1=0, y2="100%")
        for tick in ticks
    ]
    bars = [_render_bar(view, span, lane, time_scale) for lane, span in lane_spans]
    return h.svg(
        h.g(grid_lines, class_="grid"),
        bars,
        class_="area",
        width="100%",
        height=track_height,
        role="group",
        aria_label=spans[0].row,
    )


def _assign_lanes(spans: Sequence[TimelineSpan], default_end: float) -> Iterable[tuple[int, TimelineSpan]]:
    lane_ends: list[float] = []
    for span in sorted(spans, key=lambda lane_span: lane_span.start):
        lane = next((n for n, lane_end in enumerate(lane_ends) if lane_end <= span.start), len(lane_ends))
        lane_ends[lane : lane + 1] = [default_end if span.end is None else span.end]
        yield lane, span


def _render_bar(view: ChartView, span: TimelineSpan, lane: int, time_scale: AxisScale) -> Html:
    start_fraction = time_scale.at(span.start)
    end = time_scale.high if (real_end := to_drawable_number(span.end)) is None else real_end
    bar_width = max(0.0, time_scale.at(max(span.start, end)) - start_fraction)
    y, tone_name = lane * _LANE_HEIGHT + 3, get_tone(span.state)
    scale_length = time_scale.high - time_scale.low
    description = describe_mark(
        view,
        span.name,
        f"{format_tick_time(view, span.start, scale_length)} \u2013 {format_tick_time(view, end, scale_length)}",
        state=span.state,
    )
    label = h.svg(
        h.text(f"{STATE_SIGNS[tone_name]} {to_plain_text(span.name)}", x=6, y=13),
        x=format_percentage(start_fraction),
        y=y,
        width=format_percentage(bar_width),
        height=_LANE_HEIGHT - 6,
        aria_hidden="true",
    )
    body = (
        h.title(description),
        h.rect(
            x=format_percentage(start_fraction),
            y=y,
            width=format_percentage(bar_width),
            height=_LANE_HEIGHT - 6,
            rx=3,
            class_="fill",
        ),
        label,
    )
    if span.link:
        return h.a(body, href=span.link, class_=f"span t-{tone_name or 'none'}")
    return h.g(body, class_=f"span t-{tone_name or 'none'}")

"""Timelines: what ran when, a row for each thing and a bar for each time it ran."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from falaj.console.markup import Html, h
from falaj.console.plots.scale import Scale, Seer, moment, period, real, scale
from falaj.console.plots.shell import SIGNS, figure, nothing, pct, plain, said
from falaj.console.states import tone

_LANE = 24
MOST = 1000


@dataclass(frozen=True, slots=True)
class Span:
    """A time in a row, from `start` to `end` (seconds since 1970; None: it still goes on)."""

    row: str
    name: str
    start: float
    end: float | None
    state: str
    link: str = ""


def timeline(view: Seer, spans: Sequence[Span], *, title: str) -> Html:
    """Rows in the order they first come; spans of a row that overlap lie below each other."""
    known = [span for span in spans if real(span.start) is not None][:MOST]
    if not known:
        return nothing(view, "timeline", title)
    across = scale((t for span in known for t in (span.start, span.end)), time=True)
    marks = across.ticks(6)
    rows: dict[str, list[Span]] = {}
    for span in known:
        rows.setdefault(span.row, []).append(span)
    lines = [
        h.div(h.bdi(row, class_="row-name", title=row), _track(view, of, across, marks)) for row, of in rows.items()
    ]
    axis = [
        h.text(moment(view, m, across.high - across.low), x=pct(across.at(m)), y=14, text_anchor="middle",
               class_="odd" if n % 2 else None)
        for n, m in enumerate(marks)
    ]  # fmt: skip
    foot = h.div(h.span(), h.svg(axis, class_="area", width="100%", height=20, aria_hidden="true"))
    # Rows begin where the language does; the time within them runs from left to right in Arabic, too (plots.css).
    when = h.span(period(view, across), class_="plot-unit")
    return figure("timeline", title, h.div(lines, foot, class_="rows"), legend=when)


def _track(view: Seer, spans: Sequence[Span], across: Scale, marks: Sequence[float]) -> Html:
    lanes = list(_lanes(spans, across.high))
    tall = _LANE * (1 + max(lane for lane, _ in lanes))
    grid = [h.line(x1=pct(across.at(m)), x2=pct(across.at(m)), y1=0, y2="100%") for m in marks]
    bars = [_bar(view, span, lane, across) for lane, span in lanes]
    return h.svg(
        h.g(grid, class_="grid"), bars, class_="area", width="100%", height=tall, role="group", aria_label=spans[0].row
    )


def _lanes(spans: Sequence[Span], latest: float) -> Iterable[tuple[int, Span]]:
    free: list[float] = []
    for span in sorted(spans, key=lambda s: s.start):
        lane = next((n for n, until in enumerate(free) if until <= span.start), len(free))
        free[lane : lane + 1] = [latest if span.end is None else span.end]
        yield lane, span


def _bar(view: Seer, span: Span, lane: int, across: Scale) -> Html:
    begin = across.at(span.start)
    end = across.high if (known := real(span.end)) is None else known
    wide = max(0.0, across.at(max(span.start, end)) - begin)
    top, shown = lane * _LANE + 3, tone(span.state)
    length = across.high - across.low
    spoken = said(
        view, span.name, f"{moment(view, span.start, length)} \u2013 {moment(view, end, length)}", state=span.state
    )
    label = h.svg(
        h.text(f"{SIGNS[shown]} {plain(span.name)}", x=6, y=13),
        x=pct(begin),
        y=top,
        width=pct(wide),
        height=_LANE - 6,
        aria_hidden="true",
    )
    body = (h.title(spoken), h.rect(x=pct(begin), y=top, width=pct(wide), height=_LANE - 6, rx=3, class_="fill"), label)
    if span.link:
        return h.a(body, href=span.link, class_=f"span t-{shown or 'none'}")
    return h.g(body, class_=f"span t-{shown or 'none'}")

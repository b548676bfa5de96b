"""Heat: a table whose cells say by their shade, and in words, how much there is."""

from collections.abc import Sequence
from typing import TypedDict, Unpack

from falaj.console.markup import Html, h
from falaj.console.plots.scale import Seer, real, short
from falaj.console.plots.shell import figure, nothing, plain
from falaj.console.writing import NOTHING

_SHADES = 8
_WORDED = 16


class Shading(TypedDict, total=False):
    """Which values are palest and darkest, and an address for each cell (empty for none)."""

    low: float
    high: float
    links: Sequence[str]


def heat(
    view: Seer,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[float | None],
    *,
    title: str,
    **shading: Unpack[Shading],
) -> Html:
    """Cells by row and column, `values` and `links` row by row; None is no data. Without ends they are 0 and 1."""
    low, high, links = shading.get("low", 0.0), shading.get("high", 1.0), shading.get("links", ())
    if not rows or not columns:
        return nothing(view, "heat", title)
    wordy = len(columns) <= _WORDED
    step = (high - low) / 10 if high > low else 0.0
    head = h.tr(h.td(), [h.th(h.bdi(c), scope="col", title=c) for c in columns])
    body = []
    for r, row in enumerate(rows):
        cells = []
        for n, column in enumerate(columns, start=r * len(columns)):
            value = real(values[n]) if n < len(values) else None
            written = NOTHING if value is None else short(view, value, step)
            spoken = f"{plain(row)} · {plain(column)}: {written}"
            inner = written if wordy else h.span(written, class_="unseen")
            link = links[n] if n < len(links) else ""
            cells.append(h.td(h.a(inner, href=link) if link else inner, class_=_shade(value, low, high), title=spoken))
        body.append(h.tr(h.th(h.bdi(row), scope="row", title=row), cells))
    table = h.table(h.thead(head), h.tbody(body), class_="heat wordy" if wordy else "heat dense", aria_label=title)
    scale = h.span(
        h.span(short(view, low)), [h.i(class_=f"q{n}") for n in range(_SHADES)], h.span(short(view, high)),
        class_="heat-key", aria_hidden="true",
    )  # fmt: skip
    box = h.div(table, class_="plot-scroll", tabindex=0, role="region", aria_label=title)
    return figure("heat", title, box, legend=scale)


def _shade(value: float | None, low: float, high: float) -> str:
    if value is None:
        return "qn"
    share = (value - low) / (high - low) if high > low else 0.5
    return f"q{int(max(0.0, min(0.999, share)) * _SHADES)}"

"""What every plot has around it: a figure with its title and legend, words for nothing to show, tones of states."""

from collections.abc import Sequence
from html import unescape
from unicodedata import east_asian_width

from falaj.console.markup import EMPTY, Html, h
from falaj.console.plots.axis_scales import ChartView

# A state has a colour by its tone and a sign by its shape, so that it is never told by colour alone.
STATE_SIGNS = {"good": "✓", "busy": "▸", "wait": "◦", "warn": "!", "bad": "✕", "": "·"}


def to_plain_text(label: str) -> str:
    """Words that may already be markup, as text again: what is put together here is escaped where it is used."""
    return unescape(label) if isinstance(label, Html) else label


def describe_mark(view: ChartView, *parts: str, state: str = "") -> str:
    """What a mark is, for those who point at it and those who hear it."""
    all_parts = (*map(to_plain_text, parts), to_plain_text(view.t.of("console.state", state)) if state else "")
    return " · ".join(part for part in all_parts if part)


def chart_figure(kind: str, title: str, *body: object, legend: Html = EMPTY) -> Html:
    """A plot with its caption. Its `data-key` lets the browser keep a zoom when the page around it is renewed."""
    caption = h.figcaption(h.span(title, class_="plot-title"), legend, class_="plot-head")
    return h.figure(
        caption, *body, class_=f"plot plot-{kind}", data_plot=kind, data_key=f"{kind} {to_plain_text(title)}"[:200]
    )


def empty_chart(view: ChartView, kind: str, title: str) -> Html:
    """What stands where a plot would, when there is nothing to draw."""
    return chart_figure(kind, title, h.p(view.t("plots.none"), class_="plot-none"))


def chart_legend(names: Sequence[str]) -> Html:
    """A button for each series, which shows and hides it."""
    return h.ul([h.li(_render_entry(i, name)) for i, name in enumerate(names)], class_="plot-legend")


def _render_entry(index: int, name: str) -> Html:
    swatch = h.svg(h.line(x1=0, x2=22, y1=5, y2=5, class_="stroke"), width=22, height=10, aria_hidden="true")
    return h.button(
        swatch, h.bdi(name), type="button", class_=get_series_class(index), data_series=index, aria_pressed="true"
    )


def get_series_class(index: int) -> str:
    """Colour and dash of the n-th series: past eight, colours come again with other dashes."""
    return f"s{index % 8} d{(index + index // 8) % 8}"


def horizontal_grid(labels: Sequence[str], ys: Sequence[float], height: int) -> tuple[Html, Html]:
    """Lines across at these heights, and the column with their words."""
    label_attributes = {"x": "100%", "dx": -8, "dy": ".32em", "text_anchor": "end"}
    axis_labels = [
        h.text(label, y=format_coordinate(y), **label_attributes) for label, y in zip(labels, ys, strict=True)
    ]
    axis_width = 14 + 7 * max(map(len, labels), default=0)
    grid_lines = h.g(
        [h.line(x1=0, x2="100%", y1=format_coordinate(y), y2=format_coordinate(y)) for y in ys], class_="grid"
    )
    return grid_lines, h.svg(axis_labels, class_="side", width=axis_width, height=height, aria_hidden="true")


def truncate_middle(name: str, max_width: float) -> str:
    """A name that fits `max_width` characters of middle width, cut in its middle where its ends tell it apart."""
    name = to_plain_text(name)
    if estimate_width(name) <= max_width:
        return name
    tail = 0 if max_width < 12 else int(max_width * 0.3)
    head = name
    while head and estimate_width(head) > max_width - tail - 1:
        head = head[:-1]
    return f"{head}…{name[len(name) - tail :] if tail else ''}"


def estimate_width(name: str) -> float:
    """About how many characters of middle width a name is wide."""
    return sum(
        2.0 if east_asian_width(character) in "WF" else 1.25 if character.isupper() else 1.0 for character in name
    )


def format_percentage(fraction: float) -> str:
    """A share as a percentage with two decimals at most, held to what is on the plot."""
    return f"{max(-1.0, min(2.0, fraction)) * 100:.2f}".rstrip("0").rstrip(".") + "%"


def format_coordinate(value: float) -> str:
    """A coordinate with one decimal at most."""
    return f"{value:.1f}".removesuffix(".0")

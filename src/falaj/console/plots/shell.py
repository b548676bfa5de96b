"""What every plot has around it: a figure with its title and legend, words for nothing to show, tones of states."""

from collections.abc import Sequence
from html import unescape
from unicodedata import east_asian_width

from falaj.console.markup import EMPTY, Html, h
from falaj.console.plots.scale import Seer

# A state has a colour by its tone and a sign by its shape, so that it is never told by colour alone.
SIGNS = {"good": "✓", "busy": "▸", "wait": "◦", "warn": "!", "bad": "✕", "": "·"}


def plain(words: str) -> str:
    """Words that may already be markup, as text again: what is put together here is escaped where it is used."""
    return unescape(words) if isinstance(words, Html) else words


def said(view: Seer, *parts: str, state: str = "") -> str:
    """What a mark is, for those who point at it and those who hear it."""
    every = (*map(plain, parts), plain(view.t.of("console.state", state)) if state else "")
    return " · ".join(part for part in every if part)


def figure(kind: str, title: str, *body: object, legend: Html = EMPTY) -> Html:
    """A plot with its caption. Its `data-key` lets the browser keep a zoom when the page around it is renewed."""
    head = h.figcaption(h.span(title, class_="plot-title"), legend, class_="plot-head")
    return h.figure(head, *body, class_=f"plot plot-{kind}", data_plot=kind, data_key=f"{kind} {plain(title)}"[:200])


def nothing(view: Seer, kind: str, title: str) -> Html:
    """What stands where a plot would, when there is nothing to draw."""
    return figure(kind, title, h.p(view.t("plots.none"), class_="plot-none"))


def legend(names: Sequence[str]) -> Html:
    """A button for each series, which shows and hides it."""
    return h.ul([h.li(_entry(i, name)) for i, name in enumerate(names)], class_="plot-legend")


def _entry(index: int, name: str) -> Html:
    swatch = h.svg(h.line(x1=0, x2=22, y1=5, y2=5, class_="stroke"), width=22, height=10, aria_hidden="true")
    return h.button(swatch, h.bdi(name), type="button", class_=look(index), data_series=index, aria_pressed="true")


def look(index: int) -> str:
    """Colour and dash of the n-th series: past eight, colours come again with other dashes."""
    return f"s{index % 8} d{(index + index // 8) % 8}"


def levels(words: Sequence[str], ys: Sequence[float], height: int) -> tuple[Html, Html]:
    """Lines across at these heights, and the column with their words."""
    beside = {"x": "100%", "dx": -8, "dy": ".32em", "text_anchor": "end"}
    side = [h.text(word, y=fix(at), **beside) for word, at in zip(words, ys, strict=True)]
    wide = 14 + 7 * max(map(len, words), default=0)
    grid = h.g([h.line(x1=0, x2="100%", y1=fix(at), y2=fix(at)) for at in ys], class_="grid")
    return grid, h.svg(side, class_="side", width=wide, height=height, aria_hidden="true")


def cut(name: str, room: float) -> str:
    """A name that fits `room` characters of middle width, cut in its middle where its ends tell it apart."""
    name = plain(name)
    if width(name) <= room:
        return name
    tail = 0 if room < 12 else int(room * 0.3)
    head = name
    while head and width(head) > room - tail - 1:
        head = head[:-1]
    return f"{head}…{name[len(name) - tail :] if tail else ''}"


def width(name: str) -> float:
    """About how many characters of middle width a name is wide."""
    return sum(2.0 if east_asian_width(c) in "WF" else 1.25 if c.isupper() else 1.0 for c in name)


def pct(fraction: float) -> str:
    """A share as a percentage with two decimals at most, held to what is on the plot."""
    return f"{max(-1.0, min(2.0, fraction)) * 100:.2f}".rstrip("0").rstrip(".") + "%"


def fix(value: float) -> str:
    """A coordinate with one decimal at most."""
    return f"{value:.1f}".removesuffix(".0")

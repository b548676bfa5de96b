"""Amounts: horizontal bars, one bar of shares, and a histogram beside another."""

import math
from collections.abc import Sequence

from falaj.console.markup import EMPTY, Html, h
from falaj.console.plots.scale import Seer, real, scale, short
from falaj.console.plots.shell import SIGNS, figure, fix, levels, look, nothing, pct, plain
from falaj.console.states import tone
from falaj.console.writing import number

_TALL = 160


def bars(view: Seer, items: Sequence[tuple[str, float]], *, title: str, unit: str = "") -> Html:
    """A bar for each item, the longest as wide as there is room; what is below zero is hatched."""
    known = [(name, real(value)) for name, value in items]
    if not known:
        return nothing(view, "bars", title)
    most = max((abs(v) for _, v in known if v is not None), default=0.0) or 1.0
    rows = [
        h.li(
            h.bdi(name, class_="name", title=name),
            _bar(view, abs(v or 0.0) / most, (v or 0.0) < 0),
            _much(view, v, unit),
        )
        for name, v in known
    ]
    return figure("bars", title, h.ul(rows, class_="bar-list", aria_label=title))


def _bar(view: Seer, share: float, below: bool) -> Html:
    rect = h.rect(x=pct(1 - share) if view.rtl else 0, width=pct(share), height="100%", rx=2, class_="fill")
    return h.svg(rect, class_="bar s1 below" if below else "bar s0", width="100%", height=12, aria_hidden="true")


def _much(view: Seer, value: float | None, unit: str = "") -> Html:
    return h.bdi(number(view.t, value), unit and f" {unit}", class_="n", dir="ltr")


def shares(view: Seer, parts: Sequence[tuple[str, float, str]], *, title: str) -> Html:
    """One bar cut into parts. A part is its name, its amount and a word on it: a state, or any note."""
    known = [(name, max(0.0, real(amount) or 0.0), note) for name, amount, note in parts]
    total = sum(amount for _, amount, _ in known)
    if total <= 0 or math.isinf(total):
        return nothing(view, "shares", title)
    cells, entries, begun = [], [], 0.0
    for index, (name, amount, note) in enumerate(known):
        share = amount / total
        at = 1 - begun - share if view.rtl else begun
        part = _percent(view, share, 0.01)
        cells.append(_cell(f"{plain(name)}: {part}", at, share, _dress(index, note)))
        entries.append(_part(name, (part, number(view.t, amount)), note, _dress(index, note)))
        begun += share
    bar = h.svg(cells, class_="share-bar", width="100%", height=20, role="img", aria_label=title)
    return figure("shares", title, bar, h.ul(entries, class_="share-list"))


def _percent(view: Seer, share: float, step: float = 0.0) -> str:
    return short(view, 100 * share, 100 * step) + view.t.digits("%")


def _dress(index: int, note: str) -> str:
    """The colour of a state, else of the series; the dash tells parts apart without it."""
    return f"t-{tone(note)} {look(index).split()[1]}" if tone(note) else look(index)


def _cell(spoken: str, at: float, share: float, dress: str) -> Html:
    return h.g(
        h.title(spoken),
        h.rect(x=pct(at), width=pct(share), height="100%", class_="fill"),
        h.line(x1=pct(at), x2=pct(at + share), y1="50%", y2="50%", class_="weave"),
        class_=dress,
    )


def _part(name: str, written: tuple[str, str], note: str, dress: str) -> Html:
    swatch = h.svg(_cell("", 0.0, 1.0, dress), width=20, height=12, aria_hidden="true", class_="swatch")
    return h.li(
        swatch, h.bdi(name, class_="name"), h.bdi(written[0], class_="n", dir="ltr"),
        h.span(written[1], class_="n quiet"),
        note and h.span(f"{SIGNS[tone(note)]} {plain(note)}" if tone(note) else note, class_="quiet"),
    )  # fmt: skip


def histogram(
    view: Seer, edges: Sequence[float], counts: Sequence[float], *, title: str, then: Sequence[float] = ()
) -> Html:
    """How often each range came. With `then` (another time's counts, drawn paler) both are shares of their own total.
    Every range is as wide as the others, and its ends are written: quantiles and powers read as well as even steps."""
    now, before = ([max(0.0, real(v) or 0.0) for v in some[: max(0, len(edges) - 1)]] for some in (counts, then))
    if not now or max(now + before) <= 0:
        return nothing(view, "histogram", title)
    if any(before):
        now, before = (_shares(some) for some in (now, before))
    up = scale((0.0, *now, *before), rounded=True)
    marks = up.ticks()
    heights = [6 + _TALL - _TALL * up.at(mark) for mark in marks]
    step = marks[1] - marks[0] if len(marks) > 1 else 0.0
    paired = any(before)
    grid, side = levels([_written(view, paired, mark, step) for mark in marks], heights, _TALL + 30)
    bins = [_bin(view, edges, n, (value, up.at(value)), (kind, len(now), paired))
            for kind, some in enumerate((now, before)) for n, value in enumerate(some[: len(now)])]  # fmt: skip
    area = h.svg(
        grid, bins, _ends(view, edges, len(now)),
        class_="area s0", width="100%", height=_TALL + 30, role="img", aria_label=title,
    )  # fmt: skip
    kinds = [_kind("now", view.t("plots.now")), _kind("then", view.t("plots.then"))]
    known = h.ul(kinds, class_="plot-legend") if paired else EMPTY
    return figure("histogram", title, h.div(side, area, class_="plot-box", dir="ltr"), legend=known)


def _shares(some: Sequence[float]) -> list[float]:
    most = max(some) or 1.0  # first by the largest: a sum of huge values would not be finite
    total = sum(v / most for v in some) or 1.0
    return [v / most / total for v in some]


def _written(view: Seer, paired: bool, value: float, step: float) -> str:
    return _percent(view, value, step) if paired else short(view, value, step)


def _kind(kind: str, name: str) -> Html:
    mark = h.svg(h.rect(x=1, y=1, width=10, height=10, class_=f"fill {kind}"), width=12, height=12, aria_hidden="true")
    return h.li(h.span(mark, name, class_="s0 entry"))


def _bin(
    view: Seer, edges: Sequence[float], n: int, measured: tuple[float, float], among: tuple[int, int, bool]
) -> Html:
    (value, share), (kind, bins, paired) = measured, among
    thick, shift = (0.42, 0.06 + 0.46 * kind) if paired else (0.94, 0.03)
    spoken = f"{_edge(view, edges[n])} \u2013 {_edge(view, edges[n + 1])}: {_written(view, paired, value, 0.0)}"
    return h.rect(
        h.title(spoken), x=pct((n + shift) / bins), width=pct(thick / bins), y=fix(6 + _TALL * (1 - share)),
        height=fix(_TALL * share), class_="fill then" if kind else "fill now",
    )  # fmt: skip


def _edge(view: Seer, value: float) -> str:
    if math.isnan(value):
        return "?"
    return ("∞" if value > 0 else "-∞") if math.isinf(value) else short(view, value)


def _ends(view: Seer, edges: Sequence[float], bins: int) -> list[Html]:
    every = max(1, math.ceil(bins / 6))
    return [
        h.text(_edge(view, edges[n]), x=pct(n / bins), y=_TALL + 22, class_="odd" if (n // every) % 2 else None,
               text_anchor="start" if n == 0 else "end" if n == bins else "middle")
        for n in range(0, bins + 1, every)
    ]  # fmt: skip

"""Amounts: horizontal bars, one bar of shares, and a histogram beside another."""

import math
from collections.abc import Sequence

from falaj.console.markup import Html, h
from falaj.console.plots.scale import Seer, real, scale, short
from falaj.console.plots.shell import SIGNS, figure, fix, look, nothing, pct, tone
from falaj.console.writing import NOTHING

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
    return h.span(NOTHING if value is None else short(view, value), unit and f" {unit}", class_="n")


def shares(view: Seer, parts: Sequence[tuple[str, float, str]], *, title: str) -> Html:
    """One bar cut into parts. A part is its name, its amount and a word on it: a state, or any note."""
    known = [(name, max(0.0, real(amount) or 0.0), note) for name, amount, note in parts]
    total = sum(amount for _, amount, _ in known)
    if total <= 0 or math.isinf(total):
        return nothing(view, "shares", title)
    cells, entries, begun = [], [], 0.0
    for index, (name, amount, note) in enumerate(known):
        share, dress = amount / total, _dress(index, note)
        said = f"{name}: {short(view, amount)} ({short(view, 100 * share, 1.0)}%)"
        at = 1 - begun - share if view.rtl else begun
        cells.append(h.rect(h.title(said), x=pct(at), width=pct(share), height="100%", class_=f"fill {dress}"))
        entries.append(_part(view, name, amount, share, note, dress))
        begun += share
    bar = h.svg(cells, class_="share-bar", width="100%", height=18, role="img", aria_label=title)
    return figure("shares", title, bar, h.ul(entries, class_="share-list"))


def _dress(index: int, note: str) -> str:
    return f"t-{tone(note)}" if tone(note) else look(index)


def _part(view: Seer, name: str, amount: float, share: float, note: str, dress: str) -> Html:
    swatch = h.svg(
        h.rect(width=10, height=10, rx=2, class_="fill"), width=10, height=10, aria_hidden="true", class_=dress
    )
    sign = SIGNS.get(tone(note), "")
    return h.li(
        swatch, h.bdi(name, class_="name"), h.span(f"{short(view, 100 * share, 1.0)}%", class_="n"),
        h.span(short(view, amount), class_="n quiet"), note and h.span(f"{sign} {note}".strip(), class_="quiet"),
    )  # fmt: skip


def histogram(
    view: Seer, edges: Sequence[float], counts: Sequence[float], *, title: str, then: Sequence[float] = ()
) -> Html:
    """How often each range came. With `then` (another time's counts, drawn paler) both are shares of their own total.
    Every range is as wide as the others, and its ends are written: quantiles and powers read as well as even steps."""
    now, before = ([max(0.0, real(v) or 0.0) for v in some[: len(edges) - 1]] for some in (counts, then))
    if not now or sum(now) + sum(before) <= 0:
        return nothing(view, "histogram", title)
    if before:
        now, before = ([v / (sum(some) or 1.0) for v in some] for some in (now, before))
    up = scale((0.0, *now, *before), rounded=True)
    each = 1 / len(now)
    bins = []
    for kind, some in enumerate((now, before)):
        thick, shift = (0.42, 0.06 + 0.44 * kind) if before else (0.92, 0.04)
        for n, value in enumerate(some[: len(now)]):
            tall = _TALL * up.at(value)
            said = _range(view, edges, n) + (f"{short(view, 100 * value)}%" if before else short(view, value))
            bins.append(
                h.rect(
                    h.title(said), x=pct((n + shift) * each), width=pct(thick * each), y=fix(6 + _TALL - tall),
                    height=fix(tall), class_="fill then" if kind else "fill now",
                )
            )  # fmt: skip
    area = h.svg(
        h.g(_levels(up.ticks(4), up.high), class_="grid"), bins, _ends(view, edges, len(now)),
        class_="area s0", width="100%", height=_TALL + 30, role="img", aria_label=title,
    )  # fmt: skip
    marks = up.ticks(4)
    side = [
        h.text(f"{short(view, 100 * m)}%" if before else up.label(view, m, marks), x="100%", dx=-8, dy=".32em",
               y=fix(6 + _TALL - _TALL * up.at(m)), text_anchor="end")
        for m in marks
    ]  # fmt: skip
    gutter = h.svg(side, class_="side", width=50, height=_TALL + 30, aria_hidden="true")
    return figure("histogram", title, h.div(gutter, area, class_="plot-box", dir="ltr"))


def _levels(marks: Sequence[float], high: float) -> list[Html]:
    return [
        h.line(x1=0, x2="100%", y1=fix(6 + _TALL * (1 - m / high)), y2=fix(6 + _TALL * (1 - m / high))) for m in marks
    ]


def _range(view: Seer, edges: Sequence[float], n: int) -> str:
    return f"{_edge(view, edges[n])} \u2013 {_edge(view, edges[n + 1])}: "


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

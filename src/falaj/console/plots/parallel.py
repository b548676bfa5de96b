"""Parallel coordinates: an upright axis for each parameter and metric, a line across them for each run."""

from collections.abc import Sequence
from dataclasses import dataclass

from falaj.console.markup import Html, h
from falaj.console.plots.scale import Scale, Seer, real, scale
from falaj.console.plots.shell import cut, figure, fix, nothing, pct

MOST = 1000
_WIDE, _TALL, _TOP, _SHADES, _FEW = 1000, 240, 34, 8, 60


@dataclass(frozen=True, slots=True)
class Axis:
    """An upright axis; with `choices` its values are words, in that order from below."""

    name: str
    log: bool = False
    choices: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """A run: a value (number or word) for each axis; None where it has none."""

    id: str
    name: str
    values: Sequence[float | str | None]
    link: str = ""


def parallel(view: Seer, axes: Sequence[Axis], lines: Sequence[Line], *, title: str) -> Html:
    """Lines shaded by the last axis. Drag on an axis to choose a range: the ids of the lines within go to the hidden
    input `brushed` and into an event `falaj:brushed`."""
    if not axes or not lines:
        return nothing(view, "parallel", title)
    shown = lines[:MOST]
    scales = [_scale(axis, [line.values[n] for line in shown if n < len(line.values)]) for n, axis in enumerate(axes)]
    # An axis in the middle of its column leaves room for its words on both sides.
    places = [(n + 0.5) / len(axes) for n in range(len(axes))]
    plane = h.svg(
        [_drawn(line, axes, scales, places) for line in shown], class_="plane few" if len(shown) <= _FEW else "plane",
        y=_TOP, width="100%", height=_TALL,
        viewBox=f"0 0 {_WIDE} {_TALL}", preserveAspectRatio="none",
    )  # fmt: skip
    uprights = [_upright(view, *each) for each in zip(range(len(axes)), axes, scales, places, strict=True)]
    area = h.svg(plane, uprights, class_="area", width="100%", height=_TOP + _TALL + 12, role="group", aria_label=title)
    box = h.div(h.div(area, class_=f"plot-box axes-{min(len(axes), 16)}", dir="ltr"), class_="plot-scroll", tabindex=0,
                role="region", aria_label=title)  # fmt: skip
    more = len(lines) > MOST and h.p(view.t("plots.more", shown=MOST, all=len(lines)), class_="plot-unit")
    hidden = h.input(type="hidden", name="brushed", value="")
    return figure("parallel", title, box, more, hidden, h.output(class_="plot-out", data_chosen=view.t("plots.chosen")))


def _scale(axis: Axis, values: Sequence[float | str | None]) -> Scale:
    if axis.choices:
        return Scale(-0.5, len(axis.choices) - 0.5) if len(axis.choices) > 1 else Scale(-1.0, 1.0)
    return scale((v for v in values if not isinstance(v, str)), log=axis.log)


def _level(axis: Axis, on: Scale, value: float | str | None) -> float | None:
    """0 below, 1 above; None where a value has no place."""
    if isinstance(value, str):
        return on.at(axis.choices.index(value)) if value in axis.choices else None
    known = real(value)
    return None if known is None or axis.choices or (on.log and known <= 1e-300) else on.at(known)


def _drawn(line: Line, axes: Sequence[Axis], scales: Sequence[Scale], places: Sequence[float]) -> Html:
    levels = [_level(a, s, v) for a, s, v in zip(axes, scales, line.values, strict=False)]
    dots = [(_WIDE * p, _TALL * (1 - at)) for p, at in zip(places, levels, strict=False) if at is not None]
    last = levels[-1] if len(levels) == len(axes) else None
    shade = "pn" if last is None else f"p{max(0, min(_SHADES - 1, int(last * _SHADES)))}"
    return h.path(
        d="M" + " ".join(f"{fix(x)},{fix(y)}" for x, y in dots) if dots else "M0,0", class_=f"run {shade}",
        data_id=line.id, data_name=line.name, data_link=line.link or None,
        data_at=",".join("" if at is None else f"{at:.3f}" for at in levels),
    )  # fmt: skip


def _upright(view: Seer, index: int, axis: Axis, on: Scale, place: float) -> Html:
    marks = [float(n) for n in range(len(axis.choices))] if axis.choices else on.ticks(5)
    written = [cut(c, 12) for c in axis.choices] if axis.choices else [on.label(view, m, marks) for m in marks]
    at = pct(place)
    labels = [
        h.text(word, x=at, dx=7, y=fix(_TOP + _TALL * (1 - on.at(m))), dy=".32em")
        for m, word in zip(marks, written, strict=True)
    ]
    name = h.text(h.title(axis.name), cut(axis.name, 16), x=at, y=16, text_anchor="middle", class_="axis-name")
    pole = h.line(x1=at, x2=at, y1=_TOP, y2=_TOP + _TALL)
    return h.g(
        pole,
        labels,
        name,
        class_="upright",
        tabindex=0,
        role="group",
        aria_label=axis.name,
        data_axis=index,
        data_x=f"{place:.4f}",
        data_name=axis.name,
    )

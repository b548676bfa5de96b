"""Curves: one or more series over steps or time, with bands where points were folded; `spark` is a small one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.plots.scale import TIME, Scale, Seer, period, real, scale, short
from falaj.console.plots.shell import figure, legend, levels, look, nothing, pct, plain
from falaj.console.writing import NOTHING

WIDE = 1000
# Points of a curve, of all curves, and curves: what a browser gets at most.
MOST, ALL, CURVES = 2000, 16_000, 64
_Point = tuple[float, float | None, float | None, float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """A curve; `low` and `high` are the smallest and largest value where each point stands for many."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()


def line(
    view: Seer,
    series: Sequence[Series],
    *,
    title: str,
    x: str = "",
    y: str = "",
    log_y: bool = False,
    height: int = 260,
) -> Html:
    """Curves over a common axis. `x=TIME` says that xs are seconds since 1970. Gaps are values that are no numbers.
    Inside an element with `data-refetch` a zoom asks the server for the range (`from`, `to` in the address)."""
    given, series = len(series), series[:CURVES]
    drawn = [_points(one, log_y, min(MOST, ALL // len(series))) for one in series]
    if not any(point[1] is not None for points in drawn for point in points):
        return nothing(view, "line", title)
    across = scale((p[0] for points in drawn for p in points), time=x == TIME)
    up = scale((v for points in drawn for p in points for v in p[1:]), log=log_y, rounded=True)
    tall = height - (42 if x and x != TIME else 26)
    planes = [_drawn(i, one, drawn, across, up, tall) for i, one in enumerate(series)]
    marks = up.ticks()
    heights = [6 + tall - tall * up.at(mark) for mark in marks]
    grid, side = levels([up.label(view, mark, marks) for mark in marks], heights, height)
    plane = h.svg(
        planes, class_="plane", y=6, width="100%", height=tall, viewBox=f"0 0 {WIDE} {tall}", preserveAspectRatio="none"
    )
    area = h.svg(
        grid, h.g(_columns(view, across, tall), class_="ticks"), plane,
        x not in ("", TIME) and h.text(x, x="50%", y=height - 4, text_anchor="middle", class_="axis-name"),
        class_="area", width="100%", height=height, role="img", tabindex=0,
        aria_label=_said(view, title, series, drawn), aria_keyshortcuts="ArrowLeft ArrowRight Home End Escape",
    )  # fmt: skip
    # Time and numbers run from left to right in Arabic, too: curves are read as in every other tool.
    box = h.div(side, area, class_="plot-box", dir="ltr", **_scales(across, up, tall))
    known = legend([one.name for one in series]) if len(series) > 1 or series[0].name not in ("", title) else EMPTY
    notes = [h.span(note, class_="plot-unit") for note in (y, period(view, across) if x == TIME else "") if note]
    more = given > CURVES and h.p(view.t("plots.more", shown=CURVES, all=given), class_="plot-unit")
    return figure("line", title, box, more, h.output(class_="plot-out"), legend=join(notes, known))


def spark(view: Seer, ys: Sequence[float | None], *, title: str) -> Html:
    """A curve as small as a word."""
    points = _fold([(float(i), real(v), None, None) for i, v in enumerate(ys)], 200)
    if not any(p[1] is not None for p in points):
        return h.span(NOTHING, class_="spark none", title=title)
    across, up = scale(p[0] for p in points), scale(p[1] for p in points)
    last = next(p[1] for p in reversed(points) if p[1] is not None)
    place = [(2 + 96 * across.at(p[0]), None if p[1] is None else 22 - 20 * up.at(p[1])) for p in points]
    way, dots = _path(place)
    return h.svg(
        h.path(d=way, class_="stroke") if way else None, h.path(d=dots, class_="lone") if dots else None,
        class_="spark s0", viewBox="0 0 100 24", preserveAspectRatio="none", role="img",
        aria_label=f"{plain(title)}: {short(view, last)}",
    )  # fmt: skip


def _points(one: Series, log: bool, most: int) -> list[_Point]:
    ys = _levels(one.ys, log)
    bands = len(one.low) == len(one.high) == len(ys)
    low, high = (_levels(some, log) if bands else [None] * len(ys) for some in (one.low, one.high))
    rows = zip(map(real, one.xs), ys, low, high, strict=False)
    kept = [(x, y, under, over) for x, y, under, over in rows if x is not None]
    kept.sort(key=lambda point: point[0])
    return _fold(kept, most)


def _levels(some: Sequence[float | None], log: bool) -> list[float | None]:
    known = [real(v) for v in some]
    return [v if v is not None and v > 1e-300 else None for v in known] if log else known


def _fold(points: list[_Point], most: int) -> list[_Point]:
    """Several points as one with a band, so that no more than `most` are sent."""
    each = -(-len(points) // most)
    if each <= 1:
        return points
    folded: list[_Point] = []
    for start in range(0, len(points), each):
        group = points[start : start + each]
        found = [v for p in group for v in p[1:] if v is not None]
        ys = [p[1] for p in group if p[1] is not None]
        middle = sum(v / len(ys) for v in ys) if ys else None
        folded.append((group[0][0], middle, min(found, default=None), max(found, default=None)))
    return folded


def _drawn(index: int, one: Series, drawn: Sequence[list[_Point]], across: Scale, up: Scale, tall: int) -> Html:
    points = drawn[index]
    xs = [WIDE * across.at(p[0]) for p in points]
    rows = [[v if v is None else tall - tall * up.at(v) for v in (p[k] for p in points)] for k in (1, 2, 3)]
    # Among more curves than there are colours, bands would hide what they surround.
    band = _band(xs, rows[1], rows[2]) if len(drawn) <= 8 else ""
    # Curves of one run have the same steps: they are sent once.
    same = index > 0 and [p[0] for p in points] == [p[0] for p in drawn[0]]
    way, dots = _path(zip(xs, rows[0], strict=True))
    curve = h.path(
        d=way, class_="stroke",
        data_x=None if same else ",".join([f"{p[0] - across.low:.7g}" for p in points]),
        data_y=",".join(["" if p[1] is None else f"{p[1]:.5g}" for p in points]),
    )  # fmt: skip
    shade = h.path(d=band, class_="band") if band else None
    alone = h.path(d=dots, class_="lone") if dots else None
    return h.g(shade, curve, alone, class_=look(index), data_series=index, data_name=one.name or None)


def _path(place: Iterable[tuple[float, float | None]]) -> tuple[str, str]:
    """A line through the places that are there, and dots for those that stand alone."""
    runs: list[list[str]] = [[]]
    for x, y in place:
        if y is None:
            runs += [[]] if runs[-1] else []
        else:
            runs[-1].append(f"{x:.1f},{y:.1f}")
    lines = " ".join("M" + " ".join(run) for run in runs if len(run) > 1)
    return _tidy(lines), _tidy(" ".join(f"M{run[0]}h0" for run in runs if len(run) == 1))


def _tidy(path: str) -> str:
    """Coordinates without a zero behind the point."""
    return f"{path} ".replace(".0,", ",").replace(".0 ", " ").replace(".0h", "h").rstrip()


def _band(xs: Sequence[float], low: Sequence[float | None], high: Sequence[float | None]) -> str:
    both = [(x, a, b) for x, a, b in zip(xs, low, high, strict=True) if a is not None and b is not None]
    if len(both) < 2:
        return ""
    there = " ".join(f"{x:.1f},{b:.1f}" for x, _, b in both)
    back = " ".join(f"{x:.1f},{a:.1f}" for x, a, _ in reversed(both))
    return _tidy(f"M{there} {back}") + "Z"


def _columns(view: Seer, across: Scale, tall: int) -> list[Html]:
    marks = across.ticks(6)
    return [
        h.text(
            across.label(view, m, marks), x=pct(across.at(m)), y=tall + 22, text_anchor="middle",
            class_="odd" if n % 2 else None,
        )
        for n, m in enumerate(marks)
    ]  # fmt: skip


def _scales(across: Scale, up: Scale, tall: int) -> dict[str, object]:
    """What the browser needs to put new marks where a zoom wants them."""
    ends = (across.low, across.high, up.low, up.high)
    return {
        "data_scale": " ".join(f"{v!r}" for v in ends),
        "data_time": across.time,
        "data_log": up.log,
        "data_tall": tall,
    }


def _said(view: Seer, title: str, series: Sequence[Series], drawn: Sequence[list[_Point]]) -> str:
    lasts = [next((p[1] for p in reversed(points) if p[1] is not None), None) for points in drawn]
    ends = [f"{plain(one.name)} {short(view, v)}" for one, v in zip(series, lasts, strict=True) if v is not None]
    return f"{plain(title)}: {', '.join(ends[:8])}"

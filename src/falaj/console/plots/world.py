"""The world: zones where they are, and what may flow between them, on a coarse map; it opens on what is marked."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from falaj.console.markup import Html, h
from falaj.console.plots.graph import zoomer
from falaj.console.plots.land import LAND, SEA
from falaj.console.plots.scale import Seer, real
from falaj.console.plots.shell import SIGNS, cut, figure, nothing, pct, plain, said, width
from falaj.console.states import tone

# The whole map: longitudes from the left, latitudes from above; twice as wide as tall.
_WHOLE = (-170.0, -84.0, 350.0, 145.0)
_LEAST = 9.0
_SHAPE = _WHOLE[2] / _WHOLE[3]
Box = tuple[float, float, float, float]
Spot = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Place:
    """A dot on the map; `plots.places.place_of` knows where countries and emirates are."""

    id: str
    name: str
    longitude: float
    latitude: float
    note: str = ""
    state: str = ""
    link: str = ""


def world(view: Seer, places: Sequence[Place], flows: Sequence[tuple[str, str, str]], *, title: str) -> Html:
    """Places and flows between them: (from id, to id, a word or state). Degrees are distances here (equirectangular):
    true enough for which zone is where."""
    known = [p for p in places if real(p.longitude) is not None and real(p.latitude) is not None]
    if not known:
        return nothing(view, "world", title)
    spots = dict(zip((p.id for p in known), _apart([_spot(p) for p in known]), strict=True))
    box = _around(list(spots.values()))
    arcs = [_arc(spots[a], spots[b], f"{_name(known, a)} → {_name(known, b)}", word)
            for a, b, word in flows if a in spots and b in spots and a != b]  # fmt: skip
    earth = h.svg(
        _ground(), arcs, class_="earth", width="100%", height="100%", viewBox=_written(box),
        preserveAspectRatio="none",
    )  # fmt: skip
    marks = [_mark(view, p, spots[p.id], box, side) for p, side in zip(known, _sides(known, spots, box), strict=True)]
    drawing = h.svg(
        earth, marks, class_="drawing area", width="100%", role="group", aria_label=title,
        data_whole=_written(_WHOLE), data_home=_written(box),
    )  # fmt: skip
    # East is right in every language.
    return figure("world", title, h.div(drawing, class_="map-box", dir="ltr"), legend=zoomer(view))


def _spot(place: Place) -> Spot:
    return max(-170.0, min(180.0, place.longitude)), -max(-61.0, min(84.0, place.latitude))


def _apart(spots: list[Spot]) -> list[Spot]:
    """Places at the very same spot stand in a small circle around it."""
    same: dict[Spot, list[int]] = {}
    for n, spot in enumerate(spots):
        same.setdefault(spot, []).append(n)
    for (x, y), some in same.items():
        for k, n in enumerate(some if len(some) > 1 else ()):
            turn = 2 * math.pi * k / len(some)
            spots[n] = (x + 0.6 * math.cos(turn), y + 0.6 * math.sin(turn))
    return spots


def _around(spots: Sequence[Spot]) -> Box:
    """The part of the map that shows every spot, with room for names."""
    xs, ys = [x for x, _ in spots], [y for _, y in spots]
    wide = max(_LEAST, (max(xs) - min(xs)) * 1.7, (max(ys) - min(ys)) * 1.7 * _SHAPE)
    wide = min(wide, _WHOLE[2])
    tall = wide / _SHAPE
    left = min(max((min(xs) + max(xs) - wide) / 2, _WHOLE[0]), _WHOLE[0] + _WHOLE[2] - wide)
    top = min(max((min(ys) + max(ys) - tall) / 2, _WHOLE[1]), _WHOLE[1] + _WHOLE[3] - tall)
    return left, top, wide, tall


def _written(box: Box) -> str:
    return " ".join(f"{side:.3f}".rstrip("0").rstrip(".") for side in box)


@cache
def _ground() -> Html:
    shape = "".join("M" + " ".join(f"{x:g},{-y:g}" for x, y in outline) + "Z" for outline in LAND)
    water = "M" + " ".join(f"{x:g},{-y:g}" for x, y in SEA) + "Z"
    return Html(h.path(d=shape, class_="land") + h.path(d=water, class_="water"))


def _name(places: Sequence[Place], wanted: str) -> str:
    return plain(next(p.name for p in places if p.id == wanted))


def _arc(a: Spot, b: Spot, ends: str, word: str) -> Html:
    """A bow whose side tells there from back."""
    middle = ((a[0] + b[0]) / 2 + (b[1] - a[1]) * 0.18, (a[1] + b[1]) / 2 - (b[0] - a[0]) * 0.18)
    way = f"M{a[0]:.2f},{a[1]:.2f}Q{middle[0]:.2f},{middle[1]:.2f} {b[0]:.2f},{b[1]:.2f}"
    shown = tone(word)
    return h.path(
        h.title(f"{ends}: {plain(word)}" if word else ends), d=way, class_=f"flow t-{shown}" if shown else "flow"
    )


def _sides(places: Sequence[Place], spots: dict[str, Spot], box: Box) -> list[str]:
    """On which side of its dot each name is written, so that names do not lie on each other."""
    unit = 720 / box[2]  # as on a page of middle width
    at = {key: ((x - box[0]) * unit, (y - box[1]) * unit) for key, (x, y) in spots.items()}
    taken = [(x - 7, y, 14.0) for x, y in at.values()]
    sides = []
    for place in places:
        x, y = at[place.id]
        long = 7.2 * width(cut(place.name, 22)) + 12
        options = {"e": (x + 10, y), "w": (x - 10 - long, y), "n": (x - long / 2, y - 18), "s": (x - long / 2, y + 18)}
        free = [
            s for s, (left, level) in options.items() if 0 < left < 720 - long and not _hit(taken, left, level, long)
        ]
        sides.append(free[0] if free else "")
        if free:
            taken.append((*options[free[0]], long))
    return sides


def _hit(taken: Sequence[tuple[float, float, float]], at: float, level: float, long: float) -> bool:
    return any(abs(level - y) < 14 and at < x + wide and x < at + long for x, y, wide in taken)


def _mark(view: Seer, place: Place, spot: Spot, box: Box, side: str) -> Html:
    shown = tone(place.state)
    spoken = said(view, place.name, place.note, state=place.state)
    dx, dy, anchor = {"e": (10, 4, "start"), "w": (-10, 4, "end"), "n": (0, -11, "middle")}.get(side, (0, 20, "middle"))
    body = (
        h.title(spoken),
        h.circle(r=12, class_="reach"),
        h.circle(r=6, class_="dot"),
        shown and h.text(SIGNS[shown], y=3, text_anchor="middle", class_="sign"),
        h.text(cut(place.name, 22), x=dx, y=dy, text_anchor=anchor, class_="name" if side else "name crowded"),
    )
    inner = h.a(body, href=place.link) if place.link else h.g(body, tabindex=0, role="img", aria_label=spoken)
    at = {"x": pct((spot[0] - box[0]) / box[2]), "y": pct((spot[1] - box[1]) / box[3])}
    return h.svg(inner, class_=f"place t-{shown}" if shown else "place", data_at=f"{spot[0]:g} {spot[1]:g}",
                 overflow="visible", **at)  # fmt: skip

"""The world: zones where they are, and what may flow between them, on a coarse map; it opens on what is marked."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from falaj.console.markup import Html, h
from falaj.console.plots.axis_scales import ChartView, to_drawable_number
from falaj.console.plots.chart_frame import (
    STATE_SIGNS,
    chart_figure,
    describe_mark,
    empty_chart,
    estimate_width,
    format_percentage,
    to_plain_text,
    truncate_middle,
)
from falaj.console.plots.land_outlines import LAND_OUTLINES, SEA_OUTLINE
from falaj.console.plots.node_graph import zoom_buttons
from falaj.console.state_tones import get_tone

# The whole map: longitudes from the left, latitudes from above; twice as wide as tall.
_WORLD_BOX = (-170.0, -84.0, 350.0, 145.0)
_MIN_BOX_WIDTH = 9.0
_ASPECT_RATIO = _WORLD_BOX[2] / _WORLD_BOX[3]
MapBox = tuple[float, float, float, float]
MapPoint = tuple[float, float]


@dataclass(frozen=True, slots=True)
class MapPlace:
    """A dot on the map; `region_coordinates.find_coordinates` knows where countries and emirates are."""

    id: str
    name: str
    longitude: float
    latitude: float
    note: str = ""
    state: str = ""
    link: str = ""


def world_map(
    view: ChartView, places: Sequence[MapPlace], flows: Sequence[tuple[str, str, str]], *, title: str
) -> Html:
    """Places and flows between them: (from id, to id, a word or state). Degrees are distances here (equirectangular):
    true enough for which zone is where."""
    located_places = [
        place
        for place in places
        if to_drawable_number(place.longitude) is not None and to_drawable_number(place.latitude) is not None
    ]
    if not located_places:
        return empty_chart(view, "world", title)
    points = dict(
        zip(
            (place.id for place in located_places),
            _spread_points([_to_point(place) for place in located_places]),
            strict=True,
        )
    )
    map_box = _fit_box(list(points.values()))
    arcs = [
        _render_flow(
            points[source_id],
            points[target_id],
            f"{_get_place_name(located_places, source_id)} → {_get_place_name(located_places, target_id)}",
            flow_state,
        )
        for source_id, target_id, flow_state in flows
        if source_id in points and target_id in points and source_id != target_id
    ]
    earth_element = h.svg(
        _render_land(),
        arcs,
        class_="earth",
        width="100%",
        height="100%",
        viewBox=_format_view_box(map_box),
        preserveAspectRatio="none",
    )
    place_elements = [
        _render_place(view, place, points[place.id], map_box, label_side)
        for place, label_side in zip(located_places, _choose_label_sides(located_places, points, map_box), strict=True)
    ]
    drawing = h.svg(
        earth_element,
        place_elements,
        class_="drawing area",
        width="100%",
        role="group",
        aria_label=title,
        data_whole=_format_view_box(_WORLD_BOX),
        data_home=_format_view_box(map_box),
    )
    # East is right in every language.
    return chart_figure("world", title, h.div(drawing, class_="map-box", dir="ltr"), legend=zoom_buttons(view))


def _to_point(place: MapPlace) -> MapPoint:
    return max(-170.0, min(180.0, place.longitude)), -max(-61.0, min(84.0, place.latitude))


def _spread_points(points: list[MapPoint]) -> list[MapPoint]:
    """Places at the very same spot stand in a small circle around it."""
    indexes_by_point: dict[MapPoint, list[int]] = {}
    for n, point in enumerate(points):
        indexes_by_point.setdefault(point, []).append(n)
    for (x, y), indexes in indexes_by_point.items():
        for k, n in enumerate(indexes if len(indexes) > 1 else ()):
            angle = 2 * math.pi * k / len(indexes)
            points[n] = (x + 0.6 * math.cos(angle), y + 0.6 * math.sin(angle))
    return points


def _fit_box(points: Sequence[MapPoint]) -> MapBox:
    """The part of the map that shows every spot, with room for names."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    box_width = max(_MIN_BOX_WIDTH, (max(xs) - min(xs)) * 1.7, (max(ys) - min(ys)) * 1.7 * _ASPECT_RATIO)
    box_width = min(box_width, _WORLD_BOX[2])
    box_height = box_width / _ASPECT_RATIO
    left = min(max((min(xs) + max(xs) - box_width) / 2, _WORLD_BOX[0]), _WORLD_BOX[0] + _WORLD_BOX[2] - box_width)
    top = min(max((min(ys) + max(ys) - box_height) / 2, _WORLD_BOX[1]), _WORLD_BOX[1] + _WORLD_BOX[3] - box_height)
    return left, top, box_width, box_height


def _format_view_box(map_box: MapBox) -> str:
    return " ".join(f"{edge:.3f}".rstrip("0").rstrip(".") for edge in map_box)


@cache
def _render_land() -> Html:
    land_path = "".join("M" + " ".join(f"{x:g},{-y:g}" for x, y in outline) + "Z" for outline in LAND_OUTLINES)
    water_path = "M" + " ".join(f"{x:g},{-y:g}" for x, y in SEA_OUTLINE) + "Z"
    return Html(h.path(d=land_path, class_="land") + h.path(d=water_path, class_="water"))


def _get_place_name(places: Sequence[MapPlace], place_id: str) -> str:
    return to_plain_text(next(place.name for place in places if place.id == place_id))


def _render_flow(start: MapPoint, end: MapPoint, endpoints_label: str, flow_state: str) -> Html:
    """A bow whose side tells there from back."""
    control_point = (
        (start[0] + end[0]) / 2 + (end[1] - start[1]) * 0.18,
        (start[1] + end[1]) / 2 - (end[0] - start[0]) * 0.18,
    )
    path_data = (
        f"M{start[0]:.2f},{start[1]:.2f}Q{control_point[0]:.2f},{control_point[1]:.2f} {end[0]:.2f},{end[1]:.2f}"
    )
    tone_name = get_tone(flow_state)
    return h.path(
        h.title(f"{endpoints_label}: {to_plain_text(flow_state)}" if flow_state else endpoints_label),
        d=path_data,
        class_=f"flow t-{tone_name}" if tone_name else "flow",
    )


def _choose_label_sides(places: Sequence[MapPlace], points: dict[str, MapPoint], map_box: MapBox) -> list[str]:
    """On which side of its dot each name is written, so that names do not lie on each other."""
    pixels_per_degree = 720 / map_box[2]  # as on a page of middle width
    pixel_points = {
        key: ((x - map_box[0]) * pixels_per_degree, (y - map_box[1]) * pixels_per_degree)
        for key, (x, y) in points.items()
    }
    taken_labels = [(x - 7, y, 14.0) for x, y in pixel_points.values()]
    sides = []
    for place in places:
        x, y = pixel_points[place.id]
        label_width = 7.2 * estimate_width(truncate_middle(place.name, 22)) + 12
        label_positions = {
            "e": (x + 10, y),
            "w": (x - 10 - label_width, y),
            "n": (x - label_width / 2, y - 18),
            "s": (x - label_width / 2, y + 18),
        }
        free_sides = [
            candidate_side
            for candidate_side, (label_x, label_y) in label_positions.items()
            if 0 < label_x < 720 - label_width and not _overlaps_label(taken_labels, label_x, label_y, label_width)
        ]
        sides.append(free_sides[0] if free_sides else "")
        if free_sides:
            taken_labels.append((*label_positions[free_sides[0]], label_width))
    return sides


def _overlaps_label(
    taken_labels: Sequence[tuple[float, float, float]], label_x: float, label_y: float, label_width: float
) -> bool:
    return any(
        abs(label_y - y) < 14 and label_x < x + other_width and x < label_x + label_width
        for x, y, other_width in taken_labels
    )


def _render_place(view: ChartView, place: MapPlace, point: MapPoint, map_box: MapBox, side: str) -> Html:
    tone_name = get_tone(place.state)
    description = describe_mark(view, place.name, place.note, state=place.state)
    dx, dy, anchor = {"e": (10, 4, "start"), "w": (-10, 4, "end"), "n": (0, -11, "middle")}.get(side, (0, 20, "middle"))
    body = (
        h.title(description),
        h.circle(r=12, class_="reach"),
        h.circle(r=6, class_="dot"),
        tone_name and h.text(STATE_SIGNS[tone_name], y=3, text_anchor="middle", class_="sign"),
        h.text(
            truncate_middle(place.name, 22), x=dx, y=dy, text_anchor=anchor, class_="name" if side else "name crowded"
        ),
    )
    marker = h.a(body, href=place.link) if place.link else h.g(body, tabindex=0, role="img", aria_label=description)
    position_attributes = {
        "x": format_percentage((point[0] - map_box[0]) / map_box[2]),
        "y": format_percentage((point[1] - map_box[1]) / map_box[3]),
    }
    return h.svg(
        marker,
        class_=f"place t-{tone_name}" if tone_name else "place",
        data_at=f"{point[0]:g} {point[1]:g}",
        overflow="visible",
        **position_attributes,
    )

"""The shape of a search: runs as lines across parameters and metrics; which values can be an axis. Pure but for one
question."""

import math
from collections.abc import Sequence

from falaj.console import parts
from falaj.console.markup import Html, join
from falaj.console.page import href
from falaj.console.parts import Field
from falaj.console.plots import Axis, Line, parallel
from falaj.console.view import View
from falaj.track.records import Experiment, Window

MOST_AXES, MOST_CHOICES, MOST_RUNS = 8, 12, 500
Value = float | str | None
Told = tuple[str, str, str, Sequence[Value]]
"""A run: its id, its name, its page, and a value for each column."""


def shape(view: View, experiment: Experiment) -> Html:
    """Parallel coordinates of an experiment's newest runs."""
    track, place = view.here.track, (experiment.ref,)
    names = track.table(place, window=Window(rows=0, width=MOST_AXES, find="params.")).columns
    newest = track.table(place, window=Window(rows=1, width=200, find="metrics."))
    metrics, colour = newest.columns, view.query("metric")
    if colour not in metrics:
        cells = newest.rows[0].cells if newest.rows else ()
        colour = next((one for one, cell in zip(metrics, cells, strict=False) if cell is not None), "")
    chosen = view.query("columns") or ", ".join([*names[: MOST_AXES - 1], *([colour] if colour else [])])
    found = track.table(place, where=view.query("where"), columns=chosen,
                        window=Window(rows=MOST_RUNS, width=MOST_AXES))  # fmt: skip
    told = [(row.ref.name, row.title, href(row.ref), row.cells) for row in found.rows]
    fields = (Field("metric", view.t("track.colour_by"), "select", colour, [(one, one) for one in metrics]),
              Field("where", view.t("track.where")))  # fmt: skip
    return join(parts.filters(view, fields), coordinates(view, found.columns, told))


def coordinates(view: View, names: Sequence[str], told: Sequence[Told]) -> Html:
    """Runs across what can be an axis; the last one gives the colour."""
    columns = [numbers([values[n] for _, _, _, values in told]) for n in range(len(names))]
    axes = [(axis(name, column), column) for name, column in zip(names, columns, strict=True)]
    kept = [(one, column) for one, column in axes if one is not None]
    lines = [Line(id_, title, [column[n] for _, column in kept], link) for n, (id_, title, link, _) in enumerate(told)]
    return parallel(
        view, [one for one, _ in kept], lines, title=view.t("track.coloured", name=kept[-1][0].name if kept else "")
    )


def numbers(values: Sequence[Value]) -> list[Value]:
    """Numbers, where all that is there are numbers: parameters are texts, whatever they mean."""
    try:
        return [None if one in (None, "") else float(one) for one in values]
    except ValueError:
        return [None if one in (None, "") else str(one) for one in values]


def axis(name: str, values: Sequence[Value]) -> Axis | None:
    """How a column stands as an axis; None where it has nothing to tell, or too many words to tell it."""
    known = [one for one in values if one is not None]
    if any(isinstance(one, str) for one in known):
        choices = sorted({str(one) for one in known})
        return Axis(name, choices=choices) if len(choices) <= MOST_CHOICES else None
    amounts = [one for one in known if isinstance(one, float) and math.isfinite(one)]
    if not amounts:
        return None
    return Axis(name, log=min(amounts) > 0 and max(amounts) / min(amounts) >= 100)

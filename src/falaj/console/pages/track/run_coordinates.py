"""The shape of a search: runs as lines across parameters and metrics; which values can be an axis. Pure but for one
question."""

import math
from collections.abc import Sequence

from falaj.console import components
from falaj.console.components import FormField
from falaj.console.markup import Html, join_html
from falaj.console.page import build_resource_url
from falaj.console.page_view import PageView
from falaj.console.plots import ParallelAxis, ParallelLine, parallel_coordinates
from falaj.track.records import Experiment, TableWindow

MAX_AXES, MAX_CHOICES, MAX_RUNS = 8, 12, 500
CellValue = float | str | None
CoordinateRow = tuple[str, str, str, Sequence[CellValue]]
"""A run: its id, its name, its page, and a value for each column."""


def render_shape(view: PageView, experiment: Experiment) -> Html:
    """Parallel coordinates of an experiment's newest runs."""
    track, experiments = view.here.track, (experiment.ref,)
    param_columns = track.table(experiments, window=TableWindow(rows=0, width=MAX_AXES, find="params.")).columns
    newest_metrics = track.table(experiments, window=TableWindow(rows=1, width=200, find="metrics."))
    metric_columns, color_metric = newest_metrics.columns, view.query("metric")
    if color_metric not in metric_columns:
        cells = newest_metrics.rows[0].cells if newest_metrics.rows else ()
        color_metric = next(
            (metric for metric, cell in zip(metric_columns, cells, strict=False) if cell is not None), ""
        )
    chosen_columns = view.query("columns") or ", ".join(
        [*param_columns[: MAX_AXES - 1], *([color_metric] if color_metric else [])]
    )
    run_table = track.table(
        experiments,
        where=view.query("where"),
        columns=chosen_columns,
        window=TableWindow(rows=MAX_RUNS, width=MAX_AXES),
    )
    coordinate_rows = [(row.ref.name, row.title, build_resource_url(row.ref), row.cells) for row in run_table.rows]
    fields = (
        FormField(
            "metric", view.t("track.colour_by"), "select", color_metric, [(metric, metric) for metric in metric_columns]
        ),
        FormField("where", view.t("track.where")),
    )
    return join_html(components.filter_form(view, fields), render_coordinates(view, run_table.columns, coordinate_rows))


def render_coordinates(view: PageView, names: Sequence[str], coordinate_rows: Sequence[CoordinateRow]) -> Html:
    """Runs across what can be an axis; the last one gives the colour."""
    columns = [to_numbers([values[n] for _, _, _, values in coordinate_rows]) for n in range(len(names))]
    axes = [(make_axis(column_name, column), column) for column_name, column in zip(names, columns, strict=True)]
    used_axes = [(column_axis, column) for column_axis, column in axes if column_axis is not None]
    lines = [
        ParallelLine(run_id, title, [column[n] for _, column in used_axes], link)
        for n, (run_id, title, link, _) in enumerate(coordinate_rows)
    ]
    return parallel_coordinates(
        view,
        [column_axis for column_axis, _ in used_axes],
        lines,
        title=view.t("track.coloured", name=used_axes[-1][0].name if used_axes else ""),
    )


def to_numbers(values: Sequence[CellValue]) -> list[CellValue]:
    """Numbers, where all that is there are numbers: parameters are texts, whatever they mean."""
    try:
        return [None if value in (None, "") else float(value) for value in values]
    except ValueError:
        return [None if value in (None, "") else str(value) for value in values]


def make_axis(name: str, values: Sequence[CellValue]) -> ParallelAxis | None:
    """How a column stands as an axis; None where it has nothing to tell, or too many words to tell it."""
    present_values = [value for value in values if value is not None]
    if any(isinstance(value, str) for value in present_values):
        choices = sorted({str(value) for value in present_values})
        return ParallelAxis(name, choices=choices) if len(choices) <= MAX_CHOICES else None
    finite_numbers = [value for value in present_values if isinstance(value, float) and math.isfinite(value)]
    if not finite_numbers:
        return None
    return ParallelAxis(name, log=min(finite_numbers) > 0 and max(finite_numbers) / min(finite_numbers) >= 100)

"""Runs beside each other: in what they differ, across all of it at once, and how one metric went in each."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from falaj.console import components
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page, build_resource_url, build_url
from falaj.console.page_view import PageView
from falaj.console.pages.track import run_curves
from falaj.console.pages.track.run_coordinates import MAX_AXES, render_coordinates
from falaj.console.plots import line_chart
from falaj.core.ref import Ref
from falaj.track.records import RunComparison, RunDifference

MAX_RUNS = 50
_MAX_CELLS, _NUM_BINS = 3000, 150
_RUN_ID_PATTERN = re.compile(r"[0-9a-f]{32}")


def render_compare_page(view: PageView) -> Page:
    """Two to fifty runs."""
    t, runs = view.t, parse_chosen_runs(view.asked)
    crumbs = ((t("track.all_runs"), build_url("track/runs")),)
    if not 2 <= len(runs) <= MAX_RUNS:
        hint = components.empty_state(view, t("track.choose_runs"), t("track.choose_hint", most=MAX_RUNS))
        return Page(t("track.compare"), hint, crumbs)
    comparison = view.here.track.compare(runs)
    metrics = [difference for difference in comparison.differences if difference.kind == "metric"]
    metric = next(
        (difference.key for difference in metrics if difference.key == view.query("metric")),
        metrics[0].key if metrics else "",
    )
    body = join_html(
        _render_table(view, comparison),
        components.card(t("track.shape"), _render_coordinates(view, comparison, metric)) if metric else EMPTY,
        _render_overlay(view, comparison, [difference.key for difference in metrics], metric) if metric else EMPTY,
    )
    return Page(t("track.comparing", n=len(runs)), body, crumbs, live=("track",), scripts=("plots.js",), wide=True)


def parse_chosen_runs(query_params: Mapping[str, str]) -> tuple[Ref, ...]:
    """The runs of an address: `runs=fraud~ID~ID~other~ID`, or the boxes of a plain form (`r.0=run:fraud/ID`)."""
    chosen_runs: dict[Ref, None] = {}
    project = ""
    for query_part in query_params.get("runs", "").split("~"):
        if _RUN_ID_PATTERN.fullmatch(query_part):
            chosen_runs[Ref.parse(f"run:{project}/{query_part}")] = None
        else:
            project = query_part
    chosen_runs |= {Ref.parse(value): None for key, value in query_params.items() if key.startswith("r.")}
    return tuple(chosen_runs)


def pack_runs(runs: Sequence[Ref]) -> str:
    """Runs for an address, each project said once."""
    projects = dict.fromkeys(run.project for run in runs)
    return "~".join("~".join([project, *(run.name for run in runs if run.project == project)]) for project in projects)


def _render_table(view: PageView, comparison: RunComparison) -> Html:
    """What differs, a row each; the lowest and the highest of a metric are marked."""
    t, max_rows = view.t, max(20, _MAX_CELLS // len(comparison.runs))
    shown_differences = sorted(
        comparison.differences, key=lambda difference: (difference.kind != "param", difference.key)
    )[:max_rows]
    run_links = [
        h.a(h.bdi(title), href=build_resource_url(run))
        for title, run in zip(comparison.titles, comparison.runs, strict=True)
    ]
    rows = [
        (
            join_html(h.bdi(difference.key), " ", h.small(t.of("track.one", difference.kind), class_="soft")),
            *(_render_value(view, difference, comparison.runs[n], value) for n, value in enumerate(difference.values)),
        )
        for difference in shown_differences
    ]
    same_line = h.p(t("track.same", params=comparison.same_params, metrics=comparison.same_metrics), class_="soft")
    if len(comparison.differences) > max_rows:
        same_line = join_html(h.p(t("track.first_differences", n=max_rows), class_="soft"), same_line)
    headers: list[components.ColumnHeader | str] = [
        t("track.differs"),
        *(components.ColumnHeader(name, "n") for name in run_links),
    ]
    if not rows:
        return components.card(t("track.differences"), h.p(t("track.no_differences")), same_line)
    return components.card(
        t("track.differences"),
        h.div(components.table(view, headers, rows, t("track.differences")), class_="pinned"),
        same_line,
    )


def _render_value(view: PageView, difference: RunDifference, run: Ref, value: str) -> Html:
    value_element = h.bdi(value)
    if difference.kind != "metric" or run not in (difference.lowest, difference.highest):
        return value_element
    mark_label = view.t("track.highest") if run == difference.highest else view.t("track.lowest")
    return join_html(
        h.span("▴" if run == difference.highest else "▾", title=mark_label, role="img", aria_label=mark_label),
        " ",
        value_element,
    )


def _render_coordinates(view: PageView, comparison: RunComparison, metric: str) -> Html:
    params = [difference for difference in comparison.differences if difference.kind == "param"][: MAX_AXES - 1]
    metric_differences = [
        difference for difference in comparison.differences if difference.kind == "metric" and difference.key == metric
    ]
    shown_differences = (*params, *metric_differences)
    coordinate_rows = [
        (run.name, title, build_resource_url(run), [difference.values[n] or None for difference in shown_differences])
        for n, (run, title) in enumerate(zip(comparison.runs, comparison.titles, strict=True))
    ]
    return render_coordinates(view, [difference.key for difference in shown_differences], coordinate_rows)


def _render_overlay(view: PageView, comparison: RunComparison, metrics: Sequence[str], metric: str) -> Html:
    def render_chart() -> Html:
        curves_and_titles = zip(
            run_curves.load_series(view, comparison.runs, [metric], _NUM_BINS), comparison.titles, strict=True
        )
        named_curves = [replace(curve, name=title) for curve, title in curves_and_titles]
        return line_chart(
            view,
            named_curves,
            title=metric,
            x=run_curves.get_axis_title(view),
            log_y=view.query("log") == "1",
            height=360,
        )

    return components.card(
        view.t("track.curves"),
        run_curves.render_choices(view, metrics, metric),
        run_curves.render_reset_link(view),
        h.div(view.part(render_chart), data_refetch=True),
    )

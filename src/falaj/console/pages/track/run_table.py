"""Runs: a table of thousands of rows and columns, of which a page and its script read what is looked at."""

import json
from collections.abc import Callable
from typing import Any

from falaj.console import components
from falaj.console.components import FormField
from falaj.console.formatting import format_moment, format_relative_time
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import JsonData, Page, build_resource_url, build_url
from falaj.console.page_view import PageView
from falaj.console.pages.track import outputs_and_traces, run_coordinates
from falaj.console.pages.track.note_markup import NOTE_TAG, render_note
from falaj.console.state_tones import get_tone
from falaj.core.errors import FalajError
from falaj.core.ref import Ref
from falaj.track.records import Experiment, RunCells, RunTable, TableWindow
from falaj.track.search_language import parse_columns, parse_filter, parse_order

MAX_ROWS, MAX_COLUMNS = 200, 100
_ROWS_WITHOUT_SCRIPT, _COLUMNS_WITHOUT_SCRIPT = 50, 8
_COLUMN_TITLES = {
    "status": "track.status",
    "start_time": "console.started",
    "end_time": "console.ended",
    "user_id": "console.who",
    "run_name": "track.run",
    "run_id": "track.id",
}


_TIME_COLUMNS = ("start_time", "end_time")


def render_all_runs_page(view: PageView) -> Page:
    """Runs of every experiment."""
    breadcrumbs = ((view.t("console.room.track"), build_url("track")),)
    return Page(
        view.t("track.all_runs"), _render_runs(view), breadcrumbs, live=("track",), scripts=("grid.js",), wide=True
    )


def render_experiment_page(view: PageView, ref: Ref) -> Page:
    """One experiment: its runs, their shape, what they made, what was noted."""
    t, experiment = view.t, view.here.track.experiment(ref)
    tab_labels = (
        ("runs", t("track.runs")),
        ("shape", t("track.shape")),
        ("models", t("track.models")),
        ("traces", t("track.traces")),
        ("about", t("track.about")),
    )
    current_tab, scripts = view.query("tab", "runs"), ("plots.js",)
    if current_tab == "shape":
        body = run_coordinates.render_shape(view, experiment)
    elif current_tab == "models":
        body = outputs_and_traces.render_outputs(view, experiment.ref)
    elif current_tab == "traces":
        body = outputs_and_traces.render_traces(view, experiment.ref)
    elif current_tab == "about":
        body = _render_about(view, experiment)
    else:
        body, scripts = _render_runs(view, experiment.ref), ("grid.js",)
    deleted_notice = components.notice("warn", t("track.is_deleted")) if experiment.state != "active" else EMPTY
    return Page(
        h.bdi(experiment.title),
        join_html(deleted_notice, components.tabs(view, tab_labels), body),
        live=("track",),
        scripts=scripts,
        wide=current_tab in ("runs", "shape"),
    )


def load_window(view: PageView) -> JsonData:
    """Some rows and columns, for the script that shows them."""
    table_query = parse_table_query(view, Ref.parse(view.query("experiment")) if view.query("experiment") else None)
    run_table = view.here.track.table(
        **table_query,
        window=TableWindow(
            view.count("first", 0),
            view.count("rows", 40, MAX_ROWS),
            view.count("left", 0),
            view.count("width", 20, MAX_COLUMNS),
            view.query("find"),
        ),
    )
    return JsonData(
        {
            "first": run_table.first,
            "left": run_table.left,
            "rows": run_table.num_rows,
            "columns": run_table.num_columns,
            "heads": [_make_column_header(view, column) for column in run_table.columns],
            "cells": [_make_row_data(view, run_table.columns, row) for row in run_table.rows],
        }
    )


def parse_table_query(view: PageView, experiment: Ref | None) -> dict[str, Any]:
    """What the address asks of the table."""
    return {
        "experiments": (experiment,) if experiment else (),
        "project": view.query("project"),
        "where": view.query("where"),
        "order": (view.query("order"),) if view.query("order") else (),
        "state": "deleted" if view.query("state") == "deleted" else "active",
        "columns": view.query("columns"),
    }


def _render_runs(view: PageView, experiment: Ref | None = None) -> Html:
    order = view.query("order")
    error_by_field = {
        "where": _find_error(lambda: parse_filter(view.query("where"))),
        "columns": _find_error(lambda: parse_columns(view.query("columns"))),
        "order": _find_error(lambda: parse_order((order,) if order else ())),
    }
    if any(error_by_field.values()):
        return _render_query_bar(view, error_by_field)
    run_table = view.here.track.table(
        **parse_table_query(view, experiment),
        window=TableWindow(first=view.count("page", 0), rows=_ROWS_WITHOUT_SCRIPT, width=_COLUMNS_WITHOUT_SCRIPT),
    )
    if not run_table.num_rows:
        return join_html(_render_query_bar(view, error_by_field), _render_empty(view, experiment))
    return join_html(_render_query_bar(view, error_by_field), _render_grid(view, run_table, experiment))


def _find_error(parse: Callable[[], object]) -> FalajError | None:
    try:
        parse()
    except FalajError as error:
        return error
    return None


def _render_query_bar(view: PageView, error_by_field: dict[str, FalajError | None]) -> Html:
    """What is asked for, each field with what is wrong with it."""
    t = view.t
    states = (("", t("track.state_active")), ("deleted", t("track.state_deleted")))
    fields = (
        _render_query_field(
            view,
            FormField("where", t("track.where")),
            "metrics.loss < 0.3 and params.rate = '0.02'",
            error_by_field["where"],
        ),
        _render_query_field(
            view, FormField("columns", t("track.which_columns")), "params.rate, metrics.loss", error_by_field["columns"]
        ),
        h.label(
            h.span(t("console.state")),
            h.select(
                [h.option(state_label, value=key, selected=key == view.query("state")) for key, state_label in states],
                name="state",
            ),
        ),
    )
    hidden_inputs = [
        h.input(type="hidden", name=key, value=view.query(key))
        for key in ("order", "project", "tab")
        if view.query(key) and not error_by_field.get(key)
    ]
    button = h.button(t("console.show"), class_="primary")
    form = h.form(
        fields, hidden_inputs, button, method="get", action=build_url(view.path), class_="filters", role="search"
    )
    order_error = error_by_field["order"]
    return join_html(form, components.notice("bad", order_error.message, order_error.hint) if order_error else None)


def _render_query_field(view: PageView, field: FormField, example: str, field_error: FalajError | None) -> Html:
    error_id = f"wrong-{field.name}"
    input_element = h.input(
        name=field.name,
        value=view.query(field.name),
        placeholder=example,
        dir="ltr",
        spellcheck="false",
        autocomplete="off",
        aria_invalid="true" if field_error else None,
        aria_describedby=field_error and error_id,
        data_choose=view.t("track.find_column") if field.name == "columns" else None,
    )
    error_text = (
        h.small(f"{field_error.message}: {field_error.hint}", id=error_id, class_="wrong", dir="auto")
        if field_error
        else None
    )
    if field.name != "columns":
        return h.label(h.span(field.label), input_element, error_text, class_="wide")
    # The script adds a list to choose from, which a live page leaves alone.
    return h.div(
        h.label(h.span(field.label), input_element, error_text), class_="wide", id="grid-choose", data_keep=True
    )


def _render_empty(view: PageView, experiment: Ref | None) -> Html:
    if view.query("where") or view.query("state"):
        return components.empty_state(view, view.t("track.none_fit"), view.t("track.none_fit_hint"))
    example_ref = experiment or "experiment:fraud/scoring"
    return components.empty_state(
        view, view.t("track.no_runs"), view.t("track.no_runs_hint"), f"falaj track start {example_ref}"
    )


def _render_grid(view: PageView, run_table: RunTable, experiment: Ref | None) -> Html:
    """A plain table, in pages; where there is a script it puts the grid in its place."""
    t = view.t
    labels = {"run": str(t("track.run")), "select": str(t("track.select")), "grid": str(t("track.runs"))}
    columns = [components.ColumnHeader(join_html(h.span(t("track.select"), class_="unseen")))]
    columns += [
        components.ColumnHeader(
            _render_column_name(view, column_name), "" if "." not in column_name or column_name[0] == "t" else "n"
        )
        for column_name in run_table.columns
    ]
    headers = [columns[0], components.ColumnHeader(t("track.run")), *columns[1:]]
    rows = [
        (
            h.input(
                type="checkbox", name=f"r.{n}", value=str(row.ref), aria_label=t("track.select_run", run=row.title)
            ),
            h.a(h.bdi(row.title), href=build_resource_url(row.ref)),
            *(_render_cell(view, column, cell) for column, cell in zip(run_table.columns, row.cells, strict=True)),
        )
        for n, row in enumerate(run_table.rows)
    ]
    has_more = run_table.first + _ROWS_WITHOUT_SCRIPT < run_table.num_rows
    plain_table = join_html(
        components.table(view, headers, rows, t("track.runs")),
        components.pager(view, str(run_table.first + _ROWS_WITHOUT_SCRIPT) if has_more else ""),
    )
    grid_url = build_url("track/grid", {"experiment": experiment or ""})
    grid = h.div(plain_table, id="grid", data_keep=True, data_grid=grid_url, data_said=json.dumps(labels))
    count_line = join_html(t("track.count", n=run_table.num_rows), " · ", t("track.columns", n=run_table.num_columns))
    button = h.button(t("track.compare"), h.output(id="grid-picked", class_="grid-picked"), id="grid-compare")
    toolbar = h.div(
        h.span(count_line, class_="soft"),
        h.small(t("track.compare_hint"), class_="soft end"),
        button,
        class_="grid-bar",
    )
    return h.form(toolbar, grid, method="get", action=build_url("track/compare"), id="grid-form")


def _render_column_name(view: PageView, column: str) -> Html:
    return view.t(_COLUMN_TITLES[column]) if column in _COLUMN_TITLES else h.bdi(column.partition(".")[2].strip('"'))


def _make_column_header(view: PageView, column: str) -> dict[str, str]:
    family = column.partition(".")[0] if "." in column else ""
    column_label = (
        str(view.t(_COLUMN_TITLES[column]))
        if column in _COLUMN_TITLES
        else column[len(family) + 1 :]
        if family
        else column
    )
    current_order, _, direction = view.query("order").rpartition(" ")
    is_sorted = column in (current_order, view.query("order"))
    sort = ("descending" if direction.upper() == "DESC" else "ascending") if is_sorted else ""
    family_label = str(view.t.of("track.family", family)) if family else ""
    return {"column": column, "name": column_label, "family": family_label, "kind": family, "sort": sort}


def _make_row_data(view: PageView, columns: tuple[str, ...], row: RunCells) -> dict[str, Any]:
    cell_texts = [_format_cell(view, column, cell) for column, cell in zip(columns, row.cells, strict=True)]
    return {
        "run": f"{row.ref.project}~{row.ref.name}",
        "title": row.title,
        "link": build_resource_url(row.ref),
        "values": cell_texts,
    }


def _format_cell(view: PageView, column: str, cell: float | str | None) -> str | list[str | None]:
    """A cell as text; a state with the colour that agrees with it, a moment with what else to call it."""
    if cell is None:
        return ""
    if column == "status":
        return [str(view.t.of("console.state", str(cell))), get_tone(str(cell)), ""]
    if isinstance(cell, str):
        return cell
    if column in _TIME_COLUMNS:
        return [str(format_relative_time(view.t, cell / 1000, view.now)), None, format_moment(view.t, cell / 1000)]
    return str(view.number(cell))


def _render_cell(view: PageView, column: str, cell: float | str | None) -> Html | str:
    if column == "status" and cell is not None:
        return components.badge(view, str(cell))
    if column in _TIME_COLUMNS and isinstance(cell, (int, float)):
        return view.ago(cell / 1000)
    cell_text = _format_cell(view, column, cell)
    return h.bdi(cell_text) if isinstance(cell_text, str) else EMPTY


def _render_about(view: PageView, experiment: Experiment) -> Html:
    t = view.t
    experiment_facts = components.fact_list(
        [
            (t("console.name"), h.code(experiment.ref, dir="ltr")),
            (t("track.id"), h.code(experiment.id, dir="ltr")),
            (t("console.made"), view.when(experiment.made_at)),
            (t("track.changed"), view.when(experiment.changed_at)),
            (t("console.by"), h.bdi(experiment.author)),
        ]
    )
    note_text = experiment.tags.get(NOTE_TAG, "")
    own_tags = [(h.bdi(key), h.bdi(value[:300])) for key, value in experiment.tags.items() if key != NOTE_TAG]
    rename_button = components.action_button(
        view,
        "track",
        "change",
        {"name": experiment.ref},
        t("track.rename"),
        (FormField("title", t("console.title"), value=experiment.title, required=True),),
    )
    operation_name, label = (
        ("delete", t("console.delete")) if experiment.state == "active" else ("restore", t("track.restore"))
    )
    delete_button = components.action_button(
        view,
        "track",
        operation_name,
        {"name": experiment.ref},
        label,
        danger=operation_name == "delete",
        confirm=t("track.delete_hint") if operation_name == "delete" else "",
    )
    about_cards = [
        components.card(t("console.overview"), experiment_facts, h.div(rename_button, delete_button, class_="actions"))
    ]
    about_cards += [components.card(t("console.note"), render_note(note_text))] if note_text else []
    about_cards += [components.card(t("console.tags"), components.fact_list(own_tags))] if own_tags else []
    return components.card_grid(*about_cards)

"""Runs: a table of thousands of rows and columns, of which a page and its script read what is looked at."""

import json
from collections.abc import Callable
from typing import Any

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Data, Page, address, href
from falaj.console.pages.track import shape, things
from falaj.console.pages.track.texts import NOTE, note
from falaj.console.parts import Field
from falaj.console.states import tone
from falaj.console.view import View
from falaj.console.writing import moment, relative
from falaj.core.errors import FalajError
from falaj.core.ref import Ref
from falaj.track.records import Experiment, RunCells, RunTable, Window
from falaj.track.where import read_columns, read_order, read_where

MOST_ROWS, MOST_COLUMNS = 200, 100
_PLAIN_ROWS, _PLAIN_COLUMNS = 50, 8
_KNOWN = {"status": "track.status", "start_time": "console.started", "end_time": "console.ended",
          "user_id": "console.who", "run_name": "track.run", "run_id": "track.id"}  # fmt: skip


_MOMENTS = ("start_time", "end_time")


def of_all(view: View) -> Page:
    """Runs of every experiment."""
    crumb = ((view.t("console.room.track"), address("track")),)
    return Page(view.t("track.all_runs"), _runs(view), crumb, live=("track",), scripts=("grid.js",), wide=True)


def of_experiment(view: View, ref: Ref) -> Page:
    """One experiment: its runs, their shape, what they made, what was noted."""
    t, found = view.t, view.here.track.experiment(ref)
    tabs = (("runs", t("track.runs")), ("shape", t("track.shape")), ("models", t("track.models")),
            ("traces", t("track.traces")), ("about", t("track.about")))  # fmt: skip
    now, scripts = view.query("tab", "runs"), ("plots.js",)
    if now == "shape":
        body = shape.shape(view, found)
    elif now == "models":
        body = things.outputs(view, found.ref)
    elif now == "traces":
        body = things.traces(view, found.ref)
    elif now == "about":
        body = _about(view, found)
    else:
        body, scripts = _runs(view, found.ref), ("grid.js",)
    deleted = parts.notice("warn", t("track.is_deleted")) if found.state != "active" else EMPTY
    return Page(h.bdi(found.title), join(deleted, parts.tabs(view, tabs), body), live=("track",), scripts=scripts,
                wide=now in ("runs", "shape"))  # fmt: skip


def window(view: View) -> Data:
    """Some rows and columns, for the script that shows them."""
    asked = asked_for(view, Ref.parse(view.query("experiment")) if view.query("experiment") else None)
    found = view.here.track.table(**asked, window=Window(
        view.count("first", 0), view.count("rows", 40, MOST_ROWS), view.count("left", 0),
        view.count("width", 20, MOST_COLUMNS), view.query("find"),
    ))  # fmt: skip
    return Data({
        "first": found.first, "left": found.left, "rows": found.num_rows, "columns": found.num_columns,
        "heads": [_head(view, column) for column in found.columns],
        "cells": [_cells(view, found.columns, row) for row in found.rows],
    })  # fmt: skip


def asked_for(view: View, experiment: Ref | None) -> dict[str, Any]:
    """What the address asks of the table."""
    return {
        "experiments": (experiment,) if experiment else (), "project": view.query("project"),
        "where": view.query("where"), "order": (view.query("order"),) if view.query("order") else (),
        "state": "deleted" if view.query("state") == "deleted" else "active", "columns": view.query("columns"),
    }  # fmt: skip


def _runs(view: View, experiment: Ref | None = None) -> Html:
    order = view.query("order")
    wrong = {
        "where": _wrong(lambda: read_where(view.query("where"))),
        "columns": _wrong(lambda: read_columns(view.query("columns"))),
        "order": _wrong(lambda: read_order((order,) if order else ())),
    }
    if any(wrong.values()):
        return _bar(view, wrong)
    found = view.here.track.table(
        **asked_for(view, experiment),
        window=Window(first=view.count("page", 0), rows=_PLAIN_ROWS, width=_PLAIN_COLUMNS),
    )
    if not found.num_rows:
        return join(_bar(view, wrong), _none(view, experiment))
    return join(_bar(view, wrong), _grid(view, found, experiment))


def _wrong(read: Callable[[], object]) -> FalajError | None:
    try:
        read()
    except FalajError as error:
        return error
    return None


def _bar(view: View, wrong: dict[str, FalajError | None]) -> Html:
    """What is asked for, each field with what is wrong with it."""
    t = view.t
    states = (("", t("track.state_active")), ("deleted", t("track.state_deleted")))
    fields = (
        _field(view, Field("where", t("track.where")), "metrics.loss < 0.3 and params.rate = '0.02'", wrong["where"]),
        _field(view, Field("columns", t("track.which_columns")), "params.rate, metrics.loss", wrong["columns"]),
        h.label(h.span(t("console.state")), h.select([
            h.option(word, value=key, selected=key == view.query("state")) for key, word in states], name="state")),
    )  # fmt: skip
    kept = [h.input(type="hidden", name=key, value=view.query(key)) for key in ("order", "project", "tab")
            if view.query(key) and not wrong.get(key)]  # fmt: skip
    button = h.button(t("console.show"), class_="primary")
    form = h.form(fields, kept, button, method="get", action=address(view.path), class_="filters", role="search")
    odd = wrong["order"]
    return join(form, parts.notice("bad", odd.message, odd.hint) if odd else None)


def _field(view: View, field: Field, example: str, wrong: FalajError | None) -> Html:
    key = f"wrong-{field.name}"
    made = h.input(name=field.name, value=view.query(field.name), placeholder=example, dir="ltr", spellcheck="false",
                   autocomplete="off", aria_invalid="true" if wrong else None, aria_describedby=wrong and key,
                   data_choose=view.t("track.find_column") if field.name == "columns" else None)  # fmt: skip
    said = h.small(f"{wrong.message}: {wrong.hint}", id=key, class_="wrong", dir="auto") if wrong else None
    if field.name != "columns":
        return h.label(h.span(field.label), made, said, class_="wide")
    # The script adds a list to choose from, which a live page leaves alone.
    return h.div(h.label(h.span(field.label), made, said), class_="wide", id="grid-choose", data_keep=True)


def _none(view: View, experiment: Ref | None) -> Html:
    if view.query("where") or view.query("state"):
        return parts.empty(view, view.t("track.none_fit"), view.t("track.none_fit_hint"))
    named = experiment or "experiment:fraud/scoring"
    return parts.empty(view, view.t("track.no_runs"), view.t("track.no_runs_hint"), f"falaj track start {named}")


def _grid(view: View, found: RunTable, experiment: Ref | None) -> Html:
    """A plain table, in pages; where there is a script it puts the grid in its place."""
    t = view.t
    said = {"run": str(t("track.run")), "select": str(t("track.select")), "grid": str(t("track.runs"))}
    columns = [parts.Column(join(h.span(t("track.select"), class_="unseen")))]
    columns += [parts.Column(_name(view, one), "" if "." not in one or one[0] == "t" else "n") for one in found.columns]
    heads = [columns[0], parts.Column(t("track.run")), *columns[1:]]
    rows = [
        (h.input(type="checkbox", name=f"r.{n}", value=str(row.ref), aria_label=t("track.select_run", run=row.title)),
         h.a(h.bdi(row.title), href=href(row.ref)),
         *(_plain(view, column, cell) for column, cell in zip(found.columns, row.cells, strict=True)))
        for n, row in enumerate(found.rows)
    ]  # fmt: skip
    more = found.first + _PLAIN_ROWS < found.num_rows
    plain = join(parts.table(view, heads, rows, t("track.runs")),
                 parts.pager(view, str(found.first + _PLAIN_ROWS) if more else ""))  # fmt: skip
    where = address("track/grid", {"experiment": experiment or ""})
    grid = h.div(plain, id="grid", data_keep=True, data_grid=where, data_said=json.dumps(said))
    count = join(t("track.count", n=found.num_rows), " · ", t("track.columns", n=found.num_columns))
    button = h.button(t("track.compare"), h.output(id="grid-picked", class_="grid-picked"), id="grid-compare")
    bar = h.div(
        h.span(count, class_="soft"), h.small(t("track.compare_hint"), class_="soft end"), button, class_="grid-bar"
    )
    return h.form(bar, grid, method="get", action=address("track/compare"), id="grid-form")


def _name(view: View, column: str) -> Html:
    return view.t(_KNOWN[column]) if column in _KNOWN else h.bdi(column.partition(".")[2].strip('"'))


def _head(view: View, column: str) -> dict[str, str]:
    family = column.partition(".")[0] if "." in column else ""
    name = str(view.t(_KNOWN[column])) if column in _KNOWN else column[len(family) + 1 :] if family else column
    now, _, way = view.query("order").rpartition(" ")
    same = column in (now, view.query("order"))
    sort = ("descending" if way.upper() == "DESC" else "ascending") if same else ""
    said = str(view.t.of("track.family", family)) if family else ""
    return {"column": column, "name": name, "family": said, "kind": family, "sort": sort}


def _cells(view: View, columns: tuple[str, ...], row: RunCells) -> dict[str, Any]:
    values = [_said(view, column, cell) for column, cell in zip(columns, row.cells, strict=True)]
    return {"run": f"{row.ref.project}~{row.ref.name}", "title": row.title, "link": href(row.ref), "values": values}


def _said(view: View, column: str, cell: float | str | None) -> str | list[str | None]:
    """A cell as text; a state with the colour that agrees with it, a moment with what else to call it."""
    if cell is None:
        return ""
    if column == "status":
        return [str(view.t.of("console.state", str(cell))), tone(str(cell)), ""]
    if isinstance(cell, str):
        return cell
    if column in _MOMENTS:
        return [str(relative(view.t, cell / 1000, view.now)), None, moment(view.t, cell / 1000)]
    return str(view.number(cell))


def _plain(view: View, column: str, cell: float | str | None) -> Html | str:
    if column == "status" and cell is not None:
        return parts.badge(view, str(cell))
    if column in _MOMENTS and isinstance(cell, (int, float)):
        return view.ago(cell / 1000)
    said = _said(view, column, cell)
    return h.bdi(said) if isinstance(said, str) else EMPTY


def _about(view: View, found: Experiment) -> Html:
    t = view.t
    facts = parts.facts([
        (t("console.name"), h.code(found.ref, dir="ltr")), (t("track.id"), h.code(found.id, dir="ltr")),
        (t("console.made"), view.when(found.made_at)), (t("track.changed"), view.when(found.changed_at)),
        (t("console.by"), h.bdi(found.author)),
    ])  # fmt: skip
    said = found.tags.get(NOTE, "")
    own = [(h.bdi(key), h.bdi(value[:300])) for key, value in found.tags.items() if key != NOTE]
    change = parts.action(view, "track", "change", {"name": found.ref}, t("track.rename"),
                          (Field("title", t("console.title"), value=found.title, required=True),))  # fmt: skip
    verb, word = ("delete", t("console.delete")) if found.state == "active" else ("restore", t("track.restore"))
    gone = parts.action(view, "track", verb, {"name": found.ref}, word, danger=verb == "delete",
                        confirm=t("track.delete_hint") if verb == "delete" else "")  # fmt: skip
    cards = [parts.card(t("console.overview"), facts, h.div(change, gone, class_="actions"))]
    cards += [parts.card(t("console.note"), note(said))] if said else []
    cards += [parts.card(t("console.tags"), parts.facts(own))] if own else []
    return parts.cards(*cards)

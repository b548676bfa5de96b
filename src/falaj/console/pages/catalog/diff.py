"""What lies between two versions: files, columns, statistics and, where asked, rows."""

from collections.abc import Mapping
from typing import Any

from falaj.catalog.records import CatalogVersion
from falaj.console import components
from falaj.console.components import ColumnHeader, FormField, TableRow
from falaj.console.markup import Html, create_element, h, join_html
from falaj.console.page import Page
from falaj.console.page_view import PageView
from falaj.console.pages.catalog.version_page import parse_version_number
from falaj.console.pages.catalog.version_parts import (
    make_breadcrumbs,
    parse_catalog_ref,
    render_summary,
    render_title,
    render_version_tabs,
)
from falaj.console.plots import bar_chart
from falaj.core.ref import Ref

_MAX_FILES, _MAX_COLUMNS = 100, 200
_TONE_BY_CHANGE = {"added": "good", "removed": "bad", "changed": "warn", "duplicate": "warn"}


def render_diff_page(view: PageView) -> Page:
    """This version against an earlier (or any other) one."""
    version: CatalogVersion = view.here.catalog.show(parse_catalog_ref(view))
    ref = version.ref
    number = parse_version_number(ref)
    other_version = view.query("with") or (f"v{number - 1}" if number > 1 else "")
    body = (
        view.part(lambda: _render_comparison(view, ref, other_version))
        if other_version
        else components.empty_state(view, view.t("catalog.first_one"))
    )
    filter_form = view.part(lambda: _render_form(view, version, other_version))
    page = join_html(render_version_tabs(view, ref, "diff"), render_summary(view, version), filter_form, body)
    return Page(render_title(ref), page, make_breadcrumbs(view, ref), scripts=("plots.js",))


def _render_form(view: PageView, version: CatalogVersion, chosen_version: str) -> Html:
    t, ref = view.t, version.ref
    versions = view.here.catalog.list(kind=ref.kind, project=ref.project, name=ref.name, limit=200).versions
    other_refs = sorted((item.ref for item in versions if item.ref != ref), key=parse_version_number, reverse=True)
    if not other_refs:
        return join_html()
    fields = [
        FormField(
            "with",
            t("catalog.against"),
            "select",
            chosen_version,
            [(item.version, h.bdi(item.version)) for item in other_refs],
        )
    ]
    if version.table:
        key_options = [
            ("", t("catalog.no_key")),
            *((item.name, item.name) for item in version.table.columns[:_MAX_COLUMNS]),
        ]
        row_options = (("", t("console.state.no")), ("yes", t("console.state.yes")))
        fields.append(FormField("rows", t("catalog.rows_too"), "select", options=row_options))
        fields.append(FormField("key", t("catalog.key"), "select", options=key_options))
    return components.filter_form(view, fields)


def _render_comparison(view: PageView, ref: Ref, other_version: str) -> Html:
    t, key = view.t, view.query("key")
    diff = view.here.catalog.diff(
        ref.at(other_version), ref, rows=bool(key or view.query("rows")), key=(key,) if key else ()
    )
    versions_line = h.p(
        components.ref_link(view, diff.before, short=True), " → ", components.ref_link(view, diff.after, short=True)
    )
    file_rows = [
        TableRow(
            (
                _render_change_badge(view, file_change.how),
                h.bdi(file_change.name),
                _format_optional_size(view, file_change.before_bytes),
                _format_optional_size(view, file_change.after_bytes),
            )
        )
        for file_change in diff.files[:_MAX_FILES]
    ]
    columns = (
        t("catalog.how"),
        t("console.file"),
        ColumnHeader(t("catalog.before"), "n"),
        ColumnHeader(t("catalog.after"), "n"),
    )
    truncation_note = len(diff.files) > _MAX_FILES and h.p(
        t("catalog.more", n=len(diff.files) - _MAX_FILES), class_="soft"
    )
    file_table = (
        join_html(components.table(view, columns, file_rows, t("console.files")), truncation_note or None)
        if file_rows
        else h.p(t("catalog.same"))
    )
    asked_rows = f" --rows --key {key}" if key else " --rows" if view.query("rows") else ""
    command_line = f"falaj catalog diff {diff.before} {diff.after}{asked_rows}"
    return join_html(
        versions_line,
        _render_counts(view, diff),
        _render_row_changes(view, diff) if diff.rows_added is not None else None,
        _render_schema_changes(view, diff),
        components.card(t("console.files"), file_table, id="changed-files"),
        components.copyable_code(view, command_line),
    )


def _render_counts(view: PageView, diff: Any) -> Html:
    t = view.t
    tiles = [
        components.stat_tile(t("catalog.files_added"), view.number(diff.added), state="good" if diff.added else ""),
        components.stat_tile(
            t("catalog.files_removed"), view.number(diff.removed), state="bad" if diff.removed else ""
        ),
        components.stat_tile(
            t("catalog.files_changed"), view.number(diff.changed), state="warn" if diff.changed else ""
        ),
    ]
    if diff.rows_before is not None and diff.rows_after is not None:
        row_difference = diff.rows_after - diff.rows_before
        note = h.span(f"{row_difference:+,}" if row_difference else "=", dir="ltr")
        tiles.append(components.stat_tile(t("catalog.rows"), view.number(diff.rows_after), note))
    return h.div(tiles, class_="stats")


def _render_schema_changes(view: PageView, diff: Any) -> Html:
    if not diff.columns:
        return join_html()
    t = view.t
    rows = [
        TableRow(
            (
                h.bdi(column_change.column),
                t.of("catalog.what", column_change.what),
                _render_change_badge(view, _classify_change(column_change)),
                h.bdi(column_change.before[:80]),
                h.bdi(column_change.after[:80]),
            )
        )
        for column_change in diff.columns[:_MAX_COLUMNS]
    ]
    headers = (t("console.column"), t("catalog.about_it"), t("catalog.how"), t("catalog.before"), t("catalog.after"))
    return components.card(
        t("catalog.schema_changes"), components.table(view, headers, rows, t("catalog.schema_changes")), id="columns"
    )


def _classify_change(change: Any) -> str:
    if change.what != "column":
        return "changed"
    return "removed" if change.before else "added"


def _render_row_changes(view: PageView, diff: Any) -> Html:
    t = view.t
    stats = h.div(
        components.stat_tile(
            t("catalog.rows_added"), view.number(diff.rows_added), state="good" if diff.rows_added else ""
        ),
        components.stat_tile(
            t("catalog.rows_removed"), view.number(diff.rows_removed), state="bad" if diff.rows_removed else ""
        ),
        components.stat_tile(
            t("catalog.rows_changed"), view.number(diff.rows_changed), state="warn" if diff.rows_changed else ""
        ),
        class_="stats",
    )
    chart = (
        bar_chart(
            view,
            [(name, float(count)) for name, count in diff.columns_changed.items()],
            title=t("catalog.columns_changed"),
        )
        if diff.columns_changed
        else None
    )
    duplicates_note = h.p(t("catalog.twice", n=diff.duplicate_keys), class_="soft") if diff.duplicate_keys else None
    return components.card(
        t("catalog.row_changes"), stats, duplicates_note, chart, _render_samples(view, diff.samples), id="rows"
    )


def _render_samples(view: PageView, samples: tuple[Any, ...]) -> Html:
    """Some of the rows; of a changed one what was is crossed out beside what is."""
    if not samples:
        return join_html()
    names = list(dict.fromkeys(name for sample in samples for name in (*sample.before, *sample.after)))[:40]
    rows = [
        TableRow(
            (
                _render_change_badge(view, sample.how),
                *(_render_changed_value(sample.how, sample.before, sample.after, name) for name in names),
            )
        )
        for sample in samples
    ]
    headers = (view.t("catalog.how"), *(h.bdi(name) for name in names))
    return components.table(view, headers, rows, view.t("catalog.samples"))


def _render_changed_value(change_kind: str, before: Mapping[str, str], after: Mapping[str, str], name: str) -> Html:
    old_value, new_value = before.get(name, ""), after.get(name, "")
    if old_value == new_value or change_kind in ("added", "duplicate"):
        return h.bdi(new_value or old_value)
    return (
        h.bdi(old_value)
        if change_kind == "removed"
        else join_html(create_element("del", h.bdi(old_value)), " ", h.ins(h.bdi(new_value)))
    )


def _render_change_badge(view: PageView, change_kind: str) -> Html:
    return h.span(
        view.t.of("catalog.change", change_kind), class_=f"badge {_TONE_BY_CHANGE.get(change_kind, '')}".strip()
    )


def _format_optional_size(view: PageView, num_bytes: int | None) -> Html:
    return view.bytes(num_bytes) if num_bytes is not None else join_html()

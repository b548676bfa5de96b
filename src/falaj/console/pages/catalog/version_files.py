"""The files of a version: a page of them, a look into one, and one to keep. Reading asks for the right to read."""

from itertools import islice

from falaj.catalog.records import CatalogVersion, OpenedVersion
from falaj.catalog.version_reader import decode_path, encode_path, open_version, to_printable
from falaj.console import components
from falaj.console.components import ColumnHeader, FormField, TableRow
from falaj.console.markup import Html, h, join_html
from falaj.console.page import FileDownload, Page
from falaj.console.page_view import PageView
from falaj.console.pages.catalog.file_preview import FilePreview, preview_file
from falaj.console.pages.catalog.version_parts import (
    build_version_url,
    make_breadcrumbs,
    parse_catalog_ref,
    render_summary,
    render_title,
    render_version_tabs,
)
from falaj.content.duck_engine import detect_format
from falaj.content.table_statistics import find_category
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.snapshot.tree_reader import TreeEntry, TreeSnapshot

_PAGE_SIZE = 50
MAX_DOWNLOAD_BYTES = 32 << 20
"""The largest file that a browser is handed; the command line streams any."""


def render_files_page(view: PageView) -> Page:
    """Which files there are, and what one of them holds."""
    ref = parse_catalog_ref(view)
    version: CatalogVersion = view.here.catalog.show(ref)
    body = join_html(
        render_version_tabs(view, version.ref, "files"),
        render_summary(view, version),
        view.part(lambda: _render_files(view, version.ref)),
    )
    return Page(render_title(version.ref), body, make_breadcrumbs(view, version.ref))


def download_file(view: PageView) -> FileDownload:
    """One file, to keep."""
    ref, path = parse_catalog_ref(view), view.query("path")
    opened, snapshot = open_version(view.here, ref)
    entry = snapshot.entry(encode_path(path))
    if entry.kind != "file" or entry.size > MAX_DOWNLOAD_BYTES:
        line = f"falaj catalog cat {opened.ref} {path} > file"
        raise Invalid(f"{to_printable(path)[:200]} is too large for a browser, or a link", line, ref)
    return FileDownload(path.rpartition("/")[2], b"".join(snapshot.read(entry)))


def download_provenance(view: PageView) -> FileDownload:
    """Where a version came from, in one of the forms that other tools read."""
    ref, format_name = parse_catalog_ref(view), view.query("form", "slsa")
    statement_text = view.here.catalog.provenance(ref, form=format_name)
    return FileDownload(f"{ref.name}-{ref.version or 'newest'}.{format_name}.json", statement_text.encode())


def _render_files(view: PageView, ref: Ref) -> Html:
    opened, snapshot = open_version(view.here, ref)
    prefix, after_path = encode_path(view.query("prefix")), encode_path(view.query("page"))
    listed_entries = list(
        islice((entry for entry in snapshot.entries(prefix) if entry.path > after_path), _PAGE_SIZE + 1)
    )
    next_page = decode_path(listed_entries[_PAGE_SIZE - 1].path) if len(listed_entries) > _PAGE_SIZE else ""
    shown_entries = listed_entries[:_PAGE_SIZE]
    chosen_entry = (
        snapshot.entry(encode_path(view.query("path"))) if view.query("path") else _choose_preview(shown_entries)
    )
    prefix_form = (
        components.filter_form(view, (FormField("prefix", view.t("catalog.begins"), "search"),))
        if len(listed_entries) > 8 or prefix
        else None
    )
    file_table = (
        _render_table(view, ref, shown_entries, chosen_entry)
        if shown_entries
        else components.empty_state(view, view.t("catalog.no_files"))
    )
    preview_card = (
        view.part(lambda: _render_preview_card(view, opened, snapshot, chosen_entry)) if chosen_entry else None
    )
    checkout_command = components.copyable_code(view, f"falaj catalog checkout {ref} ./{ref.name}")
    return join_html(
        preview_card,
        components.card(
            view.t("console.files"),
            prefix_form,
            file_table,
            components.pager(view, next_page),
            checkout_command,
            id="files",
        ),
    )


def _choose_preview(entries: list[TreeEntry]) -> TreeEntry | None:
    """The file that says most about the others: a table, or what its people wrote."""
    regular_files = [candidate for candidate in entries if candidate.kind == "file"]
    table_files = (candidate for candidate in regular_files if detect_format(decode_path(candidate.path)))
    return next(table_files, None) or next(
        (candidate for candidate in regular_files if candidate.path.lower().endswith((b".md", b".txt"))), None
    )


def _render_table(view: PageView, ref: Ref, entries: list[TreeEntry], chosen_entry: TreeEntry | None) -> Html:
    t = view.t
    rows = []
    for entry in entries:
        path = decode_path(entry.path)
        file_link = h.a(
            h.bdi(to_printable(path)), href=view.link(path=path), aria_current="true" if entry == chosen_entry else None
        )
        download_link = (
            h.a(t("console.download"), href=build_version_url(ref, "file", path=path))
            if entry.size <= MAX_DOWNLOAD_BYTES
            else t("catalog.large")
        )
        digest = h.code(entry.digest[:19], "…", title=entry.digest)
        rows.append(
            TableRow(
                (
                    file_link
                    if entry.kind == "file"
                    else h.bdi(f"{to_printable(path)} → {to_printable(decode_path(entry.target))}"),
                    view.bytes(entry.size),
                    digest,
                    download_link if entry.kind == "file" else "",
                )
            )
        )
    columns = (t("console.file"), ColumnHeader(t("console.size"), "n"), ColumnHeader(t("catalog.digest"), "code"), "")
    return components.table(view, columns, rows, t("console.files"))


def _render_preview_card(view: PageView, opened: OpenedVersion, snapshot: TreeSnapshot, entry: TreeEntry) -> Html:
    path = decode_path(entry.path)
    preview = preview_file(path, entry.size, lambda max_bytes: snapshot.read(entry, 0, min(max_bytes, entry.size)))
    heading = join_html(view.t("catalog.preview"), " ", h.bdi(to_printable(path)))
    declared_columns = [column for column in (opened.table.columns if opened.table else ()) if column.category]
    category_by_column = {column.name: column.category for column in declared_columns}
    if not all(column.type for column in declared_columns):
        # A declared column is not found: under which name its values lie nobody can tell.
        category_by_column |= dict.fromkeys(preview.columns, "personal")
    return components.card(heading, _render_preview(view, preview, category_by_column, entry), id="preview")


def _render_preview(view: PageView, preview: FilePreview, category_by_column: dict[str, str], entry: TreeEntry) -> Html:
    t = view.t
    if preview.text is not None and not category_by_column:
        truncation_note = h.p(t("catalog.cut"), class_="soft") if preview.cut else None
        return join_html(h.pre(preview.text, class_="log", tabindex="0", dir="auto"), truncation_note)
    if not preview.columns:
        return h.p(t("catalog.binary", size=view.bytes(entry.size)), class_="soft")
    is_hidden = [bool(find_category(name, category_by_column)) for name in preview.columns]
    masked = h.span("•••", class_="soft", title=t("catalog.not_shown"), aria_label=t("catalog.not_shown"), role="img")
    rows = [
        [masked if is_hidden[column_index] else _render_cell(cell) for column_index, cell in enumerate(row)]
        for row in preview.rows
    ]
    notes = [
        t("catalog.first_rows", n=len(preview.rows)) if preview.cut else None,
        t("catalog.some_hidden") if any(is_hidden) else None,
    ]
    headers = [h.bdi(name) for name in preview.columns]
    return join_html(
        h.p([join_html(note, " ") for note in notes if note], class_="soft"),
        h.div(components.table(view, headers, rows, t("catalog.preview")), class_="preview"),
    )


def _render_cell(cell_text: str | None) -> Html:
    return h.span("∅", class_="soft") if cell_text is None else h.bdi(cell_text)

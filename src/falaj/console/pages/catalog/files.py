"""The files of a version: a page of them, a look into one, and one to keep. Reading asks for the right to read."""

from itertools import islice

from falaj.catalog.reading import open_version, path_of, printable, text_of
from falaj.catalog.records import Opened, Version
from falaj.console import parts
from falaj.console.markup import Html, h, join
from falaj.console.page import File, Page
from falaj.console.pages.catalog.preview import Seen, look
from falaj.console.pages.catalog.shown import asked, at, crumbs, summary, title, ways
from falaj.console.parts import Column, Field, Row
from falaj.console.view import View
from falaj.content.duck import format_of
from falaj.content.tables import category_of
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.snapshot.read import Entry, Snapshot

_PAGE = 50
SAVED_BYTES = 32 << 20
"""The largest file that a browser is handed; the command line streams any."""


def files(view: View) -> Page:
    """Which files there are, and what one of them holds."""
    ref = asked(view)
    version: Version = view.here.catalog.show(ref)
    body = join(ways(view, version.ref, "files"), summary(view, version), view.part(lambda: _inside(view, version.ref)))
    return Page(title(version.ref), body, crumbs(view, version.ref))


def file(view: View) -> File:
    """One file, to keep."""
    ref, path = asked(view), view.query("path")
    opened, snapshot = open_version(view.here, ref)
    entry = snapshot.entry(path_of(path))
    if entry.kind != "file" or entry.size > SAVED_BYTES:
        line = f"falaj catalog cat {opened.ref} {path} > file"
        raise Invalid(f"{printable(path)[:200]} is too large for a browser, or a link", line, ref)
    return File(path.rpartition("/")[2], b"".join(snapshot.read(entry)))


def statement(view: View) -> File:
    """Where a version came from, in one of the forms that other tools read."""
    ref, form = asked(view), view.query("form", "slsa")
    made = view.here.catalog.provenance(ref, form=form)
    return File(f"{ref.name}-{ref.version or 'newest'}.{form}.json", made.encode())


def _inside(view: View, ref: Ref) -> Html:
    opened, snapshot = open_version(view.here, ref)
    prefix, after = path_of(view.query("prefix")), path_of(view.query("page"))
    some = list(islice((one for one in snapshot.entries(prefix) if one.path > after), _PAGE + 1))
    following = text_of(some[_PAGE - 1].path) if len(some) > _PAGE else ""
    shown = some[:_PAGE]
    chosen = snapshot.entry(path_of(view.query("path"))) if view.query("path") else _worth(shown)
    found = (
        parts.filters(view, (Field("prefix", view.t("catalog.begins"), "search"),)) if len(some) > 8 or prefix else None
    )
    table = _table(view, ref, shown, chosen) if shown else parts.empty(view, view.t("catalog.no_files"))
    seen = view.part(lambda: _look(view, opened, snapshot, chosen)) if chosen else None
    lines = parts.copyable(view, f"falaj catalog checkout {ref} ./{ref.name}")
    return join(
        seen, parts.card(view.t("console.files"), found, table, parts.pager(view, following), lines, id="files")
    )


def _worth(entries: list[Entry]) -> Entry | None:
    """The file that says most about the others: a table, or what its people wrote."""
    plain = [one for one in entries if one.kind == "file"]
    tables = (one for one in plain if format_of(text_of(one.path)))
    return next(tables, None) or next((one for one in plain if one.path.lower().endswith((b".md", b".txt"))), None)


def _table(view: View, ref: Ref, entries: list[Entry], chosen: Entry | None) -> Html:
    t = view.t
    rows = []
    for one in entries:
        path = text_of(one.path)
        link = h.a(h.bdi(printable(path)), href=view.link(path=path), aria_current="true" if one == chosen else None)
        save = (
            h.a(t("console.download"), href=at(ref, "file", path=path))
            if one.size <= SAVED_BYTES
            else t("catalog.large")
        )
        digest = h.code(one.digest[:19], "…", title=one.digest)
        rows.append(Row((link if one.kind == "file" else h.bdi(f"{printable(path)} → {printable(text_of(one.target))}"),
                         view.bytes(one.size), digest, save if one.kind == "file" else "")))  # fmt: skip
    columns = (t("console.file"), Column(t("console.size"), "n"), Column(t("catalog.digest"), "code"), "")
    return parts.table(view, columns, rows, t("console.files"))


def _look(view: View, opened: Opened, snapshot: Snapshot, entry: Entry) -> Html:
    path = text_of(entry.path)
    seen = look(path, entry.size, lambda most: snapshot.read(entry, 0, min(most, entry.size)))
    heading = join(view.t("catalog.preview"), " ", h.bdi(printable(path)))
    declared = [column for column in (opened.table.columns if opened.table else ()) if column.category]
    hidden = {column.name: column.category for column in declared}
    if not all(column.type for column in declared):
        # A declared column is not found: under which name its values lie nobody can tell.
        hidden |= dict.fromkeys(seen.columns, "personal")
    return parts.card(heading, _seen(view, seen, hidden, entry), id="preview")


def _seen(view: View, seen: Seen, hidden: dict[str, str], entry: Entry) -> Html:
    t = view.t
    if seen.text is not None and not hidden:
        more = h.p(t("catalog.cut"), class_="soft") if seen.cut else None
        return join(h.pre(seen.text, class_="log", tabindex="0", dir="auto"), more)
    if not seen.columns:
        return h.p(t("catalog.binary", size=view.bytes(entry.size)), class_="soft")
    dark = [bool(category_of(name, hidden)) for name in seen.columns]
    masked = h.span("•••", class_="soft", title=t("catalog.not_shown"), aria_label=t("catalog.not_shown"), role="img")
    rows = [
        [masked if dark[place] else _cell(cell) for place, cell in enumerate(row)] for row in seen.rows
    ]  # fmt: skip
    said = [
        t("catalog.first_rows", n=len(seen.rows)) if seen.cut else None,
        t("catalog.some_hidden") if any(dark) else None,
    ]
    heads = [h.bdi(name) for name in seen.columns]
    return join(h.p([join(one, " ") for one in said if one], class_="soft"),
                h.div(parts.table(view, heads, rows, t("catalog.preview")), class_="preview"))  # fmt: skip


def _cell(cell: str | None) -> Html:
    return h.span("∅", class_="soft") if cell is None else h.bdi(cell)

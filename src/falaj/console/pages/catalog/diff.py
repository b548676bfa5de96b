"""What lies between two versions: files, columns, statistics and, where asked, rows."""

from collections.abc import Mapping
from typing import Any

from falaj.catalog.records import Version
from falaj.console import parts
from falaj.console.markup import Html, el, h, join
from falaj.console.page import Page
from falaj.console.pages.catalog.shown import asked, crumbs, summary, title, ways
from falaj.console.pages.catalog.version import number_of
from falaj.console.parts import Column, Field, Row
from falaj.console.plots import bars
from falaj.console.view import View
from falaj.core.ref import Ref

_FILES, _COLUMNS = 100, 200
_TONES = {"added": "good", "removed": "bad", "changed": "warn", "duplicate": "warn"}


def diff(view: View) -> Page:
    """This version against an earlier (or any other) one."""
    version: Version = view.here.catalog.show(asked(view))
    ref = version.ref
    number = number_of(ref)
    other = view.query("with") or (f"v{number - 1}" if number > 1 else "")
    body = view.part(lambda: _between(view, ref, other)) if other else parts.empty(view, view.t("catalog.first_one"))
    form = view.part(lambda: _form(view, version, other))
    page = join(ways(view, ref, "diff"), summary(view, version), form, body)
    return Page(title(ref), page, crumbs(view, ref), scripts=("plots.js",))


def _form(view: View, version: Version, other: str) -> Html:
    t, ref = view.t, version.ref
    found = view.here.catalog.list(kind=ref.kind, project=ref.project, name=ref.name, limit=200).versions
    others = sorted((one.ref for one in found if one.ref != ref), key=number_of, reverse=True)
    if not others:
        return join()
    fields = [
        Field("with", t("catalog.against"), "select", other, [(one.version, h.bdi(one.version)) for one in others])
    ]
    if version.table:
        names = [("", t("catalog.no_key")), *((one.name, one.name) for one in version.table.columns[:_COLUMNS])]
        asks = (("", t("console.state.no")), ("yes", t("console.state.yes")))
        fields.append(Field("rows", t("catalog.rows_too"), "select", options=asks))
        fields.append(Field("key", t("catalog.key"), "select", options=names))
    return parts.filters(view, fields)


def _between(view: View, ref: Ref, other: str) -> Html:
    t, key = view.t, view.query("key")
    found = view.here.catalog.diff(ref.at(other), ref, rows=bool(key or view.query("rows")), key=(key,) if key else ())
    heads = h.p(parts.ref(view, found.before, short=True), " → ", parts.ref(view, found.after, short=True))
    files = [
        Row((_how(view, one.how), h.bdi(one.name), _bytes(view, one.before_bytes), _bytes(view, one.after_bytes)))
        for one in found.files[:_FILES]
    ]
    columns = (t("catalog.how"), t("console.file"), Column(t("catalog.before"), "n"), Column(t("catalog.after"), "n"))
    more = len(found.files) > _FILES and h.p(t("catalog.more", n=len(found.files) - _FILES), class_="soft")
    told = (
        join(parts.table(view, columns, files, t("console.files")), more or None) if files else h.p(t("catalog.same"))
    )
    asked_rows = f" --rows --key {key}" if key else " --rows" if view.query("rows") else ""
    line = f"falaj catalog diff {found.before} {found.after}{asked_rows}"
    return join(
        heads,
        _counts(view, found),
        _rows(view, found) if found.rows_added is not None else None,
        _schema(view, found),
        parts.card(t("console.files"), told, id="changed-files"),
        parts.copyable(view, line),
    )


def _counts(view: View, found: Any) -> Html:
    t = view.t
    made = [
        parts.stat(t("catalog.files_added"), view.number(found.added), state="good" if found.added else ""),
        parts.stat(t("catalog.files_removed"), view.number(found.removed), state="bad" if found.removed else ""),
        parts.stat(t("catalog.files_changed"), view.number(found.changed), state="warn" if found.changed else ""),
    ]
    if found.rows_before is not None and found.rows_after is not None:
        moved = found.rows_after - found.rows_before
        note = h.span(f"{moved:+,}" if moved else "=", dir="ltr")
        made.append(parts.stat(t("catalog.rows"), view.number(found.rows_after), note))
    return h.div(made, class_="stats")


def _schema(view: View, found: Any) -> Html:
    if not found.columns:
        return join()
    t = view.t
    rows = [
        Row((h.bdi(one.column), t.of("catalog.what", one.what), _how(view, _what(one)), h.bdi(one.before[:80]),
             h.bdi(one.after[:80])))
        for one in found.columns[:_COLUMNS]
    ]  # fmt: skip
    heads = (t("console.column"), t("catalog.about_it"), t("catalog.how"), t("catalog.before"), t("catalog.after"))
    return parts.card(
        t("catalog.schema_changes"), parts.table(view, heads, rows, t("catalog.schema_changes")), id="columns"
    )


def _what(change: Any) -> str:
    if change.what != "column":
        return "changed"
    return "removed" if change.before else "added"


def _rows(view: View, found: Any) -> Html:
    t = view.t
    stats = h.div(
        parts.stat(t("catalog.rows_added"), view.number(found.rows_added), state="good" if found.rows_added else ""),
        parts.stat(
            t("catalog.rows_removed"), view.number(found.rows_removed), state="bad" if found.rows_removed else ""
        ),
        parts.stat(
            t("catalog.rows_changed"), view.number(found.rows_changed), state="warn" if found.rows_changed else ""
        ),
        class_="stats",
    )
    drawn = bars(view, [(name, float(count)) for name, count in found.columns_changed.items()],
                 title=t("catalog.columns_changed")) if found.columns_changed else None  # fmt: skip
    twice = h.p(t("catalog.twice", n=found.duplicate_keys), class_="soft") if found.duplicate_keys else None
    return parts.card(t("catalog.row_changes"), stats, twice, drawn, _samples(view, found.samples), id="rows")


def _samples(view: View, samples: tuple[Any, ...]) -> Html:
    """Some of the rows; of a changed one what was is crossed out beside what is."""
    if not samples:
        return join()
    names = list(dict.fromkeys(name for one in samples for name in (*one.before, *one.after)))[:40]
    rows = [
        Row((_how(view, one.how), *(_change(one.how, one.before, one.after, name) for name in names)))
        for one in samples
    ]
    heads = (view.t("catalog.how"), *(h.bdi(name) for name in names))
    return parts.table(view, heads, rows, view.t("catalog.samples"))


def _change(how: str, before: Mapping[str, str], after: Mapping[str, str], name: str) -> Html:
    was, now = before.get(name, ""), after.get(name, "")
    if was == now or how in ("added", "duplicate"):
        return h.bdi(now or was)
    return h.bdi(was) if how == "removed" else join(el("del", h.bdi(was)), " ", h.ins(h.bdi(now)))


def _how(view: View, how: str) -> Html:
    return h.span(view.t.of("catalog.change", how), class_=f"badge {_TONES.get(how, '')}".strip())


def _bytes(view: View, amount: int | None) -> Html:
    return view.bytes(amount) if amount is not None else join()

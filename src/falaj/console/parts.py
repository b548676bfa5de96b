"""Parts: the components that pages are made of. What looks the same is the same function."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from falaj.console.doing import ASKED, BACK, GIVEN, KEY, NAME, SHOW
from falaj.console.lines import Line
from falaj.console.markup import EMPTY, Html, h, join, text
from falaj.console.page import ROOT, address, href
from falaj.console.states import tone
from falaj.console.view import View
from falaj.core.ref import Ref


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. `kind`: n (numbers), code (machine text), or plain."""

    name: str | Html
    kind: str = ""
    sort: str = ""
    """The value of `order` in the address that sorts by it."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row; its id lets a live page find it again."""

    cells: Sequence[Any]
    id: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """Something that a person fills in before an action. `name` is the verb's argument."""

    name: str
    label: str | Html
    kind: str = "text"
    """text, number, textarea, checkbox, select, choices (any of the options; `value` has those chosen, by commas)."""
    value: str = ""
    options: Sequence[tuple[str, str | Html]] = ()
    required: bool = False
    hint: str | Html = ""


def table(
    view: View, columns: Sequence[Column | str | Html], rows: Iterable[Row | Sequence[Any]], caption: str | Html
) -> Html:
    """A table that scrolls within itself where the screen is narrow. The caption is for those who hear the page."""
    heads = [one if isinstance(one, Column) else Column(one) for one in columns]
    made = [one if isinstance(one, Row) else Row(one) for one in rows]
    body = [
        h.tr(
            [h.td(cell, class_=head.kind or None, dir="ltr" if head.kind == "code" else None)
             for head, cell in zip(heads, row.cells, strict=True)],
            id=slug(row.id) if row.id else None, class_=row.state or None,
        )
        for row in made
    ]  # fmt: skip
    head = h.thead(h.tr([h.th(_sorted(view, one), scope="col", class_=one.kind or None) for one in heads]))
    inner = h.table(h.caption(caption, class_="unseen"), head, h.tbody(body))
    return h.div(inner, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _sorted(view: View, column: Column) -> Html:
    if not column.sort:
        return text(column.name)
    now = view.query("order")
    down = now == column.sort
    mark = " ▾" if down else " ▴" if now == f"-{column.sort}" else ""
    return h.a(column.name, mark, href=view.link(order=f"-{column.sort}" if down else column.sort, page=""))


def facts(given: Mapping[str | Html, Any] | Sequence[tuple[str | Html, Any]]) -> Html:
    """Names and values. What is empty is left out."""
    pairs = given.items() if isinstance(given, Mapping) else given
    shown = [(name, value) for name, value in pairs if value not in (None, "", EMPTY, ())]
    return h.dl([h.div(h.dt(name), h.dd(value)) for name, value in shown], class_="facts")


def card(title: str | Html, *body: Any, id: str = "", more: str = "", wide: bool = False) -> Html:  # noqa: A002
    """A part of a page with a heading; `more` is where its heading leads."""
    name = h.a(title, href=more) if more else text(title)
    # A plot whose title is the heading's does not show it again.
    again, once = (f'<span class="plot-title{kind}">{text(title)}</span>' for kind in ("", " unseen"))
    shown = [Html(one.replace(again, once)) if isinstance(one, Html) else one for one in body]
    return h.section(h.h2(name), *shown, class_="card wide" if wide else "card", id=slug(id) if id else None)


def cards(*made: Html) -> Html:
    """Cards beside each other, as many as fit."""
    return h.div(made, class_="cards")


def stat(name: str | Html, value: Any, note: Any = "", link: str = "", state: str = "") -> Html:
    """One number that matters."""
    inner = join(h.span(value, class_="value"), h.span(name, class_="name"), h.small(note) if note else None)
    kind = f"stat {state}".strip()
    return h.a(inner, href=link, class_=kind) if link else h.div(inner, class_=kind)


def badge(view: View, state: str) -> Html:
    """A state: a word, and a colour that agrees with it."""
    return h.span(view.t.of("console.state", state), class_=f"badge {tone(state)}".strip(), data_state=state)


def tag(value: str) -> Html:
    """A short word of somebody's: an alias, a label, a role."""
    return h.bdi(value, class_="tag")


def notice(kind: str, message: str | Html, hint: str | Html = "") -> Html:
    """Something to know. Kinds: good, warn, bad, denied, plain."""
    return h.div(h.p(h.bdi(message)), h.p(h.bdi(hint), class_="soft") if hint else None,
                 class_=f"notice {kind}", role="note")  # fmt: skip


def empty(view: View, title: str | Html, hint: str | Html = "", command: str = "") -> Html:
    """Nothing is there yet: what would be, and how it comes."""
    shown = copyable(view, command) if command else None
    return h.div(h.p(title, class_="title"), h.p(hint) if hint else None, shown, class_="empty")


def ref(view: View, named: Ref | str, *, short: bool = False) -> Html:
    """A thing, as a link to its page."""
    del view
    known = named if isinstance(named, Ref) else Ref.parse(named)
    shown = f"{known.name}@{known.version}" if known.version else known.name
    return h.a(h.bdi(shown if short else str(known)), href=href(known), class_="ref short" if short else "ref")


def copyable(view: View, line: str) -> Html:
    """Machine text with a button that copies it."""
    button = h.button(view.t("console.copy"), type="button", class_="quiet", data_copy=line)
    return h.div(h.code(line, dir="ltr"), button, class_="line")


def tabs(view: View, given: Sequence[tuple[str, str | Html]], name: str = "tab") -> Html:
    """Tabs as links; the first one is the page without a query."""
    now = view.query(name) or given[0][0]
    first = given[0][0]
    links = [
        h.a(label, href=view.link(**{name: "" if key == first else key, "page": ""}),
            aria_current="page" if key == now else None)
        for key, label in given
    ]  # fmt: skip
    return h.nav(links, class_="tabs", aria_label=view.t("console.parts"))


def pager(view: View, token: str) -> Html:
    """The way to what comes next, and back to the beginning."""
    first = h.a(view.t("console.first_page"), href=view.link(page="")) if view.query("page") else None
    after = h.a(view.t("console.next_page"), href=view.link(page=token), rel="next") if token else None
    return h.nav(first, after, class_="pager", aria_label=view.t("console.pages")) if first or after else EMPTY


def filters(view: View, fields: Sequence[Field], label: str | Html = "") -> Html:
    """A form over a list, or a draft; what is chosen goes into the address."""
    inner = [_label(view, one, view.query(one.name, one.value), one.name) for one in fields]
    kept = [h.input(type="hidden", name=key, value=value) for key, value in view.asked.items()
            if key not in {one.name for one in fields} | {"page"}]  # fmt: skip
    button = h.button(label or view.t("console.show"), class_="primary" if label else "quiet")
    return h.form(inner, kept, button, method="get", action=address(view.path), class_="filters", role="search")


def action(
    view: View,
    desk: str,
    verb: str,
    arguments: Mapping[str, Any],
    label: str | Html,
    fields: Sequence[Field] = (),
    **how: Any,
) -> Html:
    """A button that calls a verb; disabled, with what it would need, for whoever may not.

    `how`: danger, primary (bool); confirm (a text: asked before); back (address to go to then); show (bool: show what
    came back); file (what bytes that come back are saved as); about (the thing whose policy decides; else the first
    reference among the arguments); id.
    """
    about = how.get("about") or next((value for value in arguments.values() if isinstance(value, Ref)), "")

    def made(lacking: Html) -> Html:
        if not lacking:
            return _button(view, (desk, verb), arguments, label, fields, how)
        key = f"needs-{slug(f'{desk}-{verb}-{about}-{label}')}"
        button = h.button(label, type="button", disabled=True, aria_describedby=key, class_=_kind(how) or None)
        return h.div(button, h.small(view.t("console.needs", what=lacking), id=key, class_="soft"), class_="act denied")

    return view.knowing(f"{desk}.{verb}", about, made)


def _kind(how: Mapping[str, Any]) -> str:
    return "danger" if how.get("danger") else "primary" if how.get("primary") else ""


def _button(
    view: View, what: tuple[str, str], arguments: Mapping[str, Any], label: str | Html, fields: Sequence[Field],
    how: Mapping[str, Any],
) -> Html:  # fmt: skip
    """What `action` gives to whoever may."""
    (desk, verb), kind = what, _kind(how)
    plain = {key: _plain(value) for key, value in arguments.items()}
    hidden = [
        h.input(type="hidden", name=KEY, value=view.csrf),
        h.input(type="hidden", name=GIVEN, value=json.dumps(plain, ensure_ascii=False)),
        h.input(type="hidden", name=BACK, value=how.get("back") or view.link()),
        h.input(type="hidden", name=SHOW, value="1") if how.get("show") else None,
        h.input(type="hidden", name=NAME, value=how["file"]) if how.get("file") else None,
    ]
    where = {"method": "post", "action": f"{ROOT}/do/{desk}/{verb}", "id": how.get("id") or None}
    if not fields and not how.get("confirm"):
        return h.form(hidden, h.button(label, class_=kind or None), class_="act", **where)
    asked = [_label(view, one, one.value, ASKED + one.name) for one in fields]
    words = h.p(how["confirm"]) if how.get("confirm") else None
    line = h.code(Line(desk, verb, plain).shell(), dir="ltr", class_="soft")
    body = h.form(words, asked, line, hidden, h.button(label, class_=kind or "primary"), **where)
    return h.details(h.summary(label, class_=f"button {kind}".strip()), h.div(body, class_="sheet"), class_="act")


def _label(view: View, field: Field, value: str, name: str) -> Html:
    del view
    if field.kind == "choices":
        chosen = value.split(",")
        boxes = [
            h.label(
                h.input(type="checkbox", name=name, value=key, checked=key in chosen), h.span(word), class_="choice"
            )
            for key, word in field.options
        ]
        return h.fieldset(h.legend(field.label), boxes, class_="choices-of")
    common = {"name": name, "required": field.required or None}
    if field.kind == "select":
        made = h.select([h.option(word, value=key, selected=key == value) for key, word in field.options], **common)
    elif field.kind == "textarea":
        made = h.textarea(value, rows="4", dir="auto", **common)
    elif field.kind == "checkbox":
        made = h.input(type="checkbox", value="on", checked=value == "on", **common)
    else:
        step = "any" if field.kind == "number" else None
        made = h.input(type=field.kind, value=value, step=step, dir="auto", autocomplete="off", **common)
    return h.label(h.span(field.label), made, h.small(field.hint, class_="soft") if field.hint else None)


def _plain(value: Any) -> Any:
    if isinstance(value, Ref):
        return str(value)
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    return {key: _plain(one) for key, one in value.items()} if isinstance(value, Mapping) else value


def slug(value: str) -> str:
    """A text as an id of an element."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in value)

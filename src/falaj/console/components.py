"""Parts: the components that pages are made of. What looks the same is the same function."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from falaj.console.markup import EMPTY, Html, escape_text, h, join_html
from falaj.console.operation_forms import (
    ARGUMENTS_FIELD,
    FILE_NAME_FIELD,
    FORM_TOKEN_FIELD,
    INPUT_PREFIX,
    RETURN_FIELD,
    SHOW_RESULT_FIELD,
)
from falaj.console.page import ROOT_PATH, build_resource_url, build_url
from falaj.console.page_view import PageView
from falaj.console.recorded_calls import RecordedCall
from falaj.console.state_tones import get_tone
from falaj.core.ref import Ref


@dataclass(frozen=True, slots=True)
class ColumnHeader:
    """A column of a table. `kind`: n (numbers), code (machine text), or plain."""

    name: str | Html
    kind: str = ""
    sort: str = ""
    """The value of `order` in the address that sorts by it."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row; its id lets a live page find it again."""

    cells: Sequence[Any]
    id: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class FormField:
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
    view: PageView,
    columns: Sequence[ColumnHeader | str | Html],
    rows: Iterable[TableRow | Sequence[Any]],
    caption: str | Html,
) -> Html:
    """A table that scrolls within itself where the screen is narrow. The caption is for those who hear the page."""
    headers = [item if isinstance(item, ColumnHeader) else ColumnHeader(item) for item in columns]
    table_rows = [item if isinstance(item, TableRow) else TableRow(item) for item in rows]
    body = [
        h.tr(
            [
                h.td(cell, class_=header.kind or None, dir="ltr" if header.kind == "code" else None)
                for header, cell in zip(headers, row.cells, strict=True)
            ],
            id=to_element_id(row.id) if row.id else None,
            class_=row.state or None,
        )
        for row in table_rows
    ]
    header = h.thead(
        h.tr([h.th(_render_sort_link(view, item), scope="col", class_=item.kind or None) for item in headers])
    )
    table_element = h.table(h.caption(caption, class_="unseen"), header, h.tbody(body))
    return h.div(table_element, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _render_sort_link(view: PageView, column: ColumnHeader) -> Html:
    if not column.sort:
        return escape_text(column.name)
    current_order = view.query("order")
    is_current = current_order == column.sort
    sort_mark = " ▾" if is_current else " ▴" if current_order == f"-{column.sort}" else ""
    return h.a(column.name, sort_mark, href=view.link(order=f"-{column.sort}" if is_current else column.sort, page=""))


def fact_list(entries: Mapping[str | Html, Any] | Sequence[tuple[str | Html, Any]]) -> Html:
    """Names and values. What is empty is left out."""
    pairs = entries.items() if isinstance(entries, Mapping) else entries
    shown_entries = [(name, value) for name, value in pairs if value not in (None, "", EMPTY, ())]
    return h.dl([h.div(h.dt(name), h.dd(value)) for name, value in shown_entries], class_="facts")


def card(title: str | Html, *body: Any, id: str = "", heading_link: str = "", wide: bool = False) -> Html:  # noqa: A002
    """A part of a page with a heading; `heading_link` is where its heading leads."""
    heading = h.a(title, href=heading_link) if heading_link else escape_text(title)
    # A plot whose title is the heading's does not show it again.
    duplicate_title, hidden_title = (
        f'<span class="plot-title{class_suffix}">{escape_text(title)}</span>' for class_suffix in ("", " unseen")
    )
    contents = [
        Html(child.replace(duplicate_title, hidden_title)) if isinstance(child, Html) else child for child in body
    ]
    return h.section(
        h.h2(heading), *contents, class_="card wide" if wide else "card", id=to_element_id(id) if id else None
    )


def card_grid(*children: Html) -> Html:
    """Cards beside each other, as many as fit."""
    return h.div(children, class_="cards")


def stat_tile(name: str | Html, value: Any, note: Any = "", link: str = "", state: str = "") -> Html:
    """One number that matters."""
    contents = join_html(h.span(value, class_="value"), h.span(name, class_="name"), h.small(note) if note else None)
    css_class = f"stat {state}".strip()
    return h.a(contents, href=link, class_=css_class) if link else h.div(contents, class_=css_class)


def badge(view: PageView, state: str) -> Html:
    """A state: a word, and a colour that agrees with it."""
    return h.span(view.t.of("console.state", state), class_=f"badge {get_tone(state)}".strip(), data_state=state)


def tag(value: str) -> Html:
    """A short word of somebody's: an alias, a label, a role."""
    return h.bdi(value, class_="tag")


def notice(kind: str, message: str | Html, hint: str | Html = "") -> Html:
    """Something to know. Kinds: good, warn, bad, denied, plain."""
    return h.div(
        h.p(h.bdi(message)), h.p(h.bdi(hint), class_="soft") if hint else None, class_=f"notice {kind}", role="note"
    )


def empty_state(view: PageView, title: str | Html, hint: str | Html = "", command: str = "") -> Html:
    """Nothing is there yet: what would be, and how it comes."""
    command_line = copyable_code(view, command) if command else None
    return h.div(h.p(title, class_="title"), h.p(hint) if hint else None, command_line, class_="empty")


def ref_link(view: PageView, target: Ref | str, *, short: bool = False) -> Html:
    """A thing, as a link to its page."""
    del view
    parsed_ref = target if isinstance(target, Ref) else Ref.parse(target)
    label = f"{parsed_ref.name}@{parsed_ref.version}" if parsed_ref.version else parsed_ref.name
    return h.a(
        h.bdi(label if short else str(parsed_ref)),
        href=build_resource_url(parsed_ref),
        class_="ref short" if short else "ref",
    )


def copyable_code(view: PageView, code_text: str) -> Html:
    """Machine text with a button that copies it."""
    button = h.button(view.t("console.copy"), type="button", class_="quiet", data_copy=code_text)
    return h.div(h.code(code_text, dir="ltr"), button, class_="line")


def tabs(view: PageView, labels_by_key: Sequence[tuple[str, str | Html]], name: str = "tab") -> Html:
    """Tabs as links; the first one is the page without a query."""
    current_key = view.query(name) or labels_by_key[0][0]
    first_key = labels_by_key[0][0]
    links = [
        h.a(
            label,
            href=view.link(**{name: "" if key == first_key else key, "page": ""}),
            aria_current="page" if key == current_key else None,
        )
        for key, label in labels_by_key
    ]
    return h.nav(links, class_="tabs", aria_label=view.t("console.parts"))


def pager(view: PageView, next_page: str) -> Html:
    """The way to what comes next, and back to the beginning."""
    first_link = h.a(view.t("console.first_page"), href=view.link(page="")) if view.query("page") else None
    next_link = h.a(view.t("console.next_page"), href=view.link(page=next_page), rel="next") if next_page else None
    return (
        h.nav(first_link, next_link, class_="pager", aria_label=view.t("console.pages"))
        if first_link or next_link
        else EMPTY
    )


def filter_form(view: PageView, fields: Sequence[FormField], label: str | Html = "") -> Html:
    """A form over a list, or a draft; what is chosen goes into the address."""
    labelled_inputs = [_render_field(view, field, view.query(field.name, field.value), field.name) for field in fields]
    hidden_inputs = [
        h.input(type="hidden", name=key, value=value)
        for key, value in view.asked.items()
        if key not in {field.name for field in fields} | {"page"}
    ]
    button = h.button(label or view.t("console.show"), class_="primary" if label else "quiet")
    return h.form(
        labelled_inputs,
        hidden_inputs,
        button,
        method="get",
        action=build_url(view.path),
        class_="filters",
        role="search",
    )


def action_button(
    view: PageView,
    service_name: str,
    operation_name: str,
    arguments: Mapping[str, Any],
    label: str | Html,
    fields: Sequence[FormField] = (),
    **options: Any,
) -> Html:
    """A button that calls a verb; disabled, with what it would need, for whoever may not.

    `options`: danger, primary (bool); confirm (a text: asked before); back (address to go to then); show (bool: show
    what came back); file (what bytes that come back are saved as); about (the thing whose policy decides; else the
    first reference among the arguments); id.
    """
    resource = options.get("about") or next((value for value in arguments.values() if isinstance(value, Ref)), "")

    def render_button(missing_permission: Html) -> Html:
        if not missing_permission:
            return _render_action_form(view, (service_name, operation_name), arguments, label, fields, options)
        needs_id = f"needs-{to_element_id(f'{service_name}-{operation_name}-{resource}-{label}')}"
        button = h.button(
            label, type="button", disabled=True, aria_describedby=needs_id, class_=_get_button_class(options) or None
        )
        return h.div(
            button,
            h.small(view.t("console.needs", what=missing_permission), id=needs_id, class_="soft"),
            class_="act denied",
        )

    return view.knowing(f"{service_name}.{operation_name}", resource, render_button)


def _get_button_class(options: Mapping[str, Any]) -> str:
    return "danger" if options.get("danger") else "primary" if options.get("primary") else ""


def _render_action_form(
    view: PageView,
    service_and_operation: tuple[str, str],
    arguments: Mapping[str, Any],
    label: str | Html,
    fields: Sequence[FormField],
    options: Mapping[str, Any],
) -> Html:
    """What `action` gives to whoever may."""
    (service_name, operation_name), button_class = service_and_operation, _get_button_class(options)
    plain_arguments = {key: _to_plain_value(value) for key, value in arguments.items()}
    hidden_inputs = [
        h.input(type="hidden", name=FORM_TOKEN_FIELD, value=view.csrf),
        h.input(type="hidden", name=ARGUMENTS_FIELD, value=json.dumps(plain_arguments, ensure_ascii=False)),
        h.input(type="hidden", name=RETURN_FIELD, value=options.get("back") or view.link()),
        h.input(type="hidden", name=SHOW_RESULT_FIELD, value="1") if options.get("show") else None,
        h.input(type="hidden", name=FILE_NAME_FIELD, value=options["file"]) if options.get("file") else None,
    ]
    form_attributes = {
        "method": "post",
        "action": f"{ROOT_PATH}/do/{service_name}/{operation_name}",
        "id": options.get("id") or None,
    }
    if not fields and not options.get("confirm"):
        return h.form(hidden_inputs, h.button(label, class_=button_class or None), class_="act", **form_attributes)
    labelled_inputs = [_render_field(view, field, field.value, INPUT_PREFIX + field.name) for field in fields]
    confirmation = h.p(options["confirm"]) if options.get("confirm") else None
    command_line = h.code(RecordedCall(service_name, operation_name, plain_arguments).shell(), dir="ltr", class_="soft")
    body = h.form(
        confirmation,
        labelled_inputs,
        command_line,
        hidden_inputs,
        h.button(label, class_=button_class or "primary"),
        **form_attributes,
    )
    return h.details(
        h.summary(label, class_=f"button {button_class}".strip()), h.div(body, class_="sheet"), class_="act"
    )


def _render_field(view: PageView, field: FormField, value: str, name: str) -> Html:
    del view
    if field.kind == "choices":
        chosen_keys = value.split(",")
        checkboxes = [
            h.label(
                h.input(type="checkbox", name=name, value=key, checked=key in chosen_keys),
                h.span(option_label),
                class_="choice",
            )
            for key, option_label in field.options
        ]
        return h.fieldset(h.legend(field.label), checkboxes, class_="choices-of")
    common_attributes = {"name": name, "required": field.required or None}
    if field.kind == "select":
        input_element = h.select(
            [h.option(option_label, value=key, selected=key == value) for key, option_label in field.options],
            **common_attributes,
        )
    elif field.kind == "textarea":
        input_element = h.textarea(value, rows="4", dir="auto", **common_attributes)
    elif field.kind == "checkbox":
        input_element = h.input(type="checkbox", value="on", checked=value == "on", **common_attributes)
    else:
        step = "any" if field.kind == "number" else None
        input_element = h.input(
            type=field.kind, value=value, step=step, dir="auto", autocomplete="off", **common_attributes
        )
    return h.label(h.span(field.label), input_element, h.small(field.hint, class_="soft") if field.hint else None)


def _to_plain_value(value: Any) -> Any:
    if isinstance(value, Ref):
        return str(value)
    if isinstance(value, (tuple, list)):
        return [_to_plain_value(item) for item in value]
    return {key: _to_plain_value(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def to_element_id(value: str) -> str:
    """A text as an id of an element."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in value)

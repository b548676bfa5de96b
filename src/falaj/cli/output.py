"""Results for eyes and for programs: tables in a terminal, tab-separated lines in a pipe, JSON when asked."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from falaj.cli.cli_context import escape_terminal_text
from falaj.core.label import Label
from falaj.core.ref import Ref

if TYPE_CHECKING:
    from falaj.core.check_result import CheckResult

TableRow = list[str]
_TIME_FIELDS = frozenset(
    {
        *("at", "expires", "asked", "until", "since", "started", "ended", "due", "received", "enrolled", "confirmed"),
        *("renewable_until", "last_used", "not_before", "valid_from", "valid_to"),
    }
)
_MAX_CELL_CHARS = 200
"""So much of a value a table of many shows in a terminal; --json, a pipe and a single record show all of it."""
_MAX_PARTS = 30
"""So many parts of a value a single record shows in a terminal, such as packages of an environment."""
_STYLE_BY_STATE = {"RISK": "red", "look": "yellow"}
"""The colours of findings by their state; what must be fixed is bold red."""
_MAX_LINE_CHARS = 100
"""What is longer is shown line by line in a terminal, where it is made of several."""


def print_result(value: Any, *, as_json: bool = False) -> None:
    """Print what a verb gave."""
    if as_json:
        sys.stdout.write(json.dumps(to_plain(value), ensure_ascii=False) + "\n")
    elif value is None:
        sys.stdout.write("done\n")
    elif isinstance(value, (str, int, float, bool, Ref, Label)):
        sys.stdout.write(f"{format_cell('', value)}\n")
    elif isinstance(value, Sequence):
        _print_list(value)
    elif text_field := getattr(value, "TEXT", ""):
        # A record that is mostly text: its lines as they are.
        sys.stdout.write("".join(f"{line}\n" for line in getattr(value, text_field)))
    else:
        _print_record(value)


def print_check_results(check_results: "Sequence[CheckResult]", bad_state: str, *, as_json: bool) -> int:
    """Print what a look at a set-up found, with colours in a terminal; the exit code is 1 when something is bad."""
    if as_json:
        print_result(check_results, as_json=True)
    else:
        styles = [
            {bad_state: "bold red", **_STYLE_BY_STATE}.get(check_result.state, "") for check_result in check_results
        ]
        lines = [
            [check_result.check, check_result.state, check_result.found, check_result.fix]
            for check_result in check_results
        ]
        print_table(["check", "", "found", "what to do"], lines, styles=styles)
    return 1 if any(any_result.state == bad_state for any_result in check_results) else 0


def to_plain(value: Any) -> Any:
    """Dicts, lists, texts and numbers, as the wire has them."""
    if isinstance(value, Ref):
        return str(value)
    if isinstance(value, Label):
        return value.to_dict()
    if is_dataclass(value):
        return {record_field.name: to_plain(getattr(value, record_field.name)) for record_field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (frozenset, set)):
        return sorted(to_plain(item) for item in value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_plain(item) for item in value]
    return value


def print_table(
    column_names: TableRow, lines: Sequence[TableRow], *, shows_records: bool = False, styles: Sequence[str] = ()
) -> None:
    """A table with a head in a terminal, where each line may have a style; tab-separated lines elsewhere."""
    column_names, lines = (
        [escape_terminal_text(name) for name in column_names],
        [[escape_terminal_text(part) for part in row] for row in lines],
    )
    if not sys.stdout.isatty():
        header_lines = [] if shows_records else ["\t".join(column_names)]
        sys.stdout.write(
            "".join(
                f"{line}\n"
                for line in [*header_lines, *("\t".join(_escape_tabs(cell_text) for cell_text in row) for row in lines)]
            )
        )
        return
    from rich.console import Console
    from rich.table import Table

    # A terminal is narrow: a column that says nothing is not shown, nor is a field of a record.
    shown_columns = [index for index in range(len(column_names)) if shows_records or any(row[index] for row in lines)]
    column_names, lines = (
        [column_names[index] for index in shown_columns],
        [[row[index] for index in shown_columns] for row in lines if not shows_records or any(row[1:])],
    )
    table = Table(show_header=not shows_records, box=None, pad_edge=False, header_style="bold")
    for column_index, name in enumerate(column_names):
        table.add_column(name, style="bold" if shows_records and not column_index else None, overflow="fold")
    for row, style in zip_longest(lines, styles[: len(lines)], fillvalue=""):
        table.add_row(*(row if shows_records else map(_truncate_cell, row)), style=style)
    # Words [in brackets] are no styles, and words between colons no pictures, as the library has it.
    Console(markup=False, emoji=False).print(table)


def format_cell(name: str, value: Any) -> str:
    """One value as a person reads it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Label):
        return value.words
    if isinstance(value, float) and (name in _TIME_FIELDS or name.endswith("_at")) and (value > 1e9 or not value):
        # 0 is no moment, or none yet.
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if value else ""
    if isinstance(value, (tuple, list, frozenset, set)):
        return ", ".join(
            sorted(map(str, value))
            if isinstance(value, (frozenset, set))
            else (format_cell("", list_item) for list_item in value)
        )
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={format_cell('', item)}" for key, item in value.items() if key != "facts")
    if is_dataclass(value):
        # A record that stands inside another may say itself in a word.
        if summary := getattr(value, "brief", ""):
            return str(summary)
        return ", ".join(
            f"{record_field.name}={format_cell(record_field.name, getattr(value, record_field.name))}"
            for record_field in fields(value)
            if getattr(value, record_field.name) not in ("", (), None)
        )
    return str(value)


def _print_list(values: Sequence[Any]) -> None:
    if not values:
        sys.stderr.write("nothing\n")
        return
    first_value = values[0]
    if is_dataclass(first_value) and not isinstance(first_value, (type, Label)):
        # A record may name the few columns a list shows, also of records in it (standing.why); --json and a single
        # record show everything.
        names = list(getattr(first_value, "COLUMNS", ())) or [record_field.name for record_field in fields(first_value)]
        print_table(
            [name.rpartition(".")[2].replace("_", " ") for name in names],
            [[format_cell(name.rpartition(".")[2], attrgetter(name)(value)) for name in names] for value in values],
        )
    elif isinstance(first_value, Mapping):
        names = list(dict.fromkeys(key for value in values for key in value))
        print_table(names, [[format_cell(name, value.get(name)) for name in names] for value in values])
    elif isinstance(first_value, (tuple, list)):
        sys.stdout.write(
            "".join(
                "\t".join(escape_terminal_text(format_cell("", tuple_part)) for tuple_part in value) + "\n"
                for value in values
            )
        )
    else:
        sys.stdout.write("".join(f"{escape_terminal_text(format_cell('', value))}\n" for value in values))


def _print_record(value: Any) -> None:
    """A record line by line; a record that is a page of others, as their table and how to go on."""
    named_values = (
        list(value.items())
        if isinstance(value, Mapping)
        else [(record_field.name, getattr(value, record_field.name)) for record_field in fields(value)]
    )
    record_lists = [
        (name, field_value)
        for name, field_value in named_values
        if isinstance(field_value, tuple) and field_value and is_dataclass(field_value[0])
    ]
    value_by_name = dict(named_values)
    cursor = next((name for name in ("next", "older") if name in value_by_name), "")
    if cursor and len(named_values) == 2:
        ((_, field_value),) = [pair for pair in named_values if pair[0] != cursor]
        _print_list(field_value)
        if value_by_name[cursor]:
            sys.stderr.write(f"more: --{'older' if cursor == 'older' else 'after'} {value_by_name[cursor]}\n")
        return
    # In a terminal what is a record itself has a part of its own; programs that read a pipe count on one line each.
    large_fields = [
        (name, field_value)
        for name, field_value in named_values
        if sys.stdout.isatty() and _is_large(name, field_value)
    ]
    format_field = format_cell if not sys.stdout.isatty() else _format_multiline
    print_table(
        ["", ""],
        [
            [name.replace("_", " "), format_field(name, field_value)]
            for name, field_value in named_values
            if (name, field_value) not in record_lists + large_fields
        ],
        shows_records=True,
    )
    for name, field_value in record_lists + large_fields:
        sys.stdout.write(f"\n{name.replace('_', ' ')}\n")
        (_print_list if (name, field_value) in record_lists else _print_record)(field_value)


def _is_large(name: str, value: Any) -> bool:
    """Whether a value is a record of many parts, which nobody can read as one line."""
    is_record = is_dataclass(value) and not isinstance(value, (type, Label)) and not getattr(value, "brief", "")
    return is_record and len(format_cell(name, value)) > _MAX_LINE_CHARS


def _format_multiline(name: str, value: Any) -> str:
    """One value of a record for a terminal."""
    text = format_cell(name, value)
    if len(text) <= _MAX_LINE_CHARS:
        return text
    if isinstance(value, Mapping):
        parts = [f"{key}={format_cell('', item)}" for key, item in value.items() if key != "facts"]
    else:
        parts = [format_cell("", item) for item in value] if isinstance(value, (tuple, list)) else [text]
    omitted_note = [f"… and {len(parts) - _MAX_PARTS} more: --json shows all"] if len(parts) > _MAX_PARTS else []
    return "\n".join([*parts[:_MAX_PARTS], *omitted_note])


def _truncate_cell(text: str) -> str:
    return text if len(text) <= _MAX_CELL_CHARS else f"{text[: _MAX_CELL_CHARS - 1]}…"


def _escape_tabs(text: str) -> str:
    return text.replace("\t", " ").replace("\n", " ")

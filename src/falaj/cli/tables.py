"""Results for eyes and for programs: tables in a terminal, tab-separated lines in a pipe, JSON when asked."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from falaj.cli.frame import harmless
from falaj.core.label import Label
from falaj.core.ref import Ref

if TYPE_CHECKING:
    from falaj.core.finding import Finding

Row = list[str]
_MOMENTS = frozenset(
    {
        *("at", "expires", "asked", "until", "since", "started", "ended", "due", "received", "enrolled", "confirmed"),
        *("renewable_until", "last_used", "not_before", "valid_from", "valid_to"),
    }
)
_LONG = 200
"""So much of a value a table of many shows in a terminal; --json, a pipe and a single record show all of it."""
_MANY = 30
"""So many parts of a value a single record shows in a terminal, such as packages of an environment."""
_STYLES = {"RISK": "red", "look": "yellow"}
"""The colours of findings by their state; what must be fixed is bold red."""
_WIDE = 100
"""What is longer is shown line by line in a terminal, where it is made of several."""


def put(value: Any, *, as_json: bool = False) -> None:
    """Print what a verb gave."""
    if as_json:
        sys.stdout.write(json.dumps(plain(value), ensure_ascii=False) + "\n")
    elif value is None:
        sys.stdout.write("done\n")
    elif isinstance(value, (str, int, float, bool, Ref, Label)):
        sys.stdout.write(f"{cell('', value)}\n")
    elif isinstance(value, Sequence):
        _put_many(value)
    elif text := getattr(value, "TEXT", ""):
        # A record that is mostly text: its lines as they are.
        sys.stdout.write("".join(f"{line}\n" for line in getattr(value, text)))
    else:
        _put_one(value)


def put_findings(found: "Sequence[Finding]", bad: str, *, as_json: bool) -> int:
    """Print what a look at a set-up found, with colours in a terminal; the exit code is 1 when something is bad."""
    if as_json:
        put(found, as_json=True)
    else:
        styles = [{bad: "bold red", **_STYLES}.get(finding.state, "") for finding in found]
        lines = [[finding.check, finding.state, finding.found, finding.fix] for finding in found]
        rows(["check", "", "found", "what to do"], lines, styles=styles)
    return 1 if any(one.state == bad for one in found) else 0


def plain(value: Any) -> Any:
    """Dicts, lists, texts and numbers, as the wire has them."""
    if isinstance(value, Ref):
        return str(value)
    if isinstance(value, Label):
        return value.to_dict()
    if is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (frozenset, set)):
        return sorted(plain(inner) for inner in value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(inner) for inner in value]
    return value


def rows(title: Row, lines: Sequence[Row], *, records: bool = False, styles: Sequence[str] = ()) -> None:
    """A table with a head in a terminal, where each line may have a style; tab-separated lines elsewhere."""
    title, lines = [harmless(name) for name in title], [[harmless(part) for part in row] for row in lines]
    if not sys.stdout.isatty():
        head = [] if records else ["\t".join(title)]
        sys.stdout.write("".join(f"{line}\n" for line in [*head, *("\t".join(_flat(c) for c in row) for row in lines)]))
        return
    from rich.console import Console
    from rich.table import Table

    # A terminal is narrow: a column that says nothing is not shown, nor is a field of a record.
    kept = [n for n in range(len(title)) if records or any(row[n] for row in lines)]
    title, lines = [title[n] for n in kept], [[row[n] for n in kept] for row in lines if not records or any(row[1:])]
    table = Table(show_header=not records, box=None, pad_edge=False, header_style="bold")
    for at, name in enumerate(title):
        table.add_column(name, style="bold" if records and not at else None, overflow="fold")
    for row, style in zip_longest(lines, styles[: len(lines)], fillvalue=""):
        table.add_row(*(row if records else map(_cut, row)), style=style)
    # Words [in brackets] are no styles, and words between colons no pictures, as the library has it.
    Console(markup=False, emoji=False).print(table)


def cell(name: str, value: Any) -> str:
    """One value as a person reads it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Label):
        return value.words
    if isinstance(value, float) and (name in _MOMENTS or name.endswith("_at")) and (value > 1e9 or not value):
        # 0 is no moment, or none yet.
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if value else ""
    if isinstance(value, (tuple, list, frozenset, set)):
        return ", ".join(
            sorted(map(str, value)) if isinstance(value, (frozenset, set)) else (cell("", v) for v in value)
        )
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={cell('', inner)}" for key, inner in value.items() if key != "facts")
    if is_dataclass(value):
        # A record that stands inside another may say itself in a word.
        if brief := getattr(value, "brief", ""):
            return str(brief)
        return ", ".join(
            f"{f.name}={cell(f.name, getattr(value, f.name))}"
            for f in fields(value)
            if getattr(value, f.name) not in ("", (), None)
        )
    return str(value)


def _put_many(values: Sequence[Any]) -> None:
    if not values:
        sys.stderr.write("nothing\n")
        return
    first = values[0]
    if is_dataclass(first) and not isinstance(first, (type, Label)):
        # A record may name the few columns a list shows, also of records in it (standing.why); --json and a single
        # record show everything.
        names = list(getattr(first, "COLUMNS", ())) or [item.name for item in fields(first)]
        rows(
            [name.rpartition(".")[2].replace("_", " ") for name in names],
            [[cell(name.rpartition(".")[2], attrgetter(name)(value)) for name in names] for value in values],
        )
    elif isinstance(first, Mapping):
        names = list(dict.fromkeys(key for value in values for key in value))
        rows(names, [[cell(name, value.get(name)) for name in names] for value in values])
    elif isinstance(first, (tuple, list)):
        sys.stdout.write("".join("\t".join(harmless(cell("", part)) for part in value) + "\n" for value in values))
    else:
        sys.stdout.write("".join(f"{harmless(cell('', value))}\n" for value in values))


def _put_one(value: Any) -> None:
    """A record line by line; a record that is a page of others, as their table and how to go on."""
    pairs = (
        list(value.items()) if isinstance(value, Mapping) else [(f.name, getattr(value, f.name)) for f in fields(value)]
    )
    lists = [(name, inner) for name, inner in pairs if isinstance(inner, tuple) and inner and is_dataclass(inner[0])]
    found = dict(pairs)
    cursor = next((name for name in ("next", "older") if name in found), "")
    if cursor and len(pairs) == 2:
        ((_, inner),) = [pair for pair in pairs if pair[0] != cursor]
        _put_many(inner)
        if found[cursor]:
            sys.stderr.write(f"more: --{'older' if cursor == 'older' else 'after'} {found[cursor]}\n")
        return
    # In a terminal what is a record itself has a part of its own; programs that read a pipe count on one line each.
    apart = [(name, inner) for name, inner in pairs if sys.stdout.isatty() and _is_large(name, inner)]
    shown = cell if not sys.stdout.isatty() else _lines
    rows(
        ["", ""],
        [[name.replace("_", " "), shown(name, inner)] for name, inner in pairs if (name, inner) not in lists + apart],
        records=True,
    )
    for name, inner in lists + apart:
        sys.stdout.write(f"\n{name.replace('_', ' ')}\n")
        (_put_many if (name, inner) in lists else _put_one)(inner)


def _is_large(name: str, value: Any) -> bool:
    """Whether a value is a record of many parts, which nobody can read as one line."""
    record = is_dataclass(value) and not isinstance(value, (type, Label)) and not getattr(value, "brief", "")
    return record and len(cell(name, value)) > _WIDE


def _lines(name: str, value: Any) -> str:
    """One value of a record for a terminal."""
    text = cell(name, value)
    if len(text) <= _WIDE:
        return text
    if isinstance(value, Mapping):
        parts = [f"{key}={cell('', inner)}" for key, inner in value.items() if key != "facts"]
    else:
        parts = [cell("", inner) for inner in value] if isinstance(value, (tuple, list)) else [text]
    more = [f"… and {len(parts) - _MANY} more: --json shows all"] if len(parts) > _MANY else []
    return "\n".join([*parts[:_MANY], *more])


def _cut(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"


def _flat(text: str) -> str:
    return text.replace("\t", " ").replace("\n", " ")

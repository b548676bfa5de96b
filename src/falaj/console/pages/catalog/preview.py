"""What the first bytes of a file show: rows of a table, text, or that it is neither. Nothing of it is run."""

import csv
import io
import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from falaj.content.duck import TableFiles, format_of
from falaj.content.peek import CELL, peek

ROWS, TEXT_BYTES, TABLE_BYTES = 50, 65_536, 64 << 20
_LINES_BYTES, _COLUMNS = 262_144, 200


@dataclass(frozen=True, slots=True)
class Seen:
    """Rows, or text, or nothing that can be shown; `cut` when there is more of it."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str | None, ...], ...] = ()
    text: str | None = None
    cut: bool = False


Read = Callable[[int], Iterable[bytes]]
"""The bytes of a file, up to so many."""


def look(path: str, size: int, read: Read) -> Seen:
    """What a file of that name and size shows."""
    form = format_of(path)
    if form in ("csv", "tsv", "jsonl") and not path.lower().endswith((".gz", ".zst")):
        head = b"".join(read(_LINES_BYTES))[:_LINES_BYTES]
        found = as_rows(form, head, size > len(head))
        return found if found is not None else as_text(head[:TEXT_BYTES], size)
    if form and size <= TABLE_BYTES:
        return _peeked(form, path, read(size))
    return as_text(b"".join(read(TEXT_BYTES))[:TEXT_BYTES], size)


def as_rows(form: str, head: bytes, cut: bool) -> Seen | None:
    """The first rows of a table that is written in lines; None when it is not what it is called."""
    lines = head.decode("utf-8", "replace").splitlines(keepends=True)
    lines = lines[:-1] if cut and len(lines) > 1 else lines  # the last one may be half a row
    try:
        return _objects(lines) if form == "jsonl" else _cells(lines, "\t" if form == "tsv" else ",")
    except (csv.Error, ValueError, RecursionError):
        return None


def as_text(head: bytes, size: int) -> Seen:
    """Text, where it is text."""
    if b"\0" in head:
        return Seen()
    try:
        # The last character may be half there.
        text = head.decode("utf-8") if size <= len(head) else head[:-4].decode("utf-8", "ignore")
    except UnicodeDecodeError:
        return Seen()
    odd = sum(not (letter.isprintable() or letter in "\r\n\t") for letter in text)
    return Seen() if odd * 20 > len(text) else Seen(text=text, cut=size > len(head))


def _cells(lines: list[str], comma: str) -> Seen:
    rows = csv.reader(io.StringIO("".join(lines), newline=""), delimiter=comma)
    columns = tuple(name[:CELL] for name in next(rows, [])[:_COLUMNS])
    found: list[tuple[str | None, ...]] = []
    for row in rows:
        if len(found) == ROWS:
            return Seen(columns, tuple(found), cut=True)
        known = [cell[:CELL] for cell in row[: len(columns)]]
        found.append((*known, *[None] * (len(columns) - len(known))))
    return Seen(columns, tuple(found))


def _objects(lines: list[str]) -> Seen:
    some = [json.loads(line) for line in lines[:ROWS] if line.strip()]
    if not all(isinstance(one, dict) for one in some):
        raise ValueError("lines of JSON that are no objects")
    columns = tuple(dict.fromkeys(name for one in some for name in one))[:_COLUMNS]
    rows = tuple(tuple(_cell(one.get(name)) for name in columns) for one in some)
    return Seen(tuple(name[:CELL] for name in columns), rows, cut=len(lines) > ROWS)


def _cell(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value[:CELL] if value is not None else None
    return json.dumps(value, ensure_ascii=False)[:CELL]


def _peeked(form: str, path: str, chunks: Iterable[bytes]) -> Seen:
    """A table that only an engine reads: its file lies in the clear for as long as a child looks at it."""
    with tempfile.TemporaryDirectory(prefix="falaj-peek-") as home:
        file = Path(home) / f"rows.{path.lower().rpartition('/')[2].partition('.')[2][-20:]}"
        with file.open("wb") as out:
            out.writelines(chunks)
        found = peek(TableFiles(form, (str(file),), file.stat().st_size), ROWS + 1)
    return Seen(
        found.columns[:_COLUMNS], tuple(row[:_COLUMNS] for row in found.rows[:ROWS]), cut=len(found.rows) > ROWS
    )

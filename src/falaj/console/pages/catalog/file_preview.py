"""What the first bytes of a file show: rows of a table, text, or that it is neither. Nothing of it is run."""

import csv
import io
import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from falaj.content.duck_engine import TableFiles, detect_format
from falaj.content.table_preview import MAX_CELL_CHARS, preview_table

MAX_ROWS, MAX_TEXT_BYTES, MAX_TABLE_BYTES = 50, 65_536, 64 << 20
_MAX_LINE_BYTES, _MAX_COLUMNS = 262_144, 200


@dataclass(frozen=True, slots=True)
class FilePreview:
    """Rows, or text, or nothing that can be shown; `cut` when there is more of it."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str | None, ...], ...] = ()
    text: str | None = None
    cut: bool = False


ReadBytes = Callable[[int], Iterable[bytes]]
"""The bytes of a file, up to so many."""


def preview_file(path: str, size: int, read: ReadBytes) -> FilePreview:
    """What a file of that name and size shows."""
    format_name = detect_format(path)
    if format_name in ("csv", "tsv", "jsonl") and not path.lower().endswith((".gz", ".zst")):
        first_bytes = b"".join(read(_MAX_LINE_BYTES))[:_MAX_LINE_BYTES]
        row_preview = parse_rows(format_name, first_bytes, size > len(first_bytes))
        return row_preview if row_preview is not None else decode_text(first_bytes[:MAX_TEXT_BYTES], size)
    if format_name and size <= MAX_TABLE_BYTES:
        return _read_with_engine(format_name, path, read(size))
    return decode_text(b"".join(read(MAX_TEXT_BYTES))[:MAX_TEXT_BYTES], size)


def parse_rows(format_name: str, first_bytes: bytes, is_truncated: bool) -> FilePreview | None:
    """The first rows of a table that is written in lines; None when it is not what it is called."""
    lines = first_bytes.decode("utf-8", "replace").splitlines(keepends=True)
    lines = lines[:-1] if is_truncated and len(lines) > 1 else lines  # the last one may be half a row
    try:
        return (
            _parse_json_lines(lines)
            if format_name == "jsonl"
            else _parse_csv(lines, "\t" if format_name == "tsv" else ",")
        )
    except (csv.Error, ValueError, RecursionError):
        return None


def decode_text(first_bytes: bytes, size: int) -> FilePreview:
    """Text, where it is text."""
    if b"\0" in first_bytes:
        return FilePreview()
    try:
        # The last character may be half there.
        text = first_bytes.decode("utf-8") if size <= len(first_bytes) else first_bytes[:-4].decode("utf-8", "ignore")
    except UnicodeDecodeError:
        return FilePreview()
    num_unprintable = sum(not (letter.isprintable() or letter in "\r\n\t") for letter in text)
    return FilePreview() if num_unprintable * 20 > len(text) else FilePreview(text=text, cut=size > len(first_bytes))


def _parse_csv(lines: list[str], delimiter: str) -> FilePreview:
    rows = csv.reader(io.StringIO("".join(lines), newline=""), delimiter=delimiter)
    columns = tuple(name[:MAX_CELL_CHARS] for name in next(rows, [])[:_MAX_COLUMNS])
    parsed_rows: list[tuple[str | None, ...]] = []
    for row in rows:
        if len(parsed_rows) == MAX_ROWS:
            return FilePreview(columns, tuple(parsed_rows), cut=True)
        cells = [cell[:MAX_CELL_CHARS] for cell in row[: len(columns)]]
        parsed_rows.append((*cells, *[None] * (len(columns) - len(cells))))
    return FilePreview(columns, tuple(parsed_rows))


def _parse_json_lines(lines: list[str]) -> FilePreview:
    json_rows = [json.loads(line) for line in lines[:MAX_ROWS] if line.strip()]
    if not all(isinstance(json_row, dict) for json_row in json_rows):
        raise ValueError("lines of JSON that are no objects")
    columns = tuple(dict.fromkeys(name for json_row in json_rows for name in json_row))[:_MAX_COLUMNS]
    rows = tuple(tuple(_format_cell(json_row.get(name)) for name in columns) for json_row in json_rows)
    return FilePreview(tuple(name[:MAX_CELL_CHARS] for name in columns), rows, cut=len(lines) > MAX_ROWS)


def _format_cell(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value[:MAX_CELL_CHARS] if value is not None else None
    return json.dumps(value, ensure_ascii=False)[:MAX_CELL_CHARS]


def _read_with_engine(format_name: str, path: str, chunks: Iterable[bytes]) -> FilePreview:
    """A table that only an engine reads: its file lies in the clear for as long as a child looks at it."""
    with tempfile.TemporaryDirectory(prefix="falaj-peek-") as folder:
        file = Path(folder) / f"rows.{path.lower().rpartition('/')[2].partition('.')[2][-20:]}"
        with file.open("wb") as out:
            out.writelines(chunks)
        peeked_table = preview_table(TableFiles(format_name, (str(file),), file.stat().st_size), MAX_ROWS + 1)
    return FilePreview(
        peeked_table.columns[:_MAX_COLUMNS],
        tuple(row[:_MAX_COLUMNS] for row in peeked_table.rows[:MAX_ROWS]),
        cut=len(peeked_table.rows) > MAX_ROWS,
    )

"""Reads one file for rows that name a person, by the format that its content shows. Runs in the isolated helper.

Memory is bounded: tables are read batch by batch, text piece by piece, archives member by member as a stream.
"""

import csv
import gzip
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from falaj.core.errors import FalajError
from falaj.privacy.search.arrow_rows import find_rows
from falaj.privacy.search.person_pattern import PersonPattern

FileMatch = tuple[str, dict[str, Any]]
"""Where in the file, and the row or the text around the identifier."""
_HEAD_BYTES = 1 << 16
_PIECE_CHARS = 1 << 20  # characters of text looked at together
_MAX_LINE_CHARS = 1 << 20
_JSON_ESCAPE = "\\u"  # of JSON
_CONTEXT_CHARS = 200  # characters of context on each side of a match in free text
_MAX_JSON_CHARS = 64 << 20  # a JSON document up to this size is parsed, to answer with the object that names the person
_MAX_UNPACKED_BYTES = 64 << 30  # bytes that one archive may unpack to
_MAX_ARCHIVE_MEMBERS = 100_000
_BATCH_ROWS = 16_384
_UNSEARCHABLE_FORMATS = {
    b"SQLite format 3\0": "SQLite",
    b"%PDF": "PDF",
    b"\x89HDF": "HDF5",
    b"\x93NUMPY": "NumPy",
    b"\x89PNG": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"7z\xbc\xaf": "7-Zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"Obj\x01": "Avro",
    b"\x80\x04": "pickle",
    b"\x80\x05": "pickle",
}


class UnreadableFile(Exception):
    """A file, or a part of it, that cannot be searched; the text says why."""


def search_file(path: Path, name: str, pattern: PersonPattern, columns: Sequence[str]) -> Iterator[FileMatch]:
    """Yield what names the person; Unreadable when the file cannot be searched through."""
    with path.open("rb") as file:
        yield from _search_stream(file, name.lower(), pattern, columns, depth=0)


def _search_stream(
    file: Any, name: str, pattern: PersonPattern, columns: Sequence[str], depth: int
) -> Iterator[FileMatch]:
    head = file.read(_HEAD_BYTES)
    file.seek(0)
    for magic, search_format in _READERS_BY_MAGIC.items():
        if head.startswith(magic):
            if depth > 2:
                raise UnreadableFile("archives lie in archives in archives")
            yield from search_format(file, name, pattern, columns, depth)
            return
    encoding = encoding_of(head)
    if encoding:
        yield from _search_text(file, encoding, name, pattern, columns)
        return
    yield from _search_opaque(file, head, pattern)


def _search_parquet(
    file: BinaryIO, _name: str, pattern: PersonPattern, columns: Sequence[str], _depth: int
) -> Iterator[FileMatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=_BATCH_ROWS):
                yield from find_rows(batch, pattern, columns)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFile(f"its Parquet data cannot be read: {type(error).__name__}") from error


def _search_arrow(
    file: BinaryIO, _name: str, pattern: PersonPattern, columns: Sequence[str], _depth: int
) -> Iterator[FileMatch]:
    import pyarrow as pa

    try:
        if file.read(6) == b"ARROW1":
            file.seek(0)
            with pa.ipc.open_file(file) as table:
                for number in range(table.num_record_batches):
                    yield from find_rows(table.get_batch(number), pattern, columns)
            return
        file.seek(0)
        with pa.ipc.open_stream(file) as stream:
            for batch in stream:
                yield from find_rows(batch, pattern, columns)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFile(f"its Arrow data cannot be read: {type(error).__name__}") from error


def _search_orc(
    file: BinaryIO, _name: str, pattern: PersonPattern, columns: Sequence[str], _depth: int
) -> Iterator[FileMatch]:
    import pyarrow as pa
    import pyarrow.orc as orc

    try:
        table = orc.ORCFile(file)
        for number in range(table.nstripes):
            yield from find_rows(table.read_stripe(number), pattern, columns)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFile(f"its ORC data cannot be read: {type(error).__name__}") from error


def _search_segment(
    file: BinaryIO, _name: str, pattern: PersonPattern, columns: Sequence[str], _depth: int
) -> Iterator[FileMatch]:
    """A segment of feature rows that is not sealed."""
    import pyarrow as pa

    from falaj.asof.arrow_columns import from_segment_column
    from falaj.asof.segment import Segment

    def _read_range(start: int, stop: int) -> bytes:
        file.seek(start)
        return file.read(max(0, stop - start))

    try:
        segment = Segment(_read_range)
        named_columns = [(field.name, from_segment_column(segment.column(field.name))) for field in segment.columns]
        if segment.keys:
            ranks = segment.ranks(created=False, seq=False)
            named_columns += [
                (field.name, from_segment_column(key)) for field, key in zip(segment.keys, ranks.keys, strict=True)
            ]
    except (FalajError, ValueError, KeyError, IndexError, OverflowError) as error:
        raise UnreadableFile("its feature rows cannot be read") from error
    for column, values in named_columns:
        yield from find_rows(pa.record_batch([values], names=[column]), pattern, columns)


def _search_key_table(
    _file: BinaryIO, _name: str, _pattern: PersonPattern, _columns: Sequence[str], _depth: int
) -> Iterator[FileMatch]:
    """A table of keys of sealed rows: it holds pseudonyms and keys, no identifiers."""
    return iter(())


def _search_gzip(
    file: BinaryIO, name: str, pattern: PersonPattern, columns: Sequence[str], depth: int
) -> Iterator[FileMatch]:
    try:
        with gzip.open(file) as inner:
            yield from _search_stream(_BoundedStream(inner), name.removesuffix(".gz"), pattern, columns, depth + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableFile(f"its gzip data cannot be read: {type(error).__name__}") from error


def _search_zip(
    file: BinaryIO, _name: str, pattern: PersonPattern, columns: Sequence[str], depth: int
) -> Iterator[FileMatch]:
    unread_reason = ""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len(members) > _MAX_ARCHIVE_MEMBERS or sum(member.file_size for member in members) > _MAX_UNPACKED_BYTES:
                raise UnreadableFile("the archive unpacks to more than is searched")
            for member in members:
                if not member.is_dir():
                    with archive.open(member) as inner:
                        try:
                            yield from _search_stream(
                                _BoundedStream(inner), member.filename.lower(), pattern, columns, depth + 1
                            )
                        except UnreadableFile as error:
                            unread_reason = unread_reason or f"{member.filename[:80]}: {error}"
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError, NotImplementedError, ValueError) as error:
        raise UnreadableFile(f"its zip archive cannot be read: {type(error).__name__}") from error
    if unread_reason:
        raise UnreadableFile(unread_reason)


class _BoundedStream(io.RawIOBase):
    """A stream that unpacks to a bounded number of bytes; it can go back to its start."""

    def __init__(self, inner: Any) -> None:
        self._inner, self._count = inner, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._inner.seek(offset, whence))

    def tell(self) -> int:
        return int(self._inner.tell())

    def readinto(self, buffer: Any) -> int:
        data = self._inner.read(len(buffer))
        self._count += len(data)
        if self._count > _MAX_UNPACKED_BYTES:
            raise UnreadableFile("the archive unpacks to more than is searched")
        buffer[: len(data)] = data
        return len(data)


_READERS_BY_MAGIC: dict[bytes, Callable[[BinaryIO, str, PersonPattern, Sequence[str], int], Iterator[FileMatch]]] = {
    b"PAR1": _search_parquet,
    b"ARROW1": _search_arrow,
    b"\xff\xff\xff\xff": _search_arrow,
    b"ORC": _search_orc,
    b"FALAJSG1": _search_segment,
    b"\x1f\x8b": _search_gzip,
    b"PK\x03\x04": _search_zip,
    b"PK\x05\x06": _search_zip,
    b"falaj keys 1\0": _search_key_table,
}


def encoding_of(head: bytes) -> str:
    """How a text is encoded, as its first bytes show; empty when it is no text."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4 or len(head) < _HEAD_BYTES:  # a character may be cut in two where the head ends
            return "" if b"\0" in head or _is_binary(head) else "cp1252"
    return "" if b"\0" in head else "utf-8-sig"


def _is_binary(head: bytes) -> bool:
    control = sum(byte < 32 and byte not in (9, 10, 11, 12, 13, 27) for byte in head)
    return control * 100 > len(head)


def _search_text(
    file: BinaryIO, encoding: str, name: str, pattern: PersonPattern, columns: Sequence[str]
) -> Iterator[FileMatch]:
    text = io.TextIOWrapper(
        io.BufferedReader(file) if isinstance(file, io.RawIOBase) else file, encoding, "replace", ""
    )
    try:
        plain_name = name.removesuffix(".gz")
        if pattern.is_distinctive and not _may_hold(text, pattern):
            return
        text.seek(0)
        if plain_name.endswith((".csv", ".tsv", ".tab")):
            yield from _search_delimited(text, "\t" if plain_name.endswith((".tsv", ".tab")) else "", pattern, columns)
        elif (
            plain_name.endswith(".json")
            and (document_text := text.read(_MAX_JSON_CHARS + 1))
            and len(document_text) <= _MAX_JSON_CHARS
        ):
            yield from _search_json_document(document_text, pattern, columns)
        else:
            text.seek(0)
            yield from _search_lines(text, pattern, columns)
    finally:
        text.detach()


def _may_hold(text: io.TextIOWrapper, pattern: PersonPattern) -> bool:
    """Whether a text may name the person: it does, or it has escapes of JSON, which hide characters."""
    carried = ""
    while piece := text.read(_PIECE_CHARS):
        if pattern.is_in(carried + piece) or _JSON_ESCAPE in piece:
            return True
        carried = piece[-pattern.longest_match :]
    return False


def _search_delimited(
    text: io.TextIOWrapper, delimiter: str, pattern: PersonPattern, columns: Sequence[str]
) -> Iterator[FileMatch]:
    """Rows of CSV or TSV. A file that is not in order is searched as lines instead."""
    separator = find_delimiter(text, delimiter)
    try:
        header: list[str] | None = None
        for number, fields in enumerate(csv.reader(text, delimiter=separator), 1):
            if header is None:
                header = fields
            if names_in_fields(header, fields, pattern, columns):
                names = [*header, *(f"column {position + 1}" for position in range(len(header), len(fields)))]
                yield f"row {number}", dict(zip(names, fields, strict=False))
    except csv.Error:
        text.seek(0)
        yield from _search_lines(text, pattern, ())


def find_delimiter(text: io.TextIOWrapper, delimiter: str = "") -> str:
    """The sign between the fields of delimited text, as its first line shows; the text is at its start afterwards."""
    first = text.readline(_MAX_LINE_CHARS)
    text.seek(0)
    csv.field_size_limit(_MAX_LINE_CHARS)
    return delimiter or max(",;|\t", key=first.count)


def names_in_fields(
    header: Sequence[str], fields: Sequence[str], pattern: PersonPattern, columns: Sequence[str]
) -> bool:
    """True when a record of delimited text names the person."""
    if any(pattern.is_value(value) for column, value in zip(header, fields, strict=False) if column in columns):
        return True
    return pattern.is_distinctive and any(map(pattern.is_in, fields))


def _search_lines(text: io.TextIOWrapper, pattern: PersonPattern, columns: Sequence[str]) -> Iterator[FileMatch]:
    """Free text, and JSON line by line; lines that are too long are looked at in pieces that overlap."""
    carried, number = "", 0
    while piece := text.readline(_PIECE_CHARS):
        number += not carried
        line = carried + piece
        carried = "" if piece[-1] in "\r\n" else line[-pattern.longest_match :]
        if pattern.is_in(line) or ((columns or _JSON_ESCAPE in line) and names_by_key(line, pattern, columns)):
            yield f"line {number}", _build_line_row(line, pattern)


def _build_line_row(line: str, pattern: PersonPattern) -> dict[str, Any]:
    if line.lstrip().startswith("{"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            return row
    match = pattern.in_text.search(line)
    start = max(0, match.start() - _CONTEXT_CHARS) if match else 0
    return {"text": line[start : (match.end() if match else 0) + _CONTEXT_CHARS].strip()}


def names_by_key(line: str, pattern: PersonPattern, columns: Sequence[str]) -> bool:
    """True when a line of JSON names the person in a declared column, or with its characters escaped."""
    if not line.lstrip().startswith(("{", "[")):
        return False
    try:
        return any(True for _ in _find_objects(json.loads(line), pattern, frozenset(columns)))
    except (ValueError, RecursionError):
        return False


def _search_json_document(document_text: str, pattern: PersonPattern, columns: Sequence[str]) -> Iterator[FileMatch]:
    try:
        document = json.loads(document_text)
    except (ValueError, RecursionError):
        yield from _search_lines(
            io.TextIOWrapper(io.BytesIO(document_text.encode()), "utf-8", "replace", ""), pattern, columns
        )
        return
    count = 0
    for row in _find_objects(document, pattern, frozenset(columns)):
        count += 1
        yield f"object {count}", row
    if not count and pattern.is_in(document_text):  # in a key, or in a list of plain values
        yield "the document", _build_line_row(document_text, pattern)


def _find_objects(value: Any, pattern: PersonPattern, columns: frozenset[str]) -> Iterator[dict[str, Any]]:
    """The outermost objects in lists (or the document itself) with the person in one of their own values or below."""
    if isinstance(value, list):
        for item in value:
            yield from _find_objects(item, pattern, columns)
    elif isinstance(value, dict):
        nested_lists = [
            item
            for item in value.values()
            if isinstance(item, list) and any(isinstance(list_element, dict) for list_element in item)
        ]
        own_values = {
            name: item for name, item in value.items() if not any(item is nested_list for nested_list in nested_lists)
        }
        if _names_person(own_values, pattern, columns):
            yield value
        else:
            for item in nested_lists:
                yield from _find_objects(item, pattern, columns)


def _names_person(json_value: Any, pattern: PersonPattern, columns: frozenset[str], column: str = "") -> bool:
    if isinstance(json_value, dict):
        return any(
            pattern.is_in(str(name)) or _names_person(item, pattern, columns, name) for name, item in json_value.items()
        )
    if isinstance(json_value, list):
        return any(_names_person(item, pattern, columns, column) for item in json_value)
    if json_value is None or isinstance(json_value, bool):
        return False
    return (column in columns and pattern.is_value(json_value)) or pattern.is_in(str(json_value))


def _search_opaque(file: BinaryIO, first_bytes: bytes, pattern: PersonPattern) -> Iterator[FileMatch]:
    """Bytes of another format: what lies in them in the clear is found, and nothing can be said of the rest."""
    if pattern.is_distinctive:
        carried, position = b"", 0
        while piece := file.read(_PIECE_CHARS):
            match_position = pattern.find_in_bytes(carried + piece)
            if match_position >= 0:
                yield (
                    f"byte {position - len(carried) + match_position}",
                    {"text": "the identifier lies in the file's bytes"},
                )
                return
            position += len(piece)
            carried = piece[-4 * pattern.longest_match :]
    format_name = next((name for magic, name in _UNSEARCHABLE_FORMATS.items() if first_bytes.startswith(magic)), "")
    if not first_bytes:
        return
    raise UnreadableFile(
        f"{format_name} cannot be searched" if format_name else "its format is not known, so it cannot be searched"
    )

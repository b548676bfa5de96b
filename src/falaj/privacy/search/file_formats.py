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

Match = tuple[str, dict[str, Any]]
"""Where in the file, and the row or the text around the identifier."""
_HEAD_BYTES = 1 << 16
_PIECE = 1 << 20  # characters of text looked at together
_LONGEST_LINE = 1 << 20
_ESCAPE = "\\u"  # of JSON
_AROUND = 200  # characters of context on each side of a match in free text
_MOST_JSON = 64 << 20  # a JSON document up to this size is parsed, to answer with the object that names the person
_MOST_UNPACKED = 64 << 30  # bytes that one archive may unpack to
_MOST_MEMBERS = 100_000
_BATCH = 16_384
_OPAQUE = {
    b"SQLite format 3\0": "SQLite", b"%PDF": "PDF", b"\x89HDF": "HDF5", b"\x93NUMPY": "NumPy", b"\x89PNG": "PNG",
    b"\xff\xd8\xff": "JPEG", b"7z\xbc\xaf": "7-Zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd",
    b"Obj\x01": "Avro", b"\x80\x04": "pickle", b"\x80\x05": "pickle",
}  # fmt: skip


class Unreadable(Exception):
    """A file, or a part of it, that cannot be searched; the text says why."""


def read_file(path: Path, name: str, pattern: PersonPattern, columns: Sequence[str]) -> Iterator[Match]:
    """Yield what names the person; Unreadable when the file cannot be searched through."""
    with path.open("rb") as file:
        yield from _read(file, name.lower(), pattern, columns, depth=0)


def _read(file: Any, name: str, pattern: PersonPattern, columns: Sequence[str], depth: int) -> Iterator[Match]:
    head = file.read(_HEAD_BYTES)
    file.seek(0)
    for magic, read in _READERS.items():
        if head.startswith(magic):
            if depth > 2:
                raise Unreadable("archives lie in archives in archives")
            yield from read(file, name, pattern, columns, depth)
            return
    encoding = encoding_of(head)
    if encoding:
        yield from _text(file, encoding, name, pattern, columns)
        return
    yield from _opaque(file, head, pattern)


def _parquet(
    file: BinaryIO, _name: str, pattern: PersonPattern, columns: Sequence[str], _depth: int
) -> Iterator[Match]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=_BATCH):
                yield from find_rows(batch, pattern, columns)
    except (pa.ArrowException, OSError) as error:
        raise Unreadable(f"its Parquet data cannot be read: {type(error).__name__}") from error


def _arrow(file: BinaryIO, _name: str, pattern: PersonPattern, columns: Sequence[str], _depth: int) -> Iterator[Match]:
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
        raise Unreadable(f"its Arrow data cannot be read: {type(error).__name__}") from error


def _orc(file: BinaryIO, _name: str, pattern: PersonPattern, columns: Sequence[str], _depth: int) -> Iterator[Match]:
    import pyarrow as pa
    import pyarrow.orc as orc

    try:
        table = orc.ORCFile(file)
        for number in range(table.nstripes):
            yield from find_rows(table.read_stripe(number), pattern, columns)
    except (pa.ArrowException, OSError) as error:
        raise Unreadable(f"its ORC data cannot be read: {type(error).__name__}") from error


def _segment(
    file: BinaryIO, _name: str, pattern: PersonPattern, columns: Sequence[str], _depth: int
) -> Iterator[Match]:
    """A segment of feature rows that is not sealed."""
    import pyarrow as pa

    from falaj.asof.arrow import from_column
    from falaj.asof.segment import Segment

    def fetch(start: int, stop: int) -> bytes:
        file.seek(start)
        return file.read(max(0, stop - start))

    try:
        segment = Segment(fetch)
        named = [(field.name, from_column(segment.column(field.name))) for field in segment.columns]
        if segment.keys:
            ranks = segment.ranks(created=False, seq=False)
            named += [(field.name, from_column(key)) for field, key in zip(segment.keys, ranks.keys, strict=True)]
    except (FalajError, ValueError, KeyError, IndexError, OverflowError) as error:
        raise Unreadable("its feature rows cannot be read") from error
    for column, values in named:
        yield from find_rows(pa.record_batch([values], names=[column]), pattern, columns)


def _keys(
    _file: BinaryIO, _name: str, _pattern: PersonPattern, _columns: Sequence[str], _depth: int
) -> Iterator[Match]:
    """A table of keys of sealed rows: it holds pseudonyms and keys, no identifiers."""
    return iter(())


def _gzip(file: BinaryIO, name: str, pattern: PersonPattern, columns: Sequence[str], depth: int) -> Iterator[Match]:
    try:
        with gzip.open(file) as inner:
            yield from _read(_Bounded(inner), name.removesuffix(".gz"), pattern, columns, depth + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise Unreadable(f"its gzip data cannot be read: {type(error).__name__}") from error


def _zip(file: BinaryIO, _name: str, pattern: PersonPattern, columns: Sequence[str], depth: int) -> Iterator[Match]:
    unread = ""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len(members) > _MOST_MEMBERS or sum(member.file_size for member in members) > _MOST_UNPACKED:
                raise Unreadable("the archive unpacks to more than is searched")
            for member in members:
                if not member.is_dir():
                    with archive.open(member) as inner:
                        try:
                            yield from _read(_Bounded(inner), member.filename.lower(), pattern, columns, depth + 1)
                        except Unreadable as error:
                            unread = unread or f"{member.filename[:80]}: {error}"
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError, NotImplementedError, ValueError) as error:
        raise Unreadable(f"its zip archive cannot be read: {type(error).__name__}") from error
    if unread:
        raise Unreadable(unread)


class _Bounded(io.RawIOBase):
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
        if self._count > _MOST_UNPACKED:
            raise Unreadable("the archive unpacks to more than is searched")
        buffer[: len(data)] = data
        return len(data)


_READERS: dict[bytes, Callable[[BinaryIO, str, PersonPattern, Sequence[str], int], Iterator[Match]]] = {
    b"PAR1": _parquet, b"ARROW1": _arrow, b"\xff\xff\xff\xff": _arrow, b"ORC": _orc, b"FALAJSG1": _segment,
    b"\x1f\x8b": _gzip, b"PK\x03\x04": _zip, b"PK\x05\x06": _zip, b"falaj keys 1\0": _keys,
}  # fmt: skip


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


def _text(file: BinaryIO, encoding: str, name: str, pattern: PersonPattern, columns: Sequence[str]) -> Iterator[Match]:
    text = io.TextIOWrapper(
        io.BufferedReader(file) if isinstance(file, io.RawIOBase) else file, encoding, "replace", ""
    )
    try:
        bare = name.removesuffix(".gz")
        if pattern.is_distinctive and not _may_hold(text, pattern):
            return
        text.seek(0)
        if bare.endswith((".csv", ".tsv", ".tab")):
            yield from _delimited(text, "\t" if bare.endswith((".tsv", ".tab")) else "", pattern, columns)
        elif bare.endswith(".json") and (whole := text.read(_MOST_JSON + 1)) and len(whole) <= _MOST_JSON:
            yield from _json_document(whole, pattern, columns)
        else:
            text.seek(0)
            yield from _lines(text, pattern, columns)
    finally:
        text.detach()


def _may_hold(text: io.TextIOWrapper, pattern: PersonPattern) -> bool:
    """Whether a text may name the person: it does, or it has escapes of JSON, which hide characters."""
    kept = ""
    while piece := text.read(_PIECE):
        if pattern.is_in(kept + piece) or _ESCAPE in piece:
            return True
        kept = piece[-pattern.longest_match :]
    return False


def _delimited(
    text: io.TextIOWrapper, delimiter: str, pattern: PersonPattern, columns: Sequence[str]
) -> Iterator[Match]:
    """Rows of CSV or TSV. A file that is not in order is searched as lines instead."""
    sign = find_delimiter(text, delimiter)
    try:
        header: list[str] | None = None
        for number, fields in enumerate(csv.reader(text, delimiter=sign), 1):
            if header is None:
                header = fields
            if names_in_fields(header, fields, pattern, columns):
                names = [*header, *(f"column {at + 1}" for at in range(len(header), len(fields)))]
                yield f"row {number}", dict(zip(names, fields, strict=False))
    except csv.Error:
        text.seek(0)
        yield from _lines(text, pattern, ())


def find_delimiter(text: io.TextIOWrapper, delimiter: str = "") -> str:
    """The sign between the fields of delimited text, as its first line shows; the text is at its start afterwards."""
    first = text.readline(_LONGEST_LINE)
    text.seek(0)
    csv.field_size_limit(_LONGEST_LINE)
    return delimiter or max(",;|\t", key=first.count)


def names_in_fields(
    header: Sequence[str], fields: Sequence[str], pattern: PersonPattern, columns: Sequence[str]
) -> bool:
    """True when a record of delimited text names the person."""
    if any(pattern.is_value(value) for column, value in zip(header, fields, strict=False) if column in columns):
        return True
    return pattern.is_distinctive and any(map(pattern.is_in, fields))


def _lines(text: io.TextIOWrapper, pattern: PersonPattern, columns: Sequence[str]) -> Iterator[Match]:
    """Free text, and JSON line by line; lines that are too long are looked at in pieces that overlap."""
    kept, number = "", 0
    while piece := text.readline(_PIECE):
        number += not kept
        line = kept + piece
        kept = "" if piece[-1] in "\r\n" else line[-pattern.longest_match :]
        if pattern.is_in(line) or ((columns or _ESCAPE in line) and names_by_key(line, pattern, columns)):
            yield f"line {number}", _line_row(line, pattern)


def _line_row(line: str, pattern: PersonPattern) -> dict[str, Any]:
    if line.lstrip().startswith("{"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            return row
    match = pattern.in_text.search(line)
    start = max(0, match.start() - _AROUND) if match else 0
    return {"text": line[start : (match.end() if match else 0) + _AROUND].strip()}


def names_by_key(line: str, pattern: PersonPattern, columns: Sequence[str]) -> bool:
    """True when a line of JSON names the person in a declared column, or with its characters escaped."""
    if not line.lstrip().startswith(("{", "[")):
        return False
    try:
        return any(True for _ in _objects(json.loads(line), pattern, frozenset(columns)))
    except (ValueError, RecursionError):
        return False


def _json_document(whole: str, pattern: PersonPattern, columns: Sequence[str]) -> Iterator[Match]:
    try:
        document = json.loads(whole)
    except (ValueError, RecursionError):
        yield from _lines(io.TextIOWrapper(io.BytesIO(whole.encode()), "utf-8", "replace", ""), pattern, columns)
        return
    count = 0
    for row in _objects(document, pattern, frozenset(columns)):
        count += 1
        yield f"object {count}", row
    if not count and pattern.is_in(whole):  # in a key, or in a list of plain values
        yield "the document", _line_row(whole, pattern)


def _objects(value: Any, pattern: PersonPattern, columns: frozenset[str]) -> Iterator[dict[str, Any]]:
    """The outermost objects in lists (or the document itself) with the person in one of their own values or below."""
    if isinstance(value, list):
        for item in value:
            yield from _objects(item, pattern, columns)
    elif isinstance(value, dict):
        lists = [item for item in value.values() if isinstance(item, list) and any(isinstance(e, dict) for e in item)]
        own = {name: item for name, item in value.items() if not any(item is each for each in lists)}
        if _names(own, pattern, columns):
            yield value
        else:
            for item in lists:
                yield from _objects(item, pattern, columns)


def _names(value: Any, pattern: PersonPattern, columns: frozenset[str], column: str = "") -> bool:
    if isinstance(value, dict):
        return any(pattern.is_in(str(name)) or _names(item, pattern, columns, name) for name, item in value.items())
    if isinstance(value, list):
        return any(_names(item, pattern, columns, column) for item in value)
    if value is None or isinstance(value, bool):
        return False
    return (column in columns and pattern.is_value(value)) or pattern.is_in(str(value))


def _opaque(file: BinaryIO, head: bytes, pattern: PersonPattern) -> Iterator[Match]:
    """Bytes of another format: what lies in them in the clear is found, and nothing can be said of the rest."""
    if pattern.is_distinctive:
        kept, at = b"", 0
        while piece := file.read(_PIECE):
            place = pattern.find_in_bytes(kept + piece)
            if place >= 0:
                yield f"byte {at - len(kept) + place}", {"text": "the identifier lies in the file's bytes"}
                return
            at += len(piece)
            kept = piece[-4 * pattern.longest_match :]
    form = next((name for magic, name in _OPAQUE.items() if head.startswith(magic)), "")
    if not head:
        return
    raise Unreadable(f"{form} cannot be searched" if form else "its format is not known, so it cannot be searched")

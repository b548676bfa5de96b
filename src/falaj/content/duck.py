"""The engine room of tables: which files are one, and a DuckDB that sees nothing else.

Large C++ libraries parse the untrusted Parquet footers and CSV lines. So they run in an isolated helper process
(isolated_parser.py). Inside, DuckDB may open the files of the table and nothing else, load no extension, and spill only
into a folder that is removed at the end. No text of the engine's is passed on: it quotes the rows it stumbled over.
"""

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from falaj.content.delimited import LINE_BYTES, MEND, Head, check_rows, find_head
from falaj.content.isolated_parser import ParserLimits, parse_isolated
from falaj.core.errors import FalajError, Invalid

MAX_COLUMNS = 4096
LIMIT_S = 900.0
_MEMORY = "1GiB"
_DATA_BYTES = 4 << 30
_FOOTER_BYTES = 64 << 20
_SAMPLE = 20_480
_READ = 1 << 20
_SPILL_BYTES, _SPILL_RATIO = 4 << 30, 16
"""Bytes that the engine may spill to disk, and the same as a multiple of the table's size; the larger counts."""
_FORMATS = {
    **dict.fromkeys((".parquet", ".parq", ".pq"), "parquet"),
    **dict.fromkeys((".csv", ".csv.gz", ".csv.zst"), "csv"),
    **dict.fromkeys((".tsv", ".tsv.gz", ".tsv.zst"), "tsv"),
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"), "jsonl"),
}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of one table, sorted, and how to read them."""

    format: str
    paths: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Relation:
    """A table inside the engine. `scan` makes anew what stands behind FROM, since a stream is read only once."""

    scan: Callable[[], str]
    columns: tuple[tuple[str, Any], ...]
    """Names and DuckDB's types, in the order of the table."""
    names: str = ""
    """The files behind it as SQL lists them, where the engine opens them itself."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a file of CSV is written, and the columns it has."""

    delimiter: str
    skip: int
    header: bool
    columns: tuple[tuple[str, str], ...]
    more: str = ""
    """What else the engine is to be told."""

    @property
    def options(self) -> str:
        """The same, for the engine. Quotes are left to it: they may come late in a file."""
        return f"delim={quoted(self.delimiter)}, skip={self.skip}, header={self.header}{self.more}"


def find_table(source: Path) -> TableFiles | None:
    """The table in a folder (or the one that a file is); None when there is none, Invalid when there are several."""
    found: dict[str, list[str]] = {}
    for path in _walk(source.absolute()):  # a helper that parses them has a working folder of its own
        if form := format_of(path):
            found.setdefault(form, []).append(path)
    if not found:
        return None
    if len(found) > 1:
        raise Invalid(
            f"tables of several kinds lie together: {', '.join(sorted(found))}", "publish each as a dataset of its own"
        )
    form, paths = next(iter(found.items()))
    return TableFiles(form, tuple(sorted(paths)), sum(Path(path).stat().st_size for path in paths))


def format_of(path: str) -> str:
    """How a file of that name is read as a table; empty when it is none."""
    return _FORMATS.get(_suffix(path), "")


def parse_tables(
    module: str, question: object, answer: type[T], *tables: TableFiles, seconds: float | None = None
) -> T:
    """Return what `module` makes of the tables in an isolated helper process, within LIMIT_S or `seconds`."""
    size_bytes, limit_s = sum(table.size_bytes for table in tables), LIMIT_S if seconds is None else seconds
    limits = ParserLimits(
        _DATA_BYTES, max(1, int(2 * limit_s)), limit_s + 60, max(_SPILL_BYTES, _SPILL_RATIO * size_bytes)
    )
    return parse_isolated(module, question, answer, (path for table in tables for path in table.paths), limits)


class Duck:
    """One DuckDB, closed off: it reads the files given to it, and what it makes is gone with it."""

    def __init__(self, connection: Any, home: Path) -> None:
        self.engine = connection
        self._home = home
        self._count = 0

    def select(self, query: str) -> list[tuple[Any, ...]]:
        """Every row of an answer. Names in queries are our own or `named`, values our own or `quoted`."""
        found: list[tuple[Any, ...]] = self.engine.execute(f"SELECT {query}").fetchall()
        return found

    def make(self, what: str, query: str) -> None:
        """A view or a table of an answer, gone with the engine."""
        self.engine.execute(f"CREATE OR REPLACE {what} AS {query}")

    def types(self, query: str) -> tuple[tuple[str, Any], ...]:
        """The names and types of an answer's columns."""
        made = self.engine.sql(query)
        return tuple(zip(made.columns, made.types, strict=True))

    def read(self, files: TableFiles, work: Callable[[Relation], T]) -> T:
        """What `work` makes of the files, read in the first way that fits all of their rows."""
        import duckdb

        failed: Exception | None = None
        for way in self._ways(files, self._linked(files)):
            try:
                return work(way())
            except (duckdb.ConversionException, duckdb.InvalidInputException) as error:
                # Types were guessed from the first rows and a later row is of another type.
                failed = error
        raise failed or _malformed()

    def _ways(self, files: TableFiles, links: list[str]) -> Iterator[Callable[[], Relation]]:
        names = f"[{', '.join(map(quoted, links))}]"
        if files.format == "arrow":
            yield lambda: self._arrow(links)
        elif files.format == "parquet":
            _check_footers(links)
            self._check_schemas(names)
            yield lambda: self._relation("read_parquet(FILES, hive_partitioning=false, union_by_name=true)", names)
        elif files.format == "jsonl":
            _check_lines(links)
            _check_columns(self._relation(_JSON[0], quoted(link)).columns for link in links)
            for options in _JSON:
                yield partial(self._relation, options, names)
        else:
            _check_lines(links)
            yield from self._delimited(files.format, dict(zip(links, _told_names(files.paths), strict=True)))

    def _delimited(self, form: str, names: Mapping[str, str]) -> Iterator[Callable[[], Relation]]:
        """CSV and its like. Files without a word in them add nothing; alone they are a table without columns."""
        heads = {link: head for link, name in names.items() if (head := find_head(link, name, form)) is not None}
        if not heads:
            yield lambda: Relation(lambda: "(SELECT 1 WHERE false)", ())
            return
        dialects = self._dialects(form, heads)
        if all(dialects.values()):
            yield from self._looks(dialects)
        # The engine reads strictly, and could not: the line that stopped it is named here. What else may stop it is
        # that lines end in different ways. Reading less strictly it takes those, and it would drop fields too many.
        mixed = dict[str, Dialect | None]()
        for link, head in heads.items():
            known, skip = dialects[link], head.line - 1
            sign = known.delimiter if known else head.delimiter
            if check_rows(link, names[link], skip, sign):
                mixed[link] = self._sniff(link, f"delim={quoted(sign)}, skip={skip}{_LOOSE}", _LOOSE)
        if mixed:
            yield from self._looks(dialects | mixed)

    def _dialects(self, form: str, heads: Mapping[str, Head]) -> "dict[str, Dialect | None]":
        """How each file is written. To guess takes the engine longer than to read a small file, so of those that begin
        with the same line only the largest is looked at: where a row of another does not fit, the reader stops."""
        alike: dict[Head | str, list[str]] = {}
        for link, head in heads.items():
            alike.setdefault(head if head.line == 1 and head.width > 1 else link, []).append(link)
        found = dict[str, Dialect | None]()
        for links in alike.values():
            largest = max(links, key=os.path.getsize)
            told = self._dialect(form, largest, heads[largest])
            # A line that is no header may be the same by chance, and one that is may stand above what cannot be read.
            sure = told is not None and told.header
            for link in links:
                found[link] = told if sure or link == largest else self._dialect(form, link, heads[link])
        return {link: found[link] for link in heads}

    def _dialect(self, form: str, link: str, head: Head) -> "Dialect | None":
        """How a file is written, as the engine guesses; nothing when it cannot, or when the header says otherwise."""
        import duckdb

        try:
            found = self._sniff(link, "delim='\t'" if form == "tsv" else "auto_detect=true", "")
        except duckdb.InvalidInputException:
            return None
        return found if found.skip < head.line and (len(found.columns) > 1 or head.width == 1) else None

    def _sniff(self, link: str, options: str, more: str) -> "Dialect":
        sniffed = f"sniff_csv({quoted(link)}, sample_size={_SAMPLE}, max_line_size={LINE_BYTES}, {options})"
        ((delimiter, skip, header, columns),) = self.select(f"delimiter, skiprows, hasheader, columns FROM {sniffed}")
        return Dialect(delimiter, skip, header, tuple((each["name"], each["type"]) for each in columns), more)

    def _looks(self, dialects: "Mapping[str, Dialect | None]") -> Iterator[Callable[[], Relation]]:
        _check_columns(dialect.columns for dialect in dialects.values() if dialect)
        groups: dict[str, list[str]] = {}
        for link, dialect in dialects.items():
            if dialect is None:
                raise _malformed()
            groups.setdefault(dialect.options, []).append(quoted(link))
        for look in _LOOKS:
            ways = (f"[{', '.join(links)}], {_CSV}, {options}, {look}" for options, links in groups.items())
            scan = " UNION ALL BY NAME ".join(f"FROM read_csv({way})" for way in ways)
            yield partial(self._scanned, f"({scan})")

    def _relation(self, reader: str, names: str) -> Relation:
        return self._scanned(reader.replace("FILES", names), names)

    def _scanned(self, scan: str, names: str = "") -> Relation:
        return _bounded(Relation(lambda: scan, self.types(f"FROM {scan} LIMIT 0"), names))

    def _arrow(self, links: list[str]) -> Relation:
        import pyarrow as pa

        schemas = [schema for schema, _ in map(_batches, links)]
        if any(not schema.equals(schemas[0]) for schema in schemas):
            raise _mixed()

        def scan() -> str:
            batches = (batch for link in links for batch in _batches(link)[1])
            self.engine.register("arrow_rows", pa.RecordBatchReader.from_batches(schemas[0], batches))
            return "arrow_rows"

        self.engine.register("arrow_none", schemas[0].empty_table())
        return _bounded(Relation(scan, self.types("FROM arrow_none")))

    def _linked(self, files: TableFiles) -> list[str]:
        """Names without a star or a quote in them, which lead to the files."""
        folder = self._home / "files" / str(self._count)
        folder.mkdir()
        self._count += 1
        links = [folder / f"{number:06}{_suffix(path)}" for number, path in enumerate(files.paths)]
        for link, path in zip(links, files.paths, strict=True):
            link.symlink_to(Path(path).absolute())
        return [str(link) for link in links]

    def _check_schemas(self, names: str) -> None:
        whole = "concat_ws('|', name, type, type_length, repetition_type, scale, precision, logical_type)"
        leaves = f"list_sort(list({whole}) FILTER (coalesce(num_children, 0) = 0))"
        if len(self.select(f"DISTINCT {leaves} FROM parquet_schema({names}) GROUP BY file_name")) > 1:
            raise _mixed()


@contextlib.contextmanager
def opened(*tables: TableFiles) -> Iterator[Duck]:
    """A closed-off engine that sees these tables and a private folder; what goes wrong is said in our words."""
    duckdb = _duckdb()
    seen = [os.path.realpath(path) for table in tables for path in table.paths]
    with tempfile.TemporaryDirectory(prefix="falaj-tables-") as home:
        files = Path(home) / "files"
        files.mkdir()
        connection = duckdb.connect(str(Path(home) / "rows.db"), config=_CONFIG | {"temp_directory": f"{home}/spill"})
        clock = threading.Timer(LIMIT_S, connection.interrupt)
        try:
            allowed = (f"allowed_directories=[{quoted(str(files))}]", f"allowed_paths=[{', '.join(map(quoted, seen))}]")
            for setting in (*_SETTINGS, *allowed, *_LOCKS):
                connection.execute(f"SET {setting}")
            clock.start()
            yield Duck(connection, Path(home))
        except (duckdb.Error, MemoryError, UnicodeError, OSError, RuntimeError, ValueError) as error:
            raise _failure(error) from None
        finally:
            clock.cancel()
            connection.close()


_OFF = (
    *("autoinstall_known_extensions", "autoload_known_extensions", "allow_community_extensions"),
    *("allow_persistent_secrets", "python_enable_replacements", "preserve_insertion_order"),
)
_CONFIG: dict[str, Any] = {"memory_limit": _MEMORY, "threads": 2, **dict.fromkeys(_OFF, False)}
# Times are shown and compared in UTC wherever this runs. Footers leave NaN out of their bounds, and the optimizer would
# conclude that there is none.
_SETTINGS = ("TimeZone='UTC'", "enable_progress_bar=false", "disabled_optimizers='statistics_propagation'")
_LOCKS = ("enable_external_access=false", "lock_configuration=true")
_CSV = f"hive_partitioning=false, max_line_size={LINE_BYTES}"
_LOOKS = (f"sample_size={_SAMPLE}", "sample_size=-1", "all_varchar=true")
_LOOSE = r""", quote='"', escape='"', new_line='\r\n', strict_mode=false"""
_JSON = tuple(
    f"read_json(FILES, format='newline_delimited', hive_partitioning=false, union_by_name=true, sample_size={size})"
    for size in (_SAMPLE, -1)
)


def quoted(text: str) -> str:
    """A text inside SQL."""
    return "'" + text.replace("'", "''") + "'"


def named(name: str) -> str:
    """A name inside SQL."""
    return '"' + name.replace('"', '""') + '"'


def _walk(source: Path) -> Iterator[str]:
    if source.is_file():
        yield str(source)
    ends = tuple(_FORMATS)
    for folder, folders, names in os.walk(source):
        # Hidden folders and those of other tools' bookkeeping (_delta_log, _temporary) are no part of a table.
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        # Most folders hold no table, and a million names are looked at: by their ends first.
        likely = (name for name in names if name.lower().endswith(ends) and name[0] not in "._")
        paths = (os.path.join(folder, name) for name in likely)  # noqa: PTH118
        yield from (path for path in paths if os.path.isfile(path) and not os.path.islink(path))  # noqa: PTH113, PTH114


def _suffix(path: str) -> str:
    parts = path.rpartition("/")[2].lower().split(".")
    return next((end for end in (f".{'.'.join(parts[-2:])}", f".{parts[-1]}") if end in _FORMATS), "")


def _batches(link: str) -> tuple[Any, Iterator[Any]]:
    """The schema and the batches of an Arrow file or stream, each batch checked before anyone believes it."""
    import pyarrow as pa

    mapped = pa.memory_map(link)
    if mapped.read(6) == b"ARROW1":
        file = pa.ipc.open_file(mapped)
        schema, batches = file.schema, (file.get_batch(number) for number in range(file.num_record_batches))
    else:
        mapped.seek(0)
        schema, batches = (stream := pa.ipc.open_stream(mapped)).schema, iter(stream)

    def checked() -> Iterator[Any]:
        for batch in batches:
            batch.validate(full=True)
            yield batch

    return schema, checked()


def _check_footers(links: list[str]) -> None:
    """A footer is read whole before anything is known of it, so its size is looked at first."""
    for link in links:
        with open(link, "rb") as file:  # noqa: PTH123 - thousands of them
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 8))
            end = file.read(8)
        length = int.from_bytes(end[:4], "little")
        if len(end) < 8 or end[4:] not in (b"PAR1", b"PARE") or length > size - 12:
            raise Invalid("a file that is called Parquet is none, or was cut off", MEND)
        if length > _FOOTER_BYTES:
            raise Invalid("a Parquet file describes more columns and row groups than we read", MEND)


def _check_lines(links: list[str]) -> None:
    """No line is longer than the reader takes; it would look for the end of one for seconds, and may drop the last."""
    for link in links:
        if link.endswith((".gz", ".zst")):
            continue
        open_line = 0
        with open(link, "rb") as file:  # noqa: PTH123 - thousands of them
            while block := file.read(_READ):
                last = max(block.rfind(b"\n"), block.rfind(b"\r"))
                open_line = open_line + len(block) if last < 0 else len(block) - last - 1
                if open_line > LINE_BYTES:
                    raise Invalid(f"a line is longer than {LINE_BYTES:,} bytes", MEND)


def _told_names(paths: tuple[str, ...]) -> list[str]:
    """What people call these files, without the folder that all lie in."""
    root = os.path.commonpath([os.path.dirname(path) for path in paths])  # noqa: PTH120
    return [os.path.relpath(path, root) for path in paths]


def _check_columns(files: Iterable[Iterable[tuple[str, Any]]]) -> None:
    if len({tuple(sorted(name for name, _ in columns)) for columns in files}) > 1:
        raise _mixed()


def _bounded(relation: Relation) -> Relation:
    if len(relation.columns) > MAX_COLUMNS:
        raise Invalid(f"the table has {len(relation.columns):,} columns", f"up to {MAX_COLUMNS:,} are described")
    return relation


def _mixed() -> Invalid:
    return Invalid("the table files have different columns", "publish each table as a dataset of its own")


def _malformed() -> Invalid:
    return Invalid("the files cannot be read as a table: they are malformed, or of a kind we do not know", MEND)


def _slow() -> Invalid:
    return Invalid(f"the table was not read within {LIMIT_S / 60:.0f} minutes", MEND)


def _failure(error: Exception) -> FalajError:
    import duckdb

    if isinstance(error, duckdb.InterruptException):
        return _slow()
    if isinstance(error, (duckdb.OutOfMemoryException, MemoryError)):
        return Invalid(f"reading the table needs more memory than {_MEMORY}", MEND)
    if isinstance(error, OSError) and not isinstance(error, FalajError):
        return Invalid(f"the table cannot be read ({error.strerror or 'no more is known'})", MEND)
    return _malformed()


def _duckdb() -> Any:
    try:
        import duckdb
        import pyarrow  # noqa: F401, ICN001 - asked for here, so that what is missing is said once
    except ModuleNotFoundError as error:
        raise Invalid(f"tables need the package {error.name}", "pip install 'falaj[tables]'") from None
    return duckdb

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

from falaj.content.delimited import MAX_LINE_BYTES, REPAIR_HINT, HeaderLine, find_header_line, validate_rows
from falaj.content.isolated_parser import ParserLimits, parse_isolated
from falaj.core.errors import FalajError, Invalid

MAX_COLUMNS = 4096
MAX_READ_S = 900.0
_MEMORY_LIMIT = "1GiB"
_MAX_DATA_BYTES = 4 << 30
_MAX_FOOTER_BYTES = 64 << 20
_SAMPLE_ROWS = 20_480
_READ_BYTES = 1 << 20
_MIN_SPILL_BYTES, _SPILL_RATIO = 4 << 30, 16
"""Bytes that the engine may spill to disk, and the same as a multiple of the table's size; the larger counts."""
_FORMAT_BY_SUFFIX = {
    **dict.fromkeys((".parquet", ".parq", ".pq"), "parquet"),
    **dict.fromkeys((".csv", ".csv.gz", ".csv.zst"), "csv"),
    **dict.fromkeys((".tsv", ".tsv.gz", ".tsv.zst"), "tsv"),
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"), "jsonl"),
}
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of one table, sorted, and how to read them."""

    format: str
    paths: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TableRelation:
    """A table inside the engine. `scan` makes anew what stands behind FROM, since a stream is read only once."""

    scan: Callable[[], str]
    columns: tuple[tuple[str, Any], ...]
    """Names and DuckDB's types, in the order of the table."""
    names: str = ""
    """The files behind it as SQL lists them, where the engine opens them itself."""


@dataclass(frozen=True, slots=True)
class CsvDialect:
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
        return f"delim={quote_text(self.delimiter)}, skip={self.skip}, header={self.header}{self.more}"


def find_table_files(source: Path) -> TableFiles | None:
    """The table in a folder (or the one that a file is); None when there is none, Invalid when there are several."""
    paths_by_format: dict[str, list[str]] = {}
    for path in _iterate_table_paths(source.absolute()):  # a helper that parses them has a working folder of its own
        if format_name := detect_format(path):
            paths_by_format.setdefault(format_name, []).append(path)
    if not paths_by_format:
        return None
    if len(paths_by_format) > 1:
        raise Invalid(
            f"tables of several kinds lie together: {', '.join(sorted(paths_by_format))}",
            "publish each as a dataset of its own",
        )
    format_name, paths = next(iter(paths_by_format.items()))
    return TableFiles(format_name, tuple(sorted(paths)), sum(Path(path).stat().st_size for path in paths))


def detect_format(path: str) -> str:
    """How a file of that name is read as a table; empty when it is none."""
    return _FORMAT_BY_SUFFIX.get(_get_suffix(path), "")


def parse_tables(
    module: str, request: object, answer_type: type[AnswerT], *tables: TableFiles, max_seconds: float | None = None
) -> AnswerT:
    """Return what `module` makes of the tables in an isolated helper process, within LIMIT_S or `max_seconds`."""
    size_bytes, limit_s = sum(table.size_bytes for table in tables), MAX_READ_S if max_seconds is None else max_seconds
    limits = ParserLimits(
        _MAX_DATA_BYTES, max(1, int(2 * limit_s)), limit_s + 60, max(_MIN_SPILL_BYTES, _SPILL_RATIO * size_bytes)
    )
    return parse_isolated(module, request, answer_type, (path for table in tables for path in table.paths), limits)


class DuckEngine:
    """One DuckDB, closed off: it reads the files given to it, and what it makes is gone with it."""

    def __init__(self, connection: Any, scratch_folder: Path) -> None:
        self.engine = connection
        self.scratch_folder = scratch_folder
        self.link_folder_count = 0

    def select(self, query: str) -> list[tuple[Any, ...]]:
        """Every row of an answer. Names in queries are our own or `named`, values our own or `quoted`."""
        rows: list[tuple[Any, ...]] = self.engine.execute(f"SELECT {query}").fetchall()
        return rows

    def make(self, relation_kind: str, query: str) -> None:
        """A view or a table of an answer, gone with the engine."""
        self.engine.execute(f"CREATE OR REPLACE {relation_kind} AS {query}")

    def types(self, query: str) -> tuple[tuple[str, Any], ...]:
        """The names and types of an answer's columns."""
        relation = self.engine.sql(query)
        return tuple(zip(relation.columns, relation.types, strict=True))

    def read(self, files: TableFiles, process_relation: Callable[[TableRelation], AnswerT]) -> AnswerT:
        """What `process_relation` makes of the files, read in the first way that fits all of their rows."""
        import duckdb

        last_error: Exception | None = None
        for open_relation in self.generate_readers(files, self.link_files(files)):
            try:
                return process_relation(open_relation())
            except (duckdb.ConversionException, duckdb.InvalidInputException) as error:
                # Types were guessed from the first rows and a later row is of another type.
                last_error = error
        raise last_error or _malformed_error()

    def generate_readers(self, files: TableFiles, links: list[str]) -> Iterator[Callable[[], TableRelation]]:
        files_sql = f"[{', '.join(map(quote_text, links))}]"
        if files.format == "arrow":
            yield lambda: self.open_arrow(links)
        elif files.format == "parquet":
            _require_bounded_footers(links)
            self.require_equal_schemas(files_sql)
            yield lambda: self.open_relation(
                "read_parquet(FILES, hive_partitioning=false, union_by_name=true)", files_sql
            )
        elif files.format == "jsonl":
            _require_bounded_lines(links)
            _require_equal_columns(self.open_relation(_JSON_READERS[0], quote_text(link)).columns for link in links)
            for options in _JSON_READERS:
                yield partial(self.open_relation, options, files_sql)
        else:
            _require_bounded_lines(links)
            yield from self.generate_csv_readers(
                files.format, dict(zip(links, _make_relative_names(files.paths), strict=True))
            )

    def generate_csv_readers(
        self, format_name: str, names_by_link: Mapping[str, str]
    ) -> Iterator[Callable[[], TableRelation]]:
        """CSV and its like. Files without a word in them add nothing; alone they are a table without columns."""
        headers_by_link = {
            link: head
            for link, name in names_by_link.items()
            if (head := find_header_line(link, name, format_name)) is not None
        }
        if not headers_by_link:
            yield lambda: TableRelation(lambda: "(SELECT 1 WHERE false)", ())
            return
        dialects = self.detect_dialects(format_name, headers_by_link)
        if all(dialects.values()):
            yield from self.generate_csv_relations(dialects)
        # The engine reads strictly, and could not: the line that stopped it is named here. What else may stop it is
        # that lines end in different ways. Reading less strictly it takes those, and it would drop fields too many.
        mixed_dialects = dict[str, CsvDialect | None]()
        for link, head in headers_by_link.items():
            dialect, skipped_lines = dialects[link], head.line - 1
            delimiter = dialect.delimiter if dialect else head.delimiter
            if validate_rows(link, names_by_link[link], skipped_lines, delimiter):
                mixed_dialects[link] = self.sniff_dialect(
                    link,
                    f"delim={quote_text(delimiter)}, skip={skipped_lines}{_LENIENT_CSV_OPTIONS}",
                    _LENIENT_CSV_OPTIONS,
                )
        if mixed_dialects:
            yield from self.generate_csv_relations(dialects | mixed_dialects)

    def detect_dialects(
        self, format_name: str, headers_by_link: Mapping[str, HeaderLine]
    ) -> "dict[str, CsvDialect | None]":
        """How each file is written. To guess takes the engine longer than to read a small file, so of those that begin
        with the same line only the largest is looked at: where a row of another does not fit, the reader stops."""
        links_by_header: dict[HeaderLine | str, list[str]] = {}
        for link, head in headers_by_link.items():
            links_by_header.setdefault(head if head.line == 1 and head.width > 1 else link, []).append(link)
        dialects_by_link = dict[str, CsvDialect | None]()
        for links in links_by_header.values():
            largest = max(links, key=os.path.getsize)
            largest_dialect = self.detect_dialect(format_name, largest, headers_by_link[largest])
            # A line that is no header may be the same by chance, and one that is may stand above what cannot be read.
            is_certain = largest_dialect is not None and largest_dialect.header
            for link in links:
                dialects_by_link[link] = (
                    largest_dialect
                    if is_certain or link == largest
                    else self.detect_dialect(format_name, link, headers_by_link[link])
                )
        return {link: dialects_by_link[link] for link in headers_by_link}

    def detect_dialect(self, format_name: str, link: str, head: HeaderLine) -> "CsvDialect | None":
        """How a file is written, as the engine guesses; nothing when it cannot, or when the header says otherwise."""
        import duckdb

        try:
            sniffed_dialect = self.sniff_dialect(link, "delim='\t'" if format_name == "tsv" else "auto_detect=true", "")
        except duckdb.InvalidInputException:
            return None
        return (
            sniffed_dialect
            if sniffed_dialect.skip < head.line and (len(sniffed_dialect.columns) > 1 or head.width == 1)
            else None
        )

    def sniff_dialect(self, link: str, options: str, extra_options: str) -> "CsvDialect":
        sniff_call = (
            f"sniff_csv({quote_text(link)}, sample_size={_SAMPLE_ROWS}, max_line_size={MAX_LINE_BYTES}, {options})"
        )
        ((delimiter, skip, header, columns),) = self.select(
            f"delimiter, skiprows, hasheader, columns FROM {sniff_call}"
        )
        return CsvDialect(
            delimiter,
            skip,
            header,
            tuple((sniffed_column["name"], sniffed_column["type"]) for sniffed_column in columns),
            extra_options,
        )

    def generate_csv_relations(
        self, dialects: "Mapping[str, CsvDialect | None]"
    ) -> Iterator[Callable[[], TableRelation]]:
        _require_equal_columns(dialect.columns for dialect in dialects.values() if dialect)
        links_by_options: dict[str, list[str]] = {}
        for link, dialect in dialects.items():
            if dialect is None:
                raise _malformed_error()
            links_by_options.setdefault(dialect.options, []).append(quote_text(link))
        for type_options in _CSV_TYPE_OPTIONS:
            all_arguments = (
                f"[{', '.join(links)}], {_CSV_OPTIONS}, {options}, {type_options}"
                for options, links in links_by_options.items()
            )
            scan = " UNION ALL BY NAME ".join(f"FROM read_csv({read_arguments})" for read_arguments in all_arguments)
            yield partial(self.make_relation, f"({scan})")

    def open_relation(self, reader: str, files_sql: str) -> TableRelation:
        return self.make_relation(reader.replace("FILES", files_sql), files_sql)

    def make_relation(self, scan: str, files_sql: str = "") -> TableRelation:
        return _require_max_columns(TableRelation(lambda: scan, self.types(f"FROM {scan} LIMIT 0"), files_sql))

    def open_arrow(self, links: list[str]) -> TableRelation:
        import pyarrow as pa

        schemas = [schema for schema, _ in map(_open_batches, links)]
        if any(not schema.equals(schemas[0]) for schema in schemas):
            raise _mixed_columns_error()

        def register_rows() -> str:
            batches = (batch for link in links for batch in _open_batches(link)[1])
            self.engine.register("arrow_rows", pa.RecordBatchReader.from_batches(schemas[0], batches))
            return "arrow_rows"

        self.engine.register("arrow_none", schemas[0].empty_table())
        return _require_max_columns(TableRelation(register_rows, self.types("FROM arrow_none")))

    def link_files(self, files: TableFiles) -> list[str]:
        """Names without a star or a quote in them, which lead to the files."""
        folder = self.scratch_folder / "files" / str(self.link_folder_count)
        folder.mkdir()
        self.link_folder_count += 1
        links = [folder / f"{number:06}{_get_suffix(path)}" for number, path in enumerate(files.paths)]
        for link, path in zip(links, files.paths, strict=True):
            link.symlink_to(Path(path).absolute())
        return [str(link) for link in links]

    def require_equal_schemas(self, files_sql: str) -> None:
        leaf_expression = "concat_ws('|', name, type, type_length, repetition_type, scale, precision, logical_type)"
        leaves_expression = f"list_sort(list({leaf_expression}) FILTER (coalesce(num_children, 0) = 0))"
        if len(self.select(f"DISTINCT {leaves_expression} FROM parquet_schema({files_sql}) GROUP BY file_name")) > 1:
            raise _mixed_columns_error()


@contextlib.contextmanager
def open_engine(*tables: TableFiles) -> Iterator[DuckEngine]:
    """A closed-off engine that sees these tables and a private folder; what goes wrong is said in our words."""
    duckdb = _import_duckdb()
    real_paths = [os.path.realpath(path) for table in tables for path in table.paths]
    with tempfile.TemporaryDirectory(prefix="falaj-tables-") as scratch_folder:
        files = Path(scratch_folder) / "files"
        files.mkdir()
        connection = duckdb.connect(
            str(Path(scratch_folder) / "rows.db"), config=_ENGINE_CONFIG | {"temp_directory": f"{scratch_folder}/spill"}
        )
        timer = threading.Timer(MAX_READ_S, connection.interrupt)
        try:
            path_settings = (
                f"allowed_directories=[{quote_text(str(files))}]",
                f"allowed_paths=[{', '.join(map(quote_text, real_paths))}]",
            )
            for setting in (*_ENGINE_SETTINGS, *path_settings, *_LOCK_SETTINGS):
                connection.execute(f"SET {setting}")
            timer.start()
            yield DuckEngine(connection, Path(scratch_folder))
        except (duckdb.Error, MemoryError, UnicodeError, OSError, RuntimeError, ValueError) as error:
            raise _to_table_error(error) from None
        finally:
            timer.cancel()
            connection.close()


_DISABLED_SETTINGS = (
    *("autoinstall_known_extensions", "autoload_known_extensions", "allow_community_extensions"),
    *("allow_persistent_secrets", "python_enable_replacements", "preserve_insertion_order"),
)
_ENGINE_CONFIG: dict[str, Any] = {
    "memory_limit": _MEMORY_LIMIT,
    "threads": 2,
    **dict.fromkeys(_DISABLED_SETTINGS, False),
}
# Times are shown and compared in UTC wherever this runs. Footers leave NaN out of their bounds, and the optimizer would
# conclude that there is none.
_ENGINE_SETTINGS = ("TimeZone='UTC'", "enable_progress_bar=false", "disabled_optimizers='statistics_propagation'")
_LOCK_SETTINGS = ("enable_external_access=false", "lock_configuration=true")
_CSV_OPTIONS = f"hive_partitioning=false, max_line_size={MAX_LINE_BYTES}"
_CSV_TYPE_OPTIONS = (f"sample_size={_SAMPLE_ROWS}", "sample_size=-1", "all_varchar=true")
_LENIENT_CSV_OPTIONS = r""", quote='"', escape='"', new_line='\r\n', strict_mode=false"""
_JSON_READERS = tuple(
    f"read_json(FILES, format='newline_delimited', hive_partitioning=false, union_by_name=true, sample_size={size})"
    for size in (_SAMPLE_ROWS, -1)
)


def quote_text(text: str) -> str:
    """A text inside SQL."""
    return "'" + text.replace("'", "''") + "'"


def quote_name(name: str) -> str:
    """A name inside SQL."""
    return '"' + name.replace('"', '""') + '"'


def _iterate_table_paths(source: Path) -> Iterator[str]:
    if source.is_file():
        yield str(source)
    suffixes = tuple(_FORMAT_BY_SUFFIX)
    for folder, folders, names in os.walk(source):
        # Hidden folders and those of other tools' bookkeeping (_delta_log, _temporary) are no part of a table.
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        # Most folders hold no table, and a million names are looked at: by their ends first.
        table_names = (name for name in names if name.lower().endswith(suffixes) and name[0] not in "._")
        paths = (os.path.join(folder, name) for name in table_names)  # noqa: PTH118
        yield from (path for path in paths if os.path.isfile(path) and not os.path.islink(path))  # noqa: PTH113, PTH114


def _get_suffix(path: str) -> str:
    parts = path.rpartition("/")[2].lower().split(".")
    return next(
        (candidate for candidate in (f".{'.'.join(parts[-2:])}", f".{parts[-1]}") if candidate in _FORMAT_BY_SUFFIX), ""
    )


def _open_batches(link: str) -> tuple[Any, Iterator[Any]]:
    """The schema and the batches of an Arrow file or stream, each batch checked before anyone believes it."""
    import pyarrow as pa

    memory_map = pa.memory_map(link)
    if memory_map.read(6) == b"ARROW1":
        file = pa.ipc.open_file(memory_map)
        schema, batches = file.schema, (file.get_batch(number) for number in range(file.num_record_batches))
    else:
        memory_map.seek(0)
        schema, batches = (stream := pa.ipc.open_stream(memory_map)).schema, iter(stream)

    def _generate_checked() -> Iterator[Any]:
        for batch in batches:
            batch.validate(full=True)
            yield batch

    return schema, _generate_checked()


def _require_bounded_footers(links: list[str]) -> None:
    """A footer is read whole before anything is known of it, so its size is looked at first."""
    for link in links:
        with open(link, "rb") as file:  # noqa: PTH123 - thousands of them
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 8))
            last_bytes = file.read(8)
        length = int.from_bytes(last_bytes[:4], "little")
        if len(last_bytes) < 8 or last_bytes[4:] not in (b"PAR1", b"PARE") or length > size - 12:
            raise Invalid("a file that is called Parquet is none, or was cut off", REPAIR_HINT)
        if length > _MAX_FOOTER_BYTES:
            raise Invalid("a Parquet file describes more columns and row groups than we read", REPAIR_HINT)


def _require_bounded_lines(links: list[str]) -> None:
    """No line is longer than the reader takes; it would look for the end of one for seconds, and may drop the last."""
    for link in links:
        if link.endswith((".gz", ".zst")):
            continue
        open_line_bytes = 0
        with open(link, "rb") as file:  # noqa: PTH123 - thousands of them
            while block := file.read(_READ_BYTES):
                last_line_end = max(block.rfind(b"\n"), block.rfind(b"\r"))
                open_line_bytes = open_line_bytes + len(block) if last_line_end < 0 else len(block) - last_line_end - 1
                if open_line_bytes > MAX_LINE_BYTES:
                    raise Invalid(f"a line is longer than {MAX_LINE_BYTES:,} bytes", REPAIR_HINT)


def _make_relative_names(paths: tuple[str, ...]) -> list[str]:
    """What people call these files, without the folder that all lie in."""
    root = os.path.commonpath([os.path.dirname(path) for path in paths])  # noqa: PTH120
    return [os.path.relpath(path, root) for path in paths]


def _require_equal_columns(files: Iterable[Iterable[tuple[str, Any]]]) -> None:
    if len({tuple(sorted(name for name, _ in columns)) for columns in files}) > 1:
        raise _mixed_columns_error()


def _require_max_columns(relation: TableRelation) -> TableRelation:
    if len(relation.columns) > MAX_COLUMNS:
        raise Invalid(f"the table has {len(relation.columns):,} columns", f"up to {MAX_COLUMNS:,} are described")
    return relation


def _mixed_columns_error() -> Invalid:
    return Invalid("the table files have different columns", "publish each table as a dataset of its own")


def _malformed_error() -> Invalid:
    return Invalid("the files cannot be read as a table: they are malformed, or of a kind we do not know", REPAIR_HINT)


def _timeout_error() -> Invalid:
    return Invalid(f"the table was not read within {MAX_READ_S / 60:.0f} minutes", REPAIR_HINT)


def _to_table_error(error: Exception) -> FalajError:
    import duckdb

    if isinstance(error, duckdb.InterruptException):
        return _timeout_error()
    if isinstance(error, (duckdb.OutOfMemoryException, MemoryError)):
        return Invalid(f"reading the table needs more memory than {_MEMORY_LIMIT}", REPAIR_HINT)
    if isinstance(error, OSError) and not isinstance(error, FalajError):
        return Invalid(f"the table cannot be read ({error.strerror or 'no more is known'})", REPAIR_HINT)
    return _malformed_error()


def _import_duckdb() -> Any:
    try:
        import duckdb
        import pyarrow  # noqa: F401, ICN001 - asked for here, so that what is missing is said once
    except ModuleNotFoundError as error:
        raise Invalid(f"tables need the package {error.name}", "pip install 'falaj[tables]'") from None
    return duckdb

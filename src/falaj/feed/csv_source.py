"""CSV files, read into memory by Arrow: what people have. Of more than memory holds, write Parquet or shards."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from falaj.core.errors import Invalid
from falaj.feed.piece_source import ColumnBlock, PieceSource
from falaj.feed.tables import combine_chunks, read_or_corrupt, to_column


def open_csv(files: Sequence[Path], columns: Sequence[str] | None) -> PieceSource:
    """A source over files with the same columns; one that is of whole numbers in some files only is of floats."""
    try:
        import pyarrow as pa
        from pyarrow import csv
    except ImportError:
        raise Invalid("tables are read with pyarrow, which is not installed", "install falaj[train]") from None
    tables = [read_or_corrupt(file, lambda: "a line", partial(csv.read_csv, file)) for file in files]
    names = tables[0].schema.names
    for file, file_table in zip(files, tables, strict=True):
        if file_table.schema.names != names:
            raise Invalid(f"{file} has other columns than {files[0].name}", f"{file_table.schema.names}; {names}")
    if missing := sorted(set(columns or ()) - set(names)):
        raise Invalid(f"{files[0]} has no column {', '.join(missing)}", f"it has: {', '.join(names)}")
    table = read_or_corrupt(
        files[0],
        lambda: "the kinds of columns",
        lambda: pa.concat_tables(tables, promote_options="permissive").combine_chunks(),
    )
    selected = {name: table[name] for name in columns or names}
    block = ColumnBlock(
        {
            name: to_column(combine_chunks(column_data), bool(column_data.null_count), partial(str, name))
            for name, column_data in selected.items()
        }
    )
    return PieceSource(
        [table.num_rows] if table.num_rows else [], lambda _: block, size_bytes=table.nbytes, loads_together=True
    )

"""CSV files, read into memory by Arrow: what people have. Of more than memory holds, write Parquet or shards."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from falaj.core.errors import Invalid
from falaj.feed.pieces import Block, Pieces
from falaj.feed.tables import column, joined, reading


def open_csv(files: Sequence[Path], columns: Sequence[str] | None) -> Pieces:
    """A source over files with the same columns; one that is of whole numbers in some files only is of floats."""
    try:
        import pyarrow as pa
        from pyarrow import csv
    except ImportError:
        raise Invalid("tables are read with pyarrow, which is not installed", "install falaj[train]") from None
    parts = [reading(file, lambda: "a line", partial(csv.read_csv, file)) for file in files]
    names = parts[0].schema.names
    for file, part in zip(files, parts, strict=True):
        if part.schema.names != names:
            raise Invalid(f"{file} has other columns than {files[0].name}", f"{part.schema.names}; {names}")
    if missing := sorted(set(columns or ()) - set(names)):
        raise Invalid(f"{files[0]} has no column {', '.join(missing)}", f"it has: {', '.join(names)}")
    table = reading(
        files[0],
        lambda: "the kinds of columns",
        lambda: pa.concat_tables(parts, promote_options="permissive").combine_chunks(),
    )
    kept = {name: table[name] for name in columns or names}
    made = Block({name: column(joined(one), bool(one.null_count), partial(str, name)) for name, one in kept.items()})
    return Pieces([table.num_rows] if table.num_rows else [], lambda _: made, size_bytes=table.nbytes, joined=True)

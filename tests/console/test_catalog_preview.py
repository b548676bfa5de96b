"""A look into a file: rows, text, or neither; whatever the bytes are, nothing breaks and nothing is run."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.console.pages.catalog.file_preview import MAX_ROWS, FilePreview, preview_file


def seen(path: str, body: bytes) -> FilePreview:
    return preview_file(path, len(body), lambda most: [body[:most]])


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("a.csv", b"x,y\n1,\"a,b\"\n2\n", FilePreview(("x", "y"), (("1", "a,b"), ("2", None)))),
        ("a.tsv", b"x\ty\n1\t2\n", FilePreview(("x", "y"), (("1", "2"),))),
        ("a.jsonl", b'{"x": 1}\n{"x": null, "y": [1]}\n', FilePreview(("x", "y"), (("1", None), (None, "[1]")))),
        ("a.jsonl", b"[1]\n", FilePreview(text="[1]\n")),
        ("a.md", b"# <b>bold</b>", FilePreview(text="# <b>bold</b>")),
        ("a.bin", b"\x00\x01", FilePreview()),
        ("a.txt", b"\xff\xfe\xfd", FilePreview()),
        ("empty.csv", b"", FilePreview()),
    ],
)  # fmt: skip
def test_what_is_seen(path: str, body: bytes, expected: FilePreview) -> None:
    assert seen(path, body) == expected


def test_only_the_first_rows() -> None:
    body = b"x\n" + b"".join(b"%d\n" % row for row in range(1000))
    found = seen("a.csv", body)
    assert (len(found.rows), found.cut) == (MAX_ROWS, True)


@settings(max_examples=60)
@given(st.sampled_from(("a.csv", "a.tsv", "a.jsonl", "a.txt")), st.binary(max_size=400))
def test_no_bytes_break_it(path: str, body: bytes) -> None:
    found = seen(path, body)
    assert all(len(row) == len(found.columns) for row in found.rows)


def test_a_table_that_only_an_engine_reads(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1, None], "y": ["<b>", "z" * 1000]}), file)
    found = seen("a.parquet", file.read_bytes())
    assert found == FilePreview(("x", "y"), (("1", "<b>"), (None, "z" * 200)))

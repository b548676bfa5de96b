"""Rows on their way to partitions: in memory while they fit, then in one file a bucket."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

BucketFunction = Callable[[pa.Table, int], NDArray[np.uint16]]


class RowSpill:
    """Takes tables in and gives them back by partition, each with its rows in the order they came."""

    def __init__(
        self, folder: Path, schema: pa.Schema, find_bucket: BucketFunction, num_buckets: int, memory_bytes: int
    ) -> None:
        self._folder = folder
        self._schema = schema
        self._bucket = find_bucket
        self._num_buckets = num_buckets
        # The rows, a copy of them in order, and room for whoever made them.
        self._room_bytes = memory_bytes // 3
        self._buffered_tables: list[pa.Table] = []
        self._buffered_bytes = 0
        self._writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        self.total_bytes = 0

    def add(self, table: pa.Table) -> None:
        self._buffered_tables.append(table)
        self._buffered_bytes += table.nbytes
        self.total_bytes += table.nbytes
        if self._buffered_bytes > self._room_bytes:
            self._flush_tables()

    def parts(self, count: int) -> Iterator[tuple[int, pa.Table]]:
        """Each partition that has rows; `count` is a power of two, at most the number of buckets."""
        if not self._writers:
            buffered = self._take_buffered()
            yield from _split_by_bucket(buffered, self._bucket(buffered, count), count)
            return
        self._flush_tables()
        for writer in self._writers.values():
            writer.close()
        for partition in range(count):
            buckets = [bucket for bucket in range(partition, self._num_buckets, count) if bucket in self._writers]
            tables = [self._read_bucket(bucket) for bucket in buckets]
            if tables:
                yield partition, pa.concat_tables(tables)
            for bucket in buckets:
                self._bucket_path(bucket).unlink()

    def _flush_tables(self) -> None:
        buffered = self._take_buffered()
        for bucket, table in _split_by_bucket(buffered, self._bucket(buffered, self._num_buckets), self._num_buckets):
            if bucket not in self._writers:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._writers[bucket] = pa.ipc.new_stream(str(self._bucket_path(bucket)), self._schema)
            self._writers[bucket].write_table(table)

    def _take_buffered(self) -> pa.Table:
        buffered = pa.concat_tables(self._buffered_tables) if self._buffered_tables else self._schema.empty_table()
        self._buffered_tables, self._buffered_bytes = [], 0
        return buffered

    def _read_bucket(self, bucket: int) -> pa.Table:
        with pa.OSFile(str(self._bucket_path(bucket))) as file:
            return pa.ipc.open_stream(file).read_all()

    def _bucket_path(self, bucket: int) -> Path:
        return self._folder / f"{bucket:04d}.arrow"


def _split_by_bucket(table: pa.Table, bucket_of_row: NDArray[np.uint16], count: int) -> Iterator[tuple[int, pa.Table]]:
    if count == 1:
        if len(table):
            yield 0, table
        return
    order = np.argsort(bucket_of_row, kind="stable")
    ends = np.cumsum(np.bincount(bucket_of_row, minlength=count))
    # One array a column, taken once: taking from many chunks, many times, costs several times as much.
    sorted_rows = table.combine_chunks().take(pa.array(order))
    start = 0
    for bucket_number, end in enumerate(ends.tolist()):
        if end > start:
            yield bucket_number, sorted_rows.slice(start, end - start)
        start = end

"""Rows on their way to partitions: in memory while they fit, then in one file a bucket."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Bucket = Callable[[pa.Table, int], NDArray[np.uint16]]


class Spill:
    """Takes tables in and gives them back by partition, each with its rows in the order they came."""

    def __init__(self, folder: Path, schema: pa.Schema, bucket: Bucket, num_buckets: int, memory_bytes: int) -> None:
        self._folder = folder
        self._schema = schema
        self._bucket = bucket
        self._num_buckets = num_buckets
        # The rows, a copy of them in order, and room for whoever made them.
        self._room_bytes = memory_bytes // 3
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        self.total_bytes = 0

    def add(self, table: pa.Table) -> None:
        self._held.append(table)
        self._held_bytes += table.nbytes
        self.total_bytes += table.nbytes
        if self._held_bytes > self._room_bytes:
            self._flush()

    def parts(self, count: int) -> Iterator[tuple[int, pa.Table]]:
        """Each partition that has rows; `count` is a power of two, at most the number of buckets."""
        if not self._writers:
            held = self._take_held()
            yield from _split(held, self._bucket(held, count), count)
            return
        self._flush()
        for writer in self._writers.values():
            writer.close()
        for partition in range(count):
            buckets = [each for each in range(partition, self._num_buckets, count) if each in self._writers]
            tables = [self._read(each) for each in buckets]
            if tables:
                yield partition, pa.concat_tables(tables)
            for each in buckets:
                self._path(each).unlink()

    def _flush(self) -> None:
        held = self._take_held()
        for bucket, table in _split(held, self._bucket(held, self._num_buckets), self._num_buckets):
            if bucket not in self._writers:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._writers[bucket] = pa.ipc.new_stream(str(self._path(bucket)), self._schema)
            self._writers[bucket].write_table(table)

    def _take_held(self) -> pa.Table:
        held = pa.concat_tables(self._held) if self._held else self._schema.empty_table()
        self._held, self._held_bytes = [], 0
        return held

    def _read(self, bucket: int) -> pa.Table:
        with pa.OSFile(str(self._path(bucket))) as file:
            return pa.ipc.open_stream(file).read_all()

    def _path(self, bucket: int) -> Path:
        return self._folder / f"{bucket:04d}.arrow"


def _split(table: pa.Table, bucket: NDArray[np.uint16], count: int) -> Iterator[tuple[int, pa.Table]]:
    if count == 1:
        if len(table):
            yield 0, table
        return
    order = np.argsort(bucket, kind="stable")
    ends = np.cumsum(np.bincount(bucket, minlength=count))
    # One array a column, taken once: taking from many chunks, many times, costs several times as much.
    sorted_rows = table.combine_chunks().take(pa.array(order))
    start = 0
    for at, end in enumerate(ends.tolist()):
        if end > start:
            yield at, sorted_rows.slice(start, end - start)
        start = end

"""A training set by many workers: each takes some partitions of every view, and the pieces are laid together.

Whose work a piece is never shows in it: any number of workers, tried any number of times, makes the same bits. A
worker's memory holds keys and moments of its share of the labels, and one partition of one view.

Pieces lie in one folder until all are there: one file for a view and a partition, with the rows of each block of labels
in a group of their own, so that the set is read back block by block.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from falaj.asof.entity_keys import build_key_column
from falaj.asof.records import FeatureField, ViewPlan, Window
from falaj.asof.row_files import PartitionSegment, SegmentRows, parse_part_name
from falaj.asof.segment import FileFetcher
from falaj.asof.training_sets import ROW_COLUMN, JoinedView, assemble_pieces, build_partition, count_partitions
from falaj.core.errors import CorruptData, Invalid

LABELS_PER_BLOCK = 1 << 17
"""So many labels are laid together at a time: few enough that a thousand features of them fit in a gigabyte."""
_POLL_INTERVAL_S = 0.2
_READ_ROWS = 1 << 20


class WorkerIdentity(NamedTuple):
    """Which worker of how many, in which try."""

    rank: int
    world: int
    attempt: str


@dataclass(frozen=True, slots=True)
class TrainingSetTask:
    """What all workers are to do: plain data, beside their program."""

    moment: str
    known_at: str | int | None
    labels: tuple[str, ...]
    """Files of the input `labels`, in their order."""
    views: tuple[ViewPlan, ...]
    chapters: tuple[tuple[Mapping[str, str], ...], ...]
    """For each view its chapters: face to the input that has it."""
    away: str = ""
    """Where every node has a folder of its own: several workers do not meet below it."""
    block_rows: int = LABELS_PER_BLOCK

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, path: Path) -> "TrainingSetTask":
        """From a file."""
        fields = json.loads(path.read_text(encoding="utf-8"))
        views = tuple(_parse_view_plan(element) for element in fields["views"])
        chapters = tuple(tuple(element) for element in fields["chapters"])
        return cls(**{**fields, "labels": tuple(fields["labels"]), "views": views, "chapters": chapters})


def build_worker_share(
    task: TrainingSetTask,
    worker: WorkerIdentity,
    inputs: Mapping[str, str],
    folder: Path,
    output: Path,
    report_progress: Callable[[int, int], None],
) -> None:
    """One worker's share, into the folder that all share; the first one waits for the others and brings all out.

    What an earlier try left whole in the folder is not made again.
    """
    if worker.world > 1 and task.away and folder.is_relative_to(task.away):
        hint = "an operator can say one: falaj clusters change NAME --more checkpoints=/path; or use one worker"
        raise Invalid("the workers of this cluster have no folder in common", hint)
    folder.mkdir(0o700, parents=True, exist_ok=True)
    labels = [Path(inputs["labels"], name) for name in task.labels]
    views = [
        JoinedView(plan, _open_rows(view_segments, inputs))
        for plan, view_segments in zip(task.views, task.chapters, strict=True)
    ]
    piece_counts = [len(_list_own_partitions(view, worker)) for view in views]
    for number, view in enumerate(views):
        piece_paths = {
            partition: folder / format_piece_name(number, partition) for partition in _list_own_partitions(view, worker)
        }
        pending_paths = {partition: path for partition, path in piece_paths.items() if not path.exists()}
        done_count = sum(piece_counts[:number]) + len(piece_paths) - len(pending_paths)
        for path, piece in _build_pieces(task, view, labels, pending_paths, worker) if pending_paths else ():
            _write_piece(path, piece, f".{worker.attempt}-{worker.rank}", task.block_rows)
            report_progress(done_count := done_count + 1, sum(piece_counts))
    (folder / f"done-{worker.attempt}-{worker.rank}").touch()
    if worker.rank == 0:
        counts = enumerate(map(count_partitions, views))
        _publish_pieces(
            folder,
            output,
            worker,
            [
                format_piece_name(view_number, partition_number)
                for view_number, count in counts
                for partition_number in range(count)
            ],
        )


def format_piece_name(view: int, partition: int) -> str:
    """What the file of a piece is called."""
    return f"v{view:04d}-p{partition:04d}.parquet"


def assemble_set(task: TrainingSetTask, labels: Path, folder: Path) -> Iterator[pa.Table]:
    """The set as one machine would have made it, block by block in the order of the labels; at least an empty one."""
    views = [JoinedView(plan, SegmentRows([])) for plan in task.views]
    pieces_by_view = [
        [_PieceFile(path) for path in folder.glob(f"v{view_number:04d}-p*.parquet")]
        for view_number in range(len(views))
    ]
    first_row = 0
    for label_block in read_blocks([labels / name for name in task.labels], task.block_rows):
        pieces = [
            [piece_file.rows(first_row, len(label_block)) for piece_file in view_pieces]
            for view_pieces in pieces_by_view
        ]
        for view_pieces in pieces:
            label_rows = [np.asarray(piece[ROW_COLUMN]) for piece in view_pieces]
            if not label_rows or bool(np.any(np.bincount(np.concatenate(label_rows), minlength=len(label_block)) != 1)):
                raise CorruptData("these pieces are not of these labels", "build the set anew")
        yield assemble_pieces(label_block, views, pieces, status=True)
        first_row += len(label_block)


def read_blocks(files: Sequence[Path], block_rows: int, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Rows of Parquet files, so many at a time across the ends of files; one empty table where there are none."""
    batches: list[pa.Table] = []
    empty_table, has_yielded = None, False
    for path in files:
        with pq.ParquetFile(path) as file:
            empty_table = file.schema_arrow.empty_table() if empty_table is None else empty_table
            for batch in file.iter_batches(min(block_rows, 1 << 16), columns=columns):
                batches.append(pa.Table.from_batches([batch]))
                while sum(map(len, batches)) >= block_rows:
                    joined_batches = pa.concat_tables(batches)
                    yield joined_batches.slice(0, block_rows)
                    batches, has_yielded = [joined_batches.slice(block_rows)], True
    if batches and (len(remaining := pa.concat_tables(batches)) or not has_yielded):
        yield remaining
    elif not has_yielded and empty_table is not None:
        yield empty_table.select(columns) if columns is not None else empty_table


class _PieceFile:
    """A piece as a file; which of its groups are of which labels is known without reading them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._metadata = pq.read_metadata(path)
        statistics = [self._metadata.row_group(n).column(0).statistics for n in range(self._metadata.num_row_groups)]
        self._row_spans = [
            (group_stats.min, group_stats.max) if group_stats is not None and group_stats.has_min_max else (0, -1)
            for group_stats in statistics
        ]

    def rows(self, first: int, count: int) -> pa.Table:
        """Those of `count` labels from `first` on, counted from there."""
        group_numbers = [n for n, (low, high) in enumerate(self._row_spans) if low < first + count and high >= first]
        with pq.ParquetFile(self._path, metadata=self._metadata) as file:
            table = file.read_row_groups(group_numbers) if group_numbers else file.schema_arrow.empty_table()
        label_rows = np.asarray(table[ROW_COLUMN]) - first
        if len(label_rows) and not 0 <= label_rows[0] <= label_rows[-1] < count:
            raise CorruptData("a piece of this set was cut otherwise than its labels", "build the set anew")
        return table.set_column(0, ROW_COLUMN, pa.array(label_rows))


def _build_pieces(
    task: TrainingSetTask, view: JoinedView, labels: Sequence[Path], paths: Mapping[int, Path], worker: WorkerIdentity
) -> Iterator[tuple[Path, pa.Table]]:
    """What these partitions give, one after the other."""
    table, rows, partitions = _read_label_share(task.moment, view, labels, worker)
    order = np.argsort(partitions, kind="stable")
    bounds = np.searchsorted(partitions[order], [(partition, partition + 1) for partition in paths])
    for (partition, path), (low, high) in zip(paths.items(), bounds.tolist(), strict=True):
        label_rows = order[low:high]
        piece = build_partition(table.take(pa.array(label_rows)), task.moment, view, partition, known_at=task.known_at)
        yield path, piece.set_column(0, ROW_COLUMN, pa.array(rows[label_rows][np.asarray(piece[ROW_COLUMN])]))


def _read_label_share(
    moment: str, view: JoinedView, labels: Sequence[Path], worker: WorkerIdentity
) -> tuple[pa.Table, NDArray[np.int64], NDArray[np.uint16]]:
    """Keys and moments of the labels that are ours, their row numbers, and the partition of each."""
    names, types = [key.name for key in view.plan.keys], [key.type for key in view.plan.keys]
    count = count_partitions(view)
    tables, row_numbers, partition_parts, first_row = [], [], [], 0
    for block in read_blocks(labels, _READ_ROWS, list(dict.fromkeys((*names, moment)))):
        partitions = build_key_column([block.column(name) for name in names], types).partitions(count)
        own_rows = np.flatnonzero(partitions % worker.world == worker.rank)
        tables.append(block.take(pa.array(own_rows)))
        row_numbers.append(own_rows + first_row)
        partition_parts.append(partitions[own_rows])
        first_row += len(block)
    return pa.concat_tables(tables).combine_chunks(), np.concatenate(row_numbers), np.concatenate(partition_parts)


def _write_piece(path: Path, piece: pa.Table, draft_name: str, block_rows: int) -> None:
    """Whole or not at all. Without dictionaries: they would take one NaN for another."""
    draft_path = path.with_name(draft_name)
    rows = np.asarray(piece[ROW_COLUMN])
    ends = np.searchsorted(rows, np.arange(block_rows, (rows[-1] if len(rows) else 0) + block_rows, block_rows))
    with draft_path.open("wb") as file:
        with pq.ParquetWriter(file, piece.schema, use_dictionary=False, write_statistics=[ROW_COLUMN]) as writer:
            for low, high in zip((0, *ends), (*ends, len(rows)), strict=True):
                if high > low:
                    writer.write_table(piece.slice(low, high - low), row_group_size=block_rows)
        file.flush()
        os.fsync(file.fileno())
    draft_path.replace(path)


def _publish_pieces(folder: Path, output: Path, worker: WorkerIdentity, names: Sequence[str]) -> None:
    """All pieces into the output, when every worker of this try has said that its own are there."""
    done_marks = [folder / f"done-{worker.attempt}-{rank}" for rank in range(worker.world)]
    # A worker that fails ends the whole try, and this one with it: nothing to give up here.
    while not all(done_mark.exists() for done_mark in done_marks):
        time.sleep(_POLL_INTERVAL_S)
    for name in names:
        try:
            (output / name).hardlink_to(folder / name)
        except FileNotFoundError:
            raise CorruptData(f"the piece {name} is gone", "try again") from None
        except OSError:  # another file system, or one without links
            shutil.copyfile(folder / name, output / name)
    shutil.rmtree(folder, ignore_errors=True)


def _open_rows(segment_folders: Sequence[Mapping[str, str]], inputs: Mapping[str, str]) -> SegmentRows:
    parts = []
    for role_by_group in segment_folders:
        for path in sorted(Path(inputs[role_by_group[""]]).glob("p*.seg")):
            partition, of, _ = parse_part_name(path.name)
            files = {group: FileFetcher(Path(inputs[role], path.name)) for group, role in role_by_group.items()}
            parts.append(PartitionSegment(partition, of, files))
    return SegmentRows(parts)


def _list_own_partitions(view: JoinedView, worker: WorkerIdentity) -> range:
    return range(worker.rank, count_partitions(view), worker.world)


def _parse_view_plan(plan_fields: Mapping[str, Any]) -> ViewPlan:
    fields = {
        name: tuple(FeatureField(**field_values) for field_values in plan_fields[name]) for name in ("keys", "stored")
    }
    lists = {name: tuple(plan_fields[name]) for name in ("wanted", "names")}
    return ViewPlan(
        **{
            **plan_fields,
            **fields,
            **lists,
            "windows": tuple(Window(**field_values) for field_values in plan_fields["windows"]),
        }
    )

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

from falaj.asof.engine import ROW, Joined, gather, part_of, partitions_of
from falaj.asof.keys import key_column
from falaj.asof.records import Field, ViewPlan, Window
from falaj.asof.rows import OwnRows, Part, read_name
from falaj.asof.segment import File
from falaj.core.errors import Corrupt, Invalid

BLOCK_ROWS = 1 << 17
"""So many labels are laid together at a time: few enough that a thousand features of them fit in a gigabyte."""
_LOOK_S = 0.2
_READ_ROWS = 1 << 20


class Who(NamedTuple):
    """Which worker of how many, in which try."""

    rank: int
    world: int
    attempt: str


@dataclass(frozen=True, slots=True)
class Task:
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
    block_rows: int = BLOCK_ROWS

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, path: Path) -> "Task":
        """From a file."""
        said = json.loads(path.read_text(encoding="utf-8"))
        views = tuple(_plan(each) for each in said["views"])
        chapters = tuple(tuple(each) for each in said["chapters"])
        return cls(**{**said, "labels": tuple(said["labels"]), "views": views, "chapters": chapters})


def work(
    task: Task, who: Who, inputs: Mapping[str, str], folder: Path, output: Path, tell: Callable[[int, int], None]
) -> None:
    """One worker's share, into the folder that all share; the first one waits for the others and brings all out.

    What an earlier try left whole in the folder is not made again.
    """
    if who.world > 1 and task.away and folder.is_relative_to(task.away):
        hint = "an operator can say one: falaj clusters change NAME --more checkpoints=/path; or use one worker"
        raise Invalid("the workers of this cluster have no folder in common", hint)
    folder.mkdir(0o700, parents=True, exist_ok=True)
    labels = [Path(inputs["labels"], name) for name in task.labels]
    joined = [Joined(plan, _rows(own, inputs)) for plan, own in zip(task.views, task.chapters, strict=True)]
    owed = [len(_mine(each, who)) for each in joined]
    for number, each in enumerate(joined):
        names = {partition: folder / piece_name(number, partition) for partition in _mine(each, who)}
        left = {partition: path for partition, path in names.items() if not path.exists()}
        done = sum(owed[:number]) + len(names) - len(left)
        for path, piece in _pieces(task, each, labels, left, who) if left else ():
            _write(path, piece, f".{who.attempt}-{who.rank}", task.block_rows)
            tell(done := done + 1, sum(owed))
    (folder / f"done-{who.attempt}-{who.rank}").touch()
    if who.rank == 0:
        counts = enumerate(map(partitions_of, joined))
        _bring_out(folder, output, who, [piece_name(n, p) for n, count in counts for p in range(count)])


def piece_name(view: int, partition: int) -> str:
    """What the file of a piece is called."""
    return f"v{view:04d}-p{partition:04d}.parquet"


def assemble(task: Task, labels: Path, folder: Path) -> Iterator[pa.Table]:
    """The set as one machine would have made it, block by block in the order of the labels; at least an empty one."""
    views = [Joined(plan, OwnRows([])) for plan in task.views]
    held = [[_Held(path) for path in folder.glob(f"v{n:04d}-p*.parquet")] for n in range(len(views))]
    first = 0
    for part in read_blocks([labels / name for name in task.labels], task.block_rows):
        pieces = [[one.rows(first, len(part)) for one in own] for own in held]
        for own in pieces:
            places = [np.asarray(piece[ROW]) for piece in own]
            if not places or bool(np.any(np.bincount(np.concatenate(places), minlength=len(part)) != 1)):
                raise Corrupt("these pieces are not of these labels", "build the set anew")
        yield gather(part, views, pieces, status=True)
        first += len(part)


def read_blocks(files: Sequence[Path], block: int, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Rows of Parquet files, so many at a time across the ends of files; one empty table where there are none."""
    held: list[pa.Table] = []
    empty, given = None, False
    for path in files:
        with pq.ParquetFile(path) as file:
            empty = file.schema_arrow.empty_table() if empty is None else empty
            for batch in file.iter_batches(min(block, 1 << 16), columns=columns):
                held.append(pa.Table.from_batches([batch]))
                while sum(map(len, held)) >= block:
                    whole = pa.concat_tables(held)
                    yield whole.slice(0, block)
                    held, given = [whole.slice(block)], True
    if held and (len(rest := pa.concat_tables(held)) or not given):
        yield rest
    elif not given and empty is not None:
        yield empty.select(columns) if columns is not None else empty


class _Held:
    """A piece as a file; which of its groups are of which labels is known without reading them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told = pq.read_metadata(path)
        stats = [self._told.row_group(n).column(0).statistics for n in range(self._told.num_row_groups)]
        self._spans = [(one.min, one.max) if one is not None and one.has_min_max else (0, -1) for one in stats]

    def rows(self, first: int, count: int) -> pa.Table:
        """Those of `count` labels from `first` on, counted from there."""
        groups = [n for n, (low, high) in enumerate(self._spans) if low < first + count and high >= first]
        with pq.ParquetFile(self._path, metadata=self._told) as file:
            table = file.read_row_groups(groups) if groups else file.schema_arrow.empty_table()
        places = np.asarray(table[ROW]) - first
        if len(places) and not 0 <= places[0] <= places[-1] < count:
            raise Corrupt("a piece of this set was cut otherwise than its labels", "build the set anew")
        return table.set_column(0, ROW, pa.array(places))


def _pieces(
    task: Task, joined: Joined, labels: Sequence[Path], paths: Mapping[int, Path], who: Who
) -> Iterator[tuple[Path, pa.Table]]:
    """What these partitions give, one after the other."""
    table, rows, lies_in = _share(task.moment, joined, labels, who)
    order = np.argsort(lies_in, kind="stable")
    bounds = np.searchsorted(lies_in[order], [(partition, partition + 1) for partition in paths])
    for (partition, path), (low, high) in zip(paths.items(), bounds.tolist(), strict=True):
        places = order[low:high]
        piece = part_of(table.take(pa.array(places)), task.moment, joined, partition, known_at=task.known_at)
        yield path, piece.set_column(0, ROW, pa.array(rows[places][np.asarray(piece[ROW])]))


def _share(
    moment: str, joined: Joined, labels: Sequence[Path], who: Who
) -> tuple[pa.Table, NDArray[np.int64], NDArray[np.uint16]]:
    """Keys and moments of the labels that are ours, their row numbers, and the partition of each."""
    names, types = [key.name for key in joined.plan.keys], [key.type for key in joined.plan.keys]
    count = partitions_of(joined)
    tables, numbers, parts, first = [], [], [], 0
    for block in read_blocks(labels, _READ_ROWS, list(dict.fromkeys((*names, moment)))):
        lies_in = key_column([block.column(name) for name in names], types).partitions(count)
        ours = np.flatnonzero(lies_in % who.world == who.rank)
        tables.append(block.take(pa.array(ours)))
        numbers.append(ours + first)
        parts.append(lies_in[ours])
        first += len(block)
    return pa.concat_tables(tables).combine_chunks(), np.concatenate(numbers), np.concatenate(parts)


def _write(path: Path, piece: pa.Table, draft: str, block: int) -> None:
    """Whole or not at all. Without dictionaries: they would take one NaN for another."""
    passing = path.with_name(draft)
    rows = np.asarray(piece[ROW])
    ends = np.searchsorted(rows, np.arange(block, (rows[-1] if len(rows) else 0) + block, block))
    with passing.open("wb") as file:
        with pq.ParquetWriter(file, piece.schema, use_dictionary=False, write_statistics=[ROW]) as writer:
            for low, high in zip((0, *ends), (*ends, len(rows)), strict=True):
                if high > low:
                    writer.write_table(piece.slice(low, high - low), row_group_size=block)
        file.flush()
        os.fsync(file.fileno())
    passing.replace(path)


def _bring_out(folder: Path, output: Path, who: Who, names: Sequence[str]) -> None:
    """All pieces into the output, when every worker of this try has said that its own are there."""
    marks = [folder / f"done-{who.attempt}-{rank}" for rank in range(who.world)]
    # A worker that fails ends the whole try, and this one with it: nothing to give up here.
    while not all(mark.exists() for mark in marks):
        time.sleep(_LOOK_S)
    for name in names:
        try:
            (output / name).hardlink_to(folder / name)
        except FileNotFoundError:
            raise Corrupt(f"the piece {name} is gone", "try again") from None
        except OSError:  # another file system, or one without links
            shutil.copyfile(folder / name, output / name)
    shutil.rmtree(folder, ignore_errors=True)


def _rows(chapters: Sequence[Mapping[str, str]], inputs: Mapping[str, str]) -> OwnRows:
    parts = []
    for faces in chapters:
        for path in sorted(Path(inputs[faces[""]]).glob("p*.seg")):
            partition, of, _ = read_name(path.name)
            files = {face: File(Path(inputs[role], path.name)) for face, role in faces.items()}
            parts.append(Part(partition, of, files))
    return OwnRows(parts)


def _mine(joined: Joined, who: Who) -> range:
    return range(who.rank, partitions_of(joined), who.world)


def _plan(said: Mapping[str, Any]) -> ViewPlan:
    fields = {name: tuple(Field(**one) for one in said[name]) for name in ("keys", "stored")}
    lists = {name: tuple(said[name]) for name in ("wanted", "names")}
    return ViewPlan(**{**said, **fields, **lists, "windows": tuple(Window(**one) for one in said["windows"])})

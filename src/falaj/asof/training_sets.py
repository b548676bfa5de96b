"""Training sets: labels joined with what was true, and known, of their things at their moments.

One partition at a time, so that memory is bounded by a partition; each can as well be done elsewhere (`part_of`) and
the pieces laid together (`gather`): the bits are the same.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from falaj.asof.arrow_columns import array_from_numbers, combine_chunks, to_arrow_type, view_numbers
from falaj.asof.entity_keys import build_key_column
from falaj.asof.label_lookup import ROW_COLUMN, STATUS_COLUMN, list_selected_types, look_up_rows, look_up_source
from falaj.asof.moments import to_micros, to_moments
from falaj.asof.records import NULL, PRESENT, ViewPlan
from falaj.asof.row_sources import LabelQuery, PartitionSegment, SegmentRows
from falaj.core.errors import Invalid

if TYPE_CHECKING:
    from falaj.asof.external_rows import ExternalRows

__all__ = [
    "ROW_COLUMN",
    "JoinedView",
    "PartitionSegment",
    "SegmentRows",
    "assemble_pieces",
    "build_partition",
    "build_training_set",
    "count_partitions",
]
Columns = dict[str, pa.Array]
_MAX_SMALL_BYTES = 1 << 31


@dataclass(frozen=True, slots=True)
class JoinedView:
    """A view and where its rows are."""

    plan: ViewPlan
    rows: "SegmentRows | ExternalRows"


def build_training_set(
    labels: pa.Table,
    moment_column: str,
    views: Sequence[JoinedView],
    *,
    known_at: str | int | None = None,
    zone: str = "",
    status: bool = False,
    report_progress: Callable[[int], None] | None = None,
) -> pa.Table:
    """The labels as they are, then the features of each view as of `moment_column`, null where there is none.

    `known_at`: "label" leaves out what became known after a label's own moment, a moment what became known after it.
    With `status`, a column `<name>__status` (asof/records.py) for each feature says why it is null. `report_progress`
    is told how many labels were done for one view.
    """
    _check_column_names(labels, moment_column, views, status)
    view_columns = []
    for view in views:
        pieces = []
        for piece in _iterate_pieces(labels, moment_column, view, (known_at, zone)):
            pieces.append(piece)
            if report_progress is not None:
                report_progress(len(piece))
        view_columns.append(_order_columns(len(labels), view.plan, pieces, status))
    return _append_columns(labels, view_columns)


def count_partitions(view: JoinedView) -> int:
    """Into how many parts the work on a view can be cut."""
    return max((segment.of for segment in view.rows.parts), default=1) if isinstance(view.rows, SegmentRows) else 1


def build_partition(
    labels: pa.Table,
    moment_column: str,
    view: JoinedView,
    partition: int,
    *,
    known_at: str | int | None = None,
    zone: str = "",
) -> pa.Table:
    """The piece of a training set that one partition of a view gives: row numbers, a status, features.

    Labels need no more columns than the keys and the moment.
    """
    return pa.concat_tables(_iterate_pieces(labels, moment_column, view, (known_at, zone), partition))


def assemble_pieces(
    labels: pa.Table, views: Sequence[JoinedView], pieces: Sequence[Sequence[pa.Table]], *, status: bool = False
) -> pa.Table:
    """Lay pieces together: `pieces` has, for each view, those of all its partitions, in any order."""
    view_columns = [
        _order_columns(len(labels), view.plan, view_pieces, status)
        for view, view_pieces in zip(views, pieces, strict=True)
    ]
    return _append_columns(labels, view_columns)


def _check_column_names(labels: pa.Table, moment_column: str, views: Sequence[JoinedView], status: bool) -> None:
    label_columns = list(labels.schema.names)
    for name in (moment_column, *(key.name for view in views for key in view.plan.keys)):
        if label_columns.count(name) != 1:
            raise Invalid(f"the labels do not have one column {name}", "labels hold every key and the moment")
    names = [name for view in views for name in view.plan.names]
    names += [f"{name}__status" for name in names if status]
    duplicate_names = {
        name for name in names if names.count(name) > 1 or name in (*label_columns, ROW_COLUMN, STATUS_COLUMN)
    }
    if duplicate_names:
        raise Invalid(
            f"two columns would be called {min(duplicate_names)}", "give one of them another name in the service"
        )


def _order_columns(num: int, plan: ViewPlan, pieces: Sequence[pa.Table], status: bool) -> tuple[Columns, Columns]:
    """One view's columns, and statuses if wanted, in the order of the labels."""
    table = pa.concat_tables(pieces)
    label_rows = combine_chunks(table[ROW_COLUMN]).to_numpy()
    inverse = np.full(num, -1, np.int64)
    if len(label_rows) == num and bool(np.all((label_rows >= 0) & (label_rows < num))):
        inverse[label_rows] = np.arange(num)
    if len(label_rows) != num or bool(np.any(inverse < 0)):
        raise Invalid("these pieces are not all of a view's", "give one piece for each partition")
    status_codes = combine_chunks(table[STATUS_COLUMN]).to_numpy()[inverse]
    present = status_codes == PRESENT
    absent, all_statuses = num - int(np.count_nonzero(present)), pa.array(status_codes)
    features, statuses = {}, {}
    for name, kind in zip(plan.names, list_selected_types(plan), strict=True):
        has_no_own_nulls = table[name].null_count == absent  # no cell of a row that is there is null
        column = _scatter_numbers(table[name], kind, label_rows, present) if has_no_own_nulls else None
        if column is None:
            column = combine_chunks(table[name]).take(pa.array(inverse))
            # Offsets of 32 bits, as everybody expects, unless there is too much for them.
            column = column.cast(to_arrow_type(kind)) if column.nbytes < _MAX_SMALL_BYTES else column
        features[name] = column
        if status and has_no_own_nulls:
            statuses[f"{name}__status"] = all_statuses
        elif status:
            empty = present & column.is_null().to_numpy(zero_copy_only=False)
            statuses[f"{name}__status"] = pa.array(np.where(empty, np.uint8(NULL), status_codes))
    return features, statuses


def _scatter_numbers(
    column: pa.ChunkedArray, kind: str, label_rows: NDArray[np.int64], present: NDArray[np.bool_]
) -> pa.Array | None:
    """A column of numbers in the order of the labels, each piece written where it belongs; None of other types."""
    values, offset = None, 0
    for chunk in column.chunks:
        piece = view_numbers(chunk, kind)
        if piece is None:
            return None
        values = np.zeros(len(label_rows), piece.dtype) if values is None else values
        values[label_rows[offset : offset + len(piece)]] = piece
        offset += len(piece)
    return None if values is None else array_from_numbers(values, kind, present)


def _append_columns(labels: pa.Table, view_columns: Sequence[tuple[Columns, Columns]]) -> pa.Table:
    for columns in (
        *(feature_and_status_columns[0] for feature_and_status_columns in view_columns),
        *(feature_and_status_columns[1] for feature_and_status_columns in view_columns),
    ):
        for name, column in columns.items():
            labels = labels.append_column(name, column)
    return labels


def _iterate_pieces(
    labels: pa.Table,
    moment_column: str,
    view: JoinedView,
    known_and_zone: tuple[str | int | None, str],
    only_partition: int | None = None,
) -> Iterator[pa.Table]:
    """What each partition (or only one) gives to the labels whose keys lie in it."""
    plan, rows = view.plan, view.rows
    query = _make_label_query(labels, moment_column, plan, *known_and_zone)
    if not isinstance(rows, SegmentRows):
        with rows.opened(plan, query) as opened_rows:
            yield from (
                look_up_rows(opened_rows, plan, query)
                if isinstance(opened_rows, SegmentRows)
                else look_up_source(opened_rows, plan, query)
            )
        return
    if only_partition is None:
        yield from look_up_rows(rows, plan, query)
        return
    count = count_partitions(view)
    (label_rows,) = np.nonzero(query.keys.partitions(count) == only_partition)
    own_rows = SegmentRows(
        [segment for segment in rows.parts if segment.partition == only_partition % segment.of], rows.extra
    )
    for piece in look_up_rows(own_rows, plan, query.take(label_rows)):
        yield piece.set_column(0, ROW_COLUMN, pa.array(label_rows[piece[ROW_COLUMN].to_numpy()]))


def _make_label_query(
    labels: pa.Table, moment_column: str, plan: ViewPlan, known_at: str | int | None, zone: str
) -> LabelQuery:
    label_at = to_moments(labels.column(moment_column), zone)
    keys = build_key_column([labels.column(key.name) for key in plan.keys], [key.type for key in plan.keys], zone)
    if known_at is None:
        return LabelQuery(keys, label_at, None)
    return LabelQuery(
        keys, label_at, label_at if known_at == "label" else np.full(len(label_at), to_micros(known_at, zone))
    )

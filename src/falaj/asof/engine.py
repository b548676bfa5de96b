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

from falaj.asof.arrow import arrow_type, from_numbers, numbers_in, whole
from falaj.asof.keys import key_column
from falaj.asof.looking import ROW, STATUS, over, over_source, wanted_types
from falaj.asof.moments import micros, moments
from falaj.asof.records import NULL, PRESENT, ViewPlan
from falaj.asof.sources import Asked, OwnRows, Part
from falaj.core.errors import Invalid

if TYPE_CHECKING:
    from falaj.asof.foreign import ForeignRows

__all__ = ["ROW", "Joined", "OwnRows", "Part", "gather", "part_of", "partitions_of", "training_set"]
Columns = dict[str, pa.Array]
_MAX_SMALL_BYTES = 1 << 31


@dataclass(frozen=True, slots=True)
class Joined:
    """A view and where its rows are."""

    plan: ViewPlan
    rows: "OwnRows | ForeignRows"


def training_set(
    labels: pa.Table,
    moment: str,
    views: Sequence[Joined],
    *,
    known_at: str | int | None = None,
    zone: str = "",
    status: bool = False,
    advance: Callable[[int], None] | None = None,
) -> pa.Table:
    """The labels as they are, then the features of each view as of `moment`, null where there is none.

    `known_at`: "label" leaves out what became known after a label's own moment, a moment what became known after it.
    With `status`, a column `<name>__status` (asof/records.py) for each feature says why it is null. `advance` is told
    how many labels were done for one view.
    """
    _check_names(labels, moment, views, status)
    laid = []
    for joined in views:
        pieces = []
        for piece in _pieces(labels, moment, joined, (known_at, zone)):
            pieces.append(piece)
            if advance is not None:
                advance(len(piece))
        laid.append(_laid(len(labels), joined.plan, pieces, status))
    return _beside(labels, laid)


def partitions_of(joined: Joined) -> int:
    """Into how many parts the work on a view can be cut."""
    return max((part.of for part in joined.rows.parts), default=1) if isinstance(joined.rows, OwnRows) else 1


def part_of(
    labels: pa.Table, moment: str, joined: Joined, partition: int, *, known_at: str | int | None = None, zone: str = ""
) -> pa.Table:
    """The piece of a training set that one partition of a view gives: row numbers, a status, features.

    Labels need no more columns than the keys and the moment.
    """
    return pa.concat_tables(_pieces(labels, moment, joined, (known_at, zone), partition))


def gather(
    labels: pa.Table, views: Sequence[Joined], pieces: Sequence[Sequence[pa.Table]], *, status: bool = False
) -> pa.Table:
    """Lay pieces together: `pieces` has, for each view, those of all its partitions, in any order."""
    laid = [_laid(len(labels), each.plan, own, status) for each, own in zip(views, pieces, strict=True)]
    return _beside(labels, laid)


def _check_names(labels: pa.Table, moment: str, views: Sequence[Joined], status: bool) -> None:
    have = list(labels.schema.names)
    for name in (moment, *(key.name for each in views for key in each.plan.keys)):
        if have.count(name) != 1:
            raise Invalid(f"the labels do not have one column {name}", "labels hold every key and the moment")
    names = [name for each in views for name in each.plan.names]
    names += [f"{name}__status" for name in names if status]
    twice = {name for name in names if names.count(name) > 1 or name in (*have, ROW, STATUS)}
    if twice:
        raise Invalid(f"two columns would be called {min(twice)}", "give one of them another name in the service")


def _laid(num: int, plan: ViewPlan, pieces: Sequence[pa.Table], status: bool) -> tuple[Columns, Columns]:
    """One view's columns, and statuses if wanted, in the order of the labels."""
    table = pa.concat_tables(pieces)
    places = whole(table[ROW]).to_numpy()
    inverse = np.full(num, -1, np.int64)
    if len(places) == num and bool(np.all((places >= 0) & (places < num))):
        inverse[places] = np.arange(num)
    if len(places) != num or bool(np.any(inverse < 0)):
        raise Invalid("these pieces are not all of a view's", "give one piece for each partition")
    said = whole(table[STATUS]).to_numpy()[inverse]
    present = said == PRESENT
    absent, every = num - int(np.count_nonzero(present)), pa.array(said)
    features, statuses = {}, {}
    for name, kind in zip(plan.names, wanted_types(plan), strict=True):
        plain = table[name].null_count == absent  # no cell of a row that is there is null
        column = _numbers(table[name], kind, places, present) if plain else None
        if column is None:
            column = whole(table[name]).take(pa.array(inverse))
            # Offsets of 32 bits, as everybody expects, unless there is too much for them.
            column = column.cast(arrow_type(kind)) if column.nbytes < _MAX_SMALL_BYTES else column
        features[name] = column
        if status and plain:
            statuses[f"{name}__status"] = every
        elif status:
            empty = present & column.is_null().to_numpy(zero_copy_only=False)
            statuses[f"{name}__status"] = pa.array(np.where(empty, np.uint8(NULL), said))
    return features, statuses


def _numbers(
    column: pa.ChunkedArray, kind: str, places: NDArray[np.int64], present: NDArray[np.bool_]
) -> pa.Array | None:
    """A column of numbers in the order of the labels, each piece written where it belongs; None of other types."""
    laid, at = None, 0
    for chunk in column.chunks:
        piece = numbers_in(chunk, kind)
        if piece is None:
            return None
        laid = np.zeros(len(places), piece.dtype) if laid is None else laid
        laid[places[at : at + len(piece)]] = piece
        at += len(piece)
    return None if laid is None else from_numbers(laid, kind, present)


def _beside(labels: pa.Table, laid: Sequence[tuple[Columns, Columns]]) -> pa.Table:
    for columns in (*(each[0] for each in laid), *(each[1] for each in laid)):
        for name, column in columns.items():
            labels = labels.append_column(name, column)
    return labels


def _pieces(
    labels: pa.Table, moment: str, joined: Joined, when: tuple[str | int | None, str], only: int | None = None
) -> Iterator[pa.Table]:
    """What each partition (or only one) gives to the labels whose keys lie in it."""
    plan, rows = joined.plan, joined.rows
    asked = _ask(labels, moment, plan, *when)
    if not isinstance(rows, OwnRows):
        with rows.opened(plan, asked) as found:
            yield from over(found, plan, asked) if isinstance(found, OwnRows) else over_source(found, plan, asked)
        return
    if only is None:
        yield from over(rows, plan, asked)
        return
    count = partitions_of(joined)
    (places,) = np.nonzero(asked.keys.partitions(count) == only)
    own = OwnRows([part for part in rows.parts if part.partition == only % part.of], rows.extra)
    for piece in over(own, plan, asked.take(places)):
        yield piece.set_column(0, ROW, pa.array(places[piece[ROW].to_numpy()]))


def _ask(labels: pa.Table, moment: str, plan: ViewPlan, known_at: str | int | None, zone: str) -> Asked:
    at = moments(labels.column(moment), zone)
    keys = key_column([labels.column(key.name) for key in plan.keys], [key.type for key in plan.keys], zone)
    if known_at is None:
        return Asked(keys, at, None)
    return Asked(keys, at, at if known_at == "label" else np.full(len(at), micros(known_at, zone)))

"""Watching features beside the platform: how rows are, how far they moved, and whether what is served is true."""

import os
import time
from contextlib import suppress
from typing import Annotated, Any

from falaj.asof.stats import ColumnStats
from falaj.core.errand import Here, errand
from falaj.core.errors import Corrupt, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.features.chapters import stats_in
from falaj.features.computing import compute
from falaj.features.drawing import histogram
from falaj.features.functions import service_functions
from falaj.features.history import build, read_labels
from falaj.features.quality import Quality, personal_columns, stats_of
from falaj.features.quality import quality as judged
from falaj.features.records import Opening
from falaj.features.rows import Edition
from falaj.features.skew import Read, SkewReport, Truth, compare, labels_of, unpack_reads
from falaj.features.stream import Arrival

_LAST = 20
MOMENT = "__at"


@errand
def quality(
    here: Here,
    view: Annotated[Ref, "which view"],
    training: Annotated[Ref | None, "a training set to compare the last arrival with"] = None,
) -> Quality:
    """How a view is: statistics and shapes of its columns, what rules kept apart, how fresh it is, how far it moved.

    Of columns that you may not read, and of those that could show a person, there are no values.

    Example:
        falaj features quality view:fraud/spend --training dataset:fraud/train
    """
    about, stats = measured(here, view)
    then = _training(here, about, training) if training is not None else None
    return judged(about.definition, about.stream, time.time(), stats, then)


@errand
def plot(
    here: Here,
    view: Annotated[Ref, "which view"],
    column: Annotated[str, "which of its columns"],
    training: Annotated[Ref | None, "draw it beside what it was in this training set"] = None,
) -> str:
    """Draw the distribution of a column in its last arrival, beside a training set where one is named.

    Example:
        falaj features plot view:fraud/spend amount --training dataset:fraud/train
    """
    about, stats = measured(here, view)
    last = stats[-1].get(column) if stats else None
    if last is None:
        names = ", ".join(one.name for one in about.definition.features)
        raise Invalid(f"there are no statistics of {column!r:.60}", f"ingest the view; its columns are {names}", view)
    then = _training(here, about, training).get(column) if training is not None else None
    return histogram(last, then)


@errand
def skew(
    here: Here,
    service: Annotated[Ref, "which service"],
    after: Annotated[str, "only reads that were told after this cursor"] = "",
) -> SkewReport:
    """Check what was served against history: sampled reads are computed again at their moment and compared bit by bit.

    Example:
        falaj features skew service:fraud/scorer
    """
    told = here.features.samples(service, after)
    reads: list[Read] = []
    for _, text in told:
        with suppress(Corrupt):  # one bad block must not hide what the others say
            reads += unpack_reads(text)
    if not reads:
        raise NotFound("no read of it was told yet", "one in a thousand is; readers tell them every minute", service)
    opening: Opening = here.features.open(service)
    then, now = (_truth(here, reads, opening, known) for known in ("label", ""))
    # A salt of this report alone: whoever reads two of them cannot tell whether they name the same person.
    return compare(reads, then, now, salt=os.urandom(16))


def measured(here: Here, view: Ref) -> tuple[Arrival, list[dict[str, ColumnStats]]]:
    """What is known of the last arrivals, as far as one may read it."""
    edition: Edition = here.features.rows(view)
    about: Arrival = here.features.about(edition.view)
    return about, [stats_in(here, one, about.view) for one in about.stream.chapters[-_LAST:]]


def _training(here: Here, about: Arrival, training: Ref) -> dict[str, ColumnStats]:
    names = [one.name for one in about.definition.features]
    with read_labels(here, str(training)) as (table, _):
        kept = table.select([name for name in names if name in table.column_names])
        return stats_of([kept], personal_columns(about.definition))


def _truth(here: Here, reads: list[Read], opening: Opening, known_at: str) -> Truth:
    """The same rows from history; `label`: only what was known at the moment of each read."""
    import pyarrow as pa

    columns, moments = labels_of(reads)
    labels = pa.table({**columns, MOMENT: pa.array(moments, pa.int64())})
    built = build(here, labels, MOMENT, opening, known_at, "", lambda _: None)[0]
    computed: Any = compute(built, opening.plan, service_functions(here, opening.plan))
    names = [one.name for one in opening.plan.outputs]
    return Truth(
        {name: computed.column(name).to_pylist() for name in names},
        {name: computed.column(f"{name}__status").to_pylist() for name in names},
    )
